"""The composite action: its inputs are the command line's options, and its steps run in another repository's folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import checkout
from tests.ci.steps import ACTION, GITHUB, PULL, ROOT, Github, read
from tests.commandline import executable
from tests.facts import newest
from tfbuild.errors import Unsupported, UsageError
from tools import reference

INPUTS = dict.fromkeys(read(ACTION)["inputs"], "")


def given(**inputs: str) -> str:
    """Every input as JSON, as GitHub has it in toJSON(inputs); `_` in a name stands for `-`."""
    return json.dumps(INPUTS | {name.replace("_", "-"): value for name, value in inputs.items()})


@pytest.mark.parametrize(
    ("action", "verb", "job", "uses"), [(ACTION, "build", "image", "./"), (PULL, "pull", "pull", "./pull")]
)
def test_each_input_is_an_option_and_the_example_has_no_other(action: Path, verb: str, job: str, uses: str) -> None:
    inputs = read(action)["inputs"]
    (step,) = [step for step in read(GITHUB / "action.yml")["jobs"][job]["steps"] if step.get("uses") == uses]
    assert set(step["with"]) <= set(inputs)
    assert inputs.pop("options", {"default": ""})["default"] == ""
    assert {*inputs} == {*reference.inputs(verb)}


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
        ({"options": "--no-verify"}, "'--no-verify' is not an option of this action"),
        ({"options": "--bazel=7.4.1\nmkl"}, "'mkl' is not an option of this action"),
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


@pytest.mark.slow
def test_the_plan_is_shown_or_ends_the_job(tmp_path: Path) -> None:
    copy = checkout.runnable(tmp_path / "checkout", "tfbuild/", "templates/", "tasks.py", "tools/", "ci/")
    before = sorted(path for path in copy.rglob("*") if "__pycache__" not in path.parts)
    refusals: tuple[tuple[dict[str, str], int, str], ...] = (
        ({"release": "9.9"}, Unsupported.exit_code, "9.9"),
        ({"options": "--no-such-option"}, UsageError.exit_code, "--no-such-option"),
        ({"cpu": "a\nb"}, 1, "more than one line"),
    )
    for inputs, code, message in refusals:
        done = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": given(**inputs)}).run_action("Plan")
        assert (done.code, done.outputs) == (code, {})
        assert message in done.stderr
    # Nothing of the other repository runs.
    (tmp_path / "workspace" / "json.py").write_text("raise SystemExit(9)")
    inputs_ = given(target="cpu", wheel="official", options="--platform=linux/amd64")
    done = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": inputs_}).run_action("Plan")
    identifier = newest.official("cpu")
    assert (done.code, done.outputs) == (0, {"id": identifier}), done.stderr
    assert json.loads(done.stdout)[0]["id"] == identifier
    assert (tmp_path / "workspace" / "build" / identifier / "context" / "Dockerfile").is_file()
    assert sorted(path for path in copy.rglob("*") if "__pycache__" not in path.parts) == before


TABLE = "# x: fail\n\n| check |\n|---|\n| import |\n\n"


@pytest.mark.parametrize(
    ("code", "report", "outputs", "summary"),
    [
        (0, "x.md", {"image": "tfbuild:x", "report": "reports/x.json"}, TABLE),
        # Not by a file of options that switches verification off, either.
        (2, "", {}, "# x: no image, exit code 2\n\n"),
        (24, "x-failed.md", {"report": "reports/x-failed.json"}, TABLE),
        (75, "", {}, "# x: not finished within the time limit\n\n"),
        (12, "", {}, "# x: no image, exit code 12\n\n"),
    ],
)
def test_only_a_verified_image_is_an_output_and_the_summary_says_what_became_of_it(
    code: int, report: str, outputs: dict[str, str], summary: str, tmp_path: Path
) -> None:
    root, workspace = tmp_path / "checkout", tmp_path / "workspace"
    executable(root / ".venv/bin/invoke", f"printf '%s|' \"$@\"\nexit {0 if code == 2 else code}")
    (workspace / "temp").mkdir(parents=True)
    (workspace / "reports").mkdir()
    if "image" in outputs:
        (workspace / "reports/x.json").touch()
    (workspace / "temp" / "tfbuild-options").write_text("--target=mkl\n--patch=my fix.patch\n")
    done = machine(root, workspace, **{"steps.plan.outputs.id": "x"}).run_action("Build and verify")
    assert (done.code, done.outputs) == (code, {"code": str(code), **outputs})
    assert done.stdout.startswith(f"--search-root|{root}|build|--target=mkl|--patch=my fix.patch|")
    if report:
        (workspace / "reports" / report).write_text(TABLE)
    values = {"steps.plan.outputs.id": "x", "steps.build.outputs.code": str(code)}
    done = machine(ROOT, workspace, **values).run_action("Report")
    assert (done.code, done.summary) == (0, summary), done.stderr


def test_the_outputs_are_those_that_the_steps_write() -> None:
    action = read(ACTION)
    written = {step["id"]: step["run"] for step in action["runs"]["steps"] if "id" in step}
    for name, row in action["outputs"].items():
        step, _, output = row["value"].strip("${ }").removeprefix("steps.").partition(".outputs.")
        assert output == name
        assert f"{output}=" in written[step]


@pytest.mark.parametrize(
    ("code", "outputs"), [(0, {"image": "ghcr.io/us/x:id", "digest": "sha256:1"}), (27, {}), (24, {})]
)
def test_what_was_pulled_is_an_output(code: int, outputs: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    for name in ("pull", "ci"):
        (copy / name).mkdir(parents=True)
    (copy / "ci" / "options.py").write_text((ROOT / "ci" / "options.py").read_text())
    answer = r"""{\n  "reference": "ghcr.io/us/x@sha256:1",\n  "image": "ghcr.io/us/x:id"\n}\n"""
    executable(copy / ".venv/bin/invoke", f"printf '%s|' \"$@\" >&2\nprintf '{answer}'\nexit {code}")
    inputs = dict.fromkeys(read(PULL)["inputs"], "") | {"registry": "ghcr.io/us/x", "python": "3.12"}
    runner = machine(copy, tmp_path / "workspace", **{"toJSON(inputs)": json.dumps(inputs)})
    (tmp_path / "workspace" / "json.py").write_text("raise SystemExit(9)")
    done = runner.run_action("Pull", PULL)
    assert (done.code, done.outputs) == (code, outputs)
    assert "|pull|--json|--registry=ghcr.io/us/x|--python=3.12|" in done.stderr
