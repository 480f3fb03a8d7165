"""The composite action: its inputs are the command line's options, and its steps run in another repository's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout
from tests.ci.steps import ACTION, GITHUB, PULL, ROOT, Done, Github, read
from tests.facts import newest
from tfbuild.cli.verbs import VERBS
from tfbuild.errors import Unsupported, UsageError
from tools import reference

INPUTS = dict.fromkeys(read(ACTION)["inputs"], "")


def given(**inputs: str) -> str:
    """Every input as JSON, as GitHub has it in toJSON(inputs); `_` in a name stands for `-`."""
    return json.dumps(INPUTS | {name.replace("_", "-"): value for name, value in inputs.items()})


@pytest.mark.parametrize(
    ("action", "verb", "job", "uses"), [(ACTION, "build", "image", "./"), (PULL, "pull", "pull", "./pull")]
)
def test_each_input_is_an_option_with_its_help_and_the_example_has_no_other(
    action: Path, verb: str, job: str, uses: str
) -> None:
    inputs, options = read(action)["inputs"], VERBS[verb].options
    (step,) = [step for step in read(GITHUB / "action.yml")["jobs"][job]["steps"] if step.get("uses") == uses]
    assert set(step["with"]) <= set(inputs)
    further = inputs.pop("options", None)
    assert tuple(inputs) == tuple(reference.inputs(verb))
    assert {name: row["description"] for name, row in inputs.items()} == {name: options[name].help for name in inputs}
    assert not further or {row["default"] for row in (*inputs.values(), further)} == {""}
    # ci/options.py tells switches by their value, and gives no option twice.
    assert not any(options[name].repeatable for name in inputs)


# --- inputs → options -------------------------------------------------------------------------------------------------


def options(**inputs: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "ci" / "options.py"], env={**os.environ, "INPUTS": given(**inputs)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_inputs_become_options_one_a_line() -> None:
    more = "--bazel-flag=--copt=-O3\n\n  --patch=my fix.patch \n--reverify\n"
    done = options(target="mkl", cpu="avx2,fma", with_headers="true", no_throughput="false", options=more)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "--target=mkl", "--cpu=avx2,fma", "--with-headers", "--bazel-flag=--copt=-O3", "--patch=my fix.patch",
        "--reverify",
    ]  # fmt: skip
    assert (options().returncode, options().stdout) == (0, "")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"options": "--no-verify"}, "'--no-verify' is no option for this action"),
        ({"options": "--bazel=7.4.1\nmkl"}, "'mkl' is no option for this action"),
        ({"cpu": "host\n--no-verify"}, "the input cpu has more than one line"),
    ],
)
def test_what_would_change_the_actions_own_steps_is_refused(inputs: dict[str, str], message: str) -> None:
    done = options(**inputs)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {message}\nhint: ")


# --- the steps --------------------------------------------------------------------------------------------------------


def machine(checkout: Path, folder: Path, **values: str) -> Github:
    """A job of another repository, in whose folder the action works."""
    folder.mkdir(exist_ok=True)
    return Github(checkout=checkout, temp=folder / "temp", folder=folder, values=values)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout.runnable(
        tmp_path_factory.mktemp("action") / "checkout", "tfbuild/", "templates/", "tasks.py", "tools/", "ci/"
    )


@pytest.mark.slow
def test_the_plan_is_shown_and_its_identifier_is_an_output(copy: Path, tmp_path: Path) -> None:
    inputs = given(target="cpu", wheel="official", options="--platform=linux/amd64")
    before = sorted(path for path in copy.rglob("*") if "__pycache__" not in path.parts)
    done = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": inputs}).run_action("Plan")
    assert done.code == 0, done.stderr
    identifier = newest.official("cpu")
    assert done.outputs == {"id": identifier}
    assert json.loads(done.stdout)[0]["id"] == identifier
    assert (tmp_path / "workspace" / "build" / identifier / "context" / "Dockerfile").is_file()
    assert sorted(path for path in copy.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        ({"release": "9.9"}, Unsupported.exit_code, "9.9"),
        ({"options": "--no-such-option"}, UsageError.exit_code, "--no-such-option"),
        ({"cpu": "a\nb"}, 1, "more than one line"),
    ],
)
def test_a_plan_that_is_refused_ends_the_job(
    inputs: dict[str, str], code: int, message: str, copy: Path, tmp_path: Path
) -> None:
    done = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": given(**inputs)}).run_action("Plan")
    assert (done.code, done.outputs) == (code, {})
    assert message in done.stderr


INVOKE = """#!/bin/sh
printf '%s|' "$@"
exit {code}
"""
REPORT = "# x: fail\n\n| check |\n|---|\n| import |\n\n## import\n\nlong\n"


def built(folder: Path, code: int) -> tuple[Done, Github]:
    """The step that builds, with a program that ends with `code` in the place of Invoke."""
    program = folder / "checkout" / ".venv" / "bin" / "invoke"
    program.parent.mkdir(parents=True)
    program.write_text(INVOKE.format(code=code))
    program.chmod(0o755)
    runner = machine(folder / "checkout", folder / "workspace", **{"steps.plan.outputs.id": "x"})
    runner.temp.mkdir()
    (runner.temp / "tfbuild-options").write_text("--target=mkl\n--patch=my fix.patch\n")
    return runner.run_action("Build and verify"), runner


@pytest.mark.parametrize(
    ("code", "outputs"),
    [
        (0, {"image": "tfbuild:x", "report": "reports/x.json"}),
        (24, {"report": "reports/x-failed.json"}),
        (75, {}),
        (12, {}),
    ],
)
def test_only_a_verified_image_is_an_output(code: int, outputs: dict[str, str], tmp_path: Path) -> None:
    done, _ = built(tmp_path, code)
    assert (done.code, done.outputs) == (code, {"code": str(code), **outputs})
    root = tmp_path / "checkout"
    assert done.stdout == f"--search-root|{root}|build|--target=mkl|--patch=my fix.patch|"


@pytest.mark.parametrize(
    ("code", "report", "summary"),
    [
        (0, "x.md", "# x: fail\n\n| check |\n|---|\n| import |\n\n"),
        (24, "x-failed.md", "# x: fail\n\n| check |\n|---|\n| import |\n\n"),
        (75, "", "# x: not finished within the time limit\n\n"),
        (12, "", "# x: no image, exit code 12\n\n"),
    ],
)
def test_the_summary_is_the_reports_table_or_says_why_there_is_none(
    code: int, report: str, summary: str, tmp_path: Path
) -> None:
    reports = tmp_path / "workspace" / "reports"
    reports.mkdir(parents=True)
    if report:
        (reports / report).write_text(REPORT)
    values = {"steps.plan.outputs.id": "x", "steps.build.outputs.code": str(code)}
    done = machine(ROOT, tmp_path / "workspace", **values).run_action("Report")
    assert (done.code, done.summary) == (0, summary), done.stderr


def test_the_outputs_are_those_that_the_steps_write() -> None:
    action = read(ACTION)
    written = {step["id"]: step["run"] for step in action["runs"]["steps"] if "id" in step}
    for name, row in action["outputs"].items():
        step, _, output = row["value"].strip("${ }").removeprefix("steps.").partition(".outputs.")
        assert output == name
        assert f"{output}=" in written[step]


# --- the action that pulls --------------------------------------------------------------------------------------------


PULLED = """#!/bin/sh
printf '%s|' "$@" >&2
printf '{{\n  "reference": "ghcr.io/us/x@sha256:1",\n  "image": "ghcr.io/us/x:id"\n}}\n'
exit {code}
"""


@pytest.mark.parametrize(
    ("code", "outputs"), [(0, {"image": "ghcr.io/us/x:id", "digest": "sha256:1"}), (27, {}), (24, {})]
)
def test_what_was_pulled_is_an_output(code: int, outputs: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    for name in ("pull", "ci", ".venv/bin"):
        (copy / name).mkdir(parents=True)
    (copy / "ci" / "options.py").write_text((ROOT / "ci" / "options.py").read_text())
    program = copy / ".venv" / "bin" / "invoke"
    program.write_text(PULLED.format(code=code))
    program.chmod(0o755)
    inputs = dict.fromkeys(read(PULL)["inputs"], "") | {"registry": "ghcr.io/us/x", "python": "3.12"}
    runner = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": json.dumps(inputs)})
    done = runner.run_action("Pull", PULL)
    assert (done.code, done.outputs) == (code, outputs)
    assert "|pull|--json|--registry=ghcr.io/us/x|--python=3.12|" in done.stderr
