"""Runs the scripts of this repository's workflows as CI systems do, out of the files that those systems read.

What only those systems have is not run here: actions (`uses:`), their machines, their rules and services.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github" / "workflows"
ACTION = ROOT / "action.yml"
PULL = ROOT / "pull" / "action.yml"
GITLAB = ROOT / ".gitlab-ci.yml"
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
SECONDS = 900
# GitHub's own commands, by the shell that a step names.
SHELLS = {"": ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    return document


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a step said and left; `outputs` by their names, `summary` in Markdown."""

    code: int
    stdout: str
    stderr: str
    outputs: Mapping[str, str]
    summary: str


@dataclass(frozen=True, kw_only=True)
class Github:
    """A runner of GitHub's on this machine. `values`: what expressions stand for, word by word.

    `env` goes over the workflow's own. `folder`: the workspace, for an action of another repository.
    """

    checkout: Path
    temp: Path
    values: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def fill(self, value: object) -> str:
        """The text with its expressions replaced; KeyError for one that is not in `values`."""
        text = ("false", "true")[value] if isinstance(value, bool) else str(value)
        return EXPRESSION.sub(lambda found: self.values[found[1]], text)

    def run(self, workflow: str, name: str, job: str = "") -> Done:
        """Runs the step of this name, in the only job that has it or in `job`."""
        text = read(GITHUB / workflow)
        ((owner, step),) = [
            (one, step)
            for key, one in text["jobs"].items()
            for step in one.get("steps", ())
            if step.get("name") == name and job in ("", key)
        ]
        return self._run(step, [text, owner, step])

    def run_action(self, name: str, action: Path = ACTION) -> Done:
        """Runs the step of this name of a composite action of the checkout."""
        (step,) = [step for step in read(action)["runs"]["steps"] if step["name"] == name]
        folder = self.checkout / action.parent.relative_to(ROOT)
        return self._run(step, [{"env": {"GITHUB_ACTION_PATH": str(folder)}}, step])

    def _run(self, step: Mapping[str, Any], levels: list[Mapping[str, Any]]) -> Done:
        given = {key: self.fill(value) for level in levels for key, value in level.get("env", {}).items()}
        self.temp.mkdir(exist_ok=True)
        script, output, summary = (self.temp / one for one in ("step.sh", "output", "summary"))
        script.write_text(self.fill(step["run"]), encoding="utf-8")
        for file in (output, summary):
            file.write_text("")
        values = {"RUNNER_TEMP": self.temp, "GITHUB_OUTPUT": output, "GITHUB_STEP_SUMMARY": summary}
        env = {**os.environ, **given, **{key: str(path) for key, path in values.items()}, **self.env}
        done = subprocess.run(
            [*SHELLS[step.get("shell", "")], script],
            cwd=self.folder or self.checkout, env=env, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        code, text = done.returncode, summary.read_text()
        return Done(code=code, stdout=done.stdout, stderr=done.stderr, outputs=outputs, summary=text)


def gitlab(
    job: str, checkout: Path, variables: Mapping[str, str], without: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Runs a job's scripts as GitLab's runner does, with GitLab's `variables`, and `without` some of the job's own."""
    owner, env = gitlab_job(job), dict(variables)
    for name, value in owner.get("variables", {}).items():
        if name not in without:
            env.setdefault(name, re.sub(r"\$(\w+)", lambda found: env[found[1]], value))
    lines = [*owner.get("before_script", ()), *owner["script"]]
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(lines)],
        cwd=checkout, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


def gitlab_job(name: str) -> dict[str, Any]:
    """A job with what it takes from the one that it extends."""
    jobs = read(GITLAB)
    job: dict[str, Any] = jobs[name]
    base = gitlab_job(job["extends"]) if "extends" in job else {}
    return {**base, **job, "variables": {**base.get("variables", {}), **job.get("variables", {})}}


def scripts() -> Iterator[tuple[str, str]]:
    """Every script in the workflows, with a name for it."""
    for path in sorted(GITHUB.glob("*.yml")):
        for key, job in read(path)["jobs"].items():
            for number, step in enumerate(job.get("steps", ())):
                if "run" in step:
                    yield f"{path.name}-{key}-{number}", step["run"]
    for action in (ACTION, PULL):
        for number, step in enumerate(read(action)["runs"]["steps"]):
            yield f"{action.relative_to(ROOT)}-{number}".replace("/", "-"), step["run"]
    for key, job in read(GITLAB).items():
        if isinstance(job, dict) and {"script", "before_script"} & set(job):
            yield f"gitlab-{key}", "\n".join((*job.get("before_script", ()), *job.get("script", ())))


def locks() -> list[str]:
    """The files of this repository that pin packages by hash."""
    command = ["git", "grep", "--untracked", "--name-only", "--fixed-strings", "    --hash=sha256:", "--"]
    return subprocess.check_output([*command, ":!tests", ":!*.py"], cwd=ROOT, text=True).splitlines()
