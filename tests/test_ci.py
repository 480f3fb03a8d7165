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


def test_the_step_that_makes_the_rows_fails_with_the_verb(tmp_path: Path) -> None:
    output = tmp_path / "output"
    done = run("bash", "-e", "-c", step("Rows", "images.yml"), ONLY="no-such-row", GITHUB_OUTPUT=str(output))
    assert done.returncode == 2, done.stderr


def test_a_repository_with_capitals_publishes_under_small_letters(tmp_path: Path) -> None:
    script = tmp_path / "ci" / "image.sh"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "$TFBUILD_REGISTRY $*"\n')
    script.chmod(0o755)
    env = {"ID": "x", "OPTIONS": "--wheel official", "LAST": "true", "HEADERS": "", "GITHUB_REPOSITORY": "Us/TfBuild"}
    done = subprocess.run(
        ["bash", "-e", "-c", step("Build, verify and publish", "image.yml")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), **env},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ghcr.io/us/tfbuild x --wheel official\n")


INVOKE = """#!/bin/sh
verb=$1
case "$*" in *--indexes*) verb=indexes ;; *--force*) verb=force ;; esac
echo "$verb" >> calls
echo "$*" >> words
if [ "$verb" = dockerfile ]; then printf '{\n  "id": "x",\n  "digest": "sha256:%s"\n}\n' 0a1; fi
if [ "$verb" = verify ]; then echo "error: its words" >&2; fi
eval "exit \\$code_$verb"
"""
VERBS = ("dockerfile", "verify", "build", "push", "indexes", "force")


@pytest.mark.parametrize(
    ("codes", "code", "calls"),
    [
        ({"verify": 0}, 0, ["verify"]),
        ({"verify": 25}, 0, ["verify", "build", "push"]),
        ({"verify": 24}, 24, ["verify"]),
        ({"verify": 26}, 26, ["verify"]),
        ({"verify": 29}, 0, ["verify", "build", "force"]),
        ({"verify": 30}, 0, ["verify", "indexes"]),
        ({"verify": 30, "indexes": 30}, 0, ["verify", "indexes", "build", "force"]),
        ({"verify": 25, "build": 75}, 75, ["verify", "build"]),
        ({"verify": 25, "build": 24}, 24, ["verify", "build"]),
        ({"verify": 25, "push": 26}, 26, ["verify", "build", "push"]),
        ({"dockerfile": 12}, 12, []),
    ],
)
def test_a_row_is_built_where_it_is_not_published_whole(
    codes: dict[str, int], code: int, calls: list[str], tmp_path: Path
) -> None:
    invoke = tmp_path / "invoke"
    invoke.write_text(INVOKE)
    invoke.chmod(0o755)
    done = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", "x", "--wheel official"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "INVOKE": str(invoke), "TFBUILD_REGISTRY": "ghcr.io/us/x"}
        | {f"code_{name}": str(codes.get(name, 0)) for name in VERBS},
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "calls").read_text().split()) == (code, ["dockerfile", *calls])
    assert ("its words" in done.stderr) == (calls == ["verify"] and code != 0)
    if calls:
        assert "verify x --registry ghcr.io/us/x --context sha256:0a1" in (tmp_path / "words").read_text()


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path: Path) -> None:
    lock = "no-such-package==1 --hash=sha256:" + 64 * "0" + "\n"
    (tmp_path / "install.sh").write_text((ROOT / "install.sh").read_text())
    (tmp_path / "requirements.lock").write_text(lock)
    stale = tmp_path / ".venv" / "bin"
    stale.mkdir(parents=True)
    (stale / "python").symlink_to(tmp_path / "gone")
    (tmp_path / ".venv" / "requirements.lock").write_text(lock)
    done = run("sh", tmp_path / "install.sh", PIP_NO_INDEX="1")
    # It must not believe what the old one had installed.
    assert "no-such-package" in done.stderr
    assert done.returncode != 0
