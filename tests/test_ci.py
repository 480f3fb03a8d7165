"""The CI that this repository carries: valid, without findings, and its steps run as they stand."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def run(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=120
    )


def tool(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in read(path)["jobs"].values():
        yield from job.get("steps", ())


def test_workflows_are_what_github_reads() -> None:
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_the_pipeline_is_what_gitlab_reads(tmp_path: Path) -> None:
    rows = tmp_path / "rows.yml"
    rows.write_text(run(sys.executable, "-m", "invoke", "matrix", "--format", "gitlab").stdout)
    schema = ("--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")
    done = run(tool("check-jsonschema"), *schema, ROOT / ".gitlab-ci.yml", rows)
    assert done.returncode == 0, done.stdout
    assert read(rows)["build"]["extends"] in read(ROOT / ".gitlab-ci.yml")


def test_workflows_have_no_security_findings() -> None:
    done = run(tool("zizmor"), "--offline", "--no-progress", ROOT / ".github" / "workflows")
    assert done.returncode == 0, done.stdout


def test_every_action_is_pinned_by_its_commit() -> None:
    used = [step["uses"] for path in WORKFLOWS for step in steps(path) if "uses" in step]
    assert used
    assert all(len(name.partition("@")[2]) == 40 for name in used)


SCRIPTS = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_every_step_is_clean_shell(script: str, tmp_path: Path) -> None:
    assert "${{" not in script  # values come by the environment: they cannot become commands
    path = tmp_path / "step.sh"
    path.write_text(f"#!/bin/bash -e\n{script}\n")
    done = run(tool("shellcheck"), path)
    assert done.returncode == 0, done.stdout


def test_the_scripts_are_clean_shell() -> None:
    done = run(tool("shellcheck"), ROOT / "ci" / "image.sh", ROOT / "pull.sh", ROOT / ".ci" / "run")
    assert done.returncode == 0, done.stdout


def step(name: str, workflow: str) -> str:
    found = (step for step in steps(ROOT / ".github/workflows" / workflow) if step.get("name") == name)
    return str(next(found)["run"])


def test_the_step_that_makes_the_rows_runs(tmp_path: Path) -> None:
    output = tmp_path / "output"
    done = run("bash", "-e", "-c", step("Rows", "images.yml"), ONLY="*-mkl-py3.11-*", GITHUB_OUTPUT=str(output))
    assert done.returncode == 0, done.stderr
    name, _, value = output.read_text().strip().partition("=")
    assert name == "rows"
    assert "2.21.0-mkl-py3.11-f16c" in [row["id"] for row in json.loads(value)["include"]]
