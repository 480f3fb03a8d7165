"""Files of options: the same options and refusals as on a command line, which wins, and a list of builds."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.commandline import invoke
from tests.rows import each
from tfbuild.errors import Unsupported, UsageError
from tfbuild.plan import Request, RunRequest, options_file
from tfbuild.plan.request import WHEEL_OPTIONS
from tfbuild.util.options import declared

LINUX = ("--platform", "linux/amd64")
EVERY = {**declared(Request), **declared(RunRequest), **WHEEL_OPTIONS}


def found(folder: Path, text: str, name: str = "tfbuild.toml") -> options_file.OptionsFile:
    (folder / name).write_text(text)
    return options_file.find_options_file(folder=folder)


def plan(folder: Path, *words: str) -> Any:
    (build,) = json.loads(invoke("plan", "--json", *LINUX, *words, cwd=folder).stdout)
    return build


def test_a_file_knows_every_option(tmp_path: Path) -> None:
    lines = [f"{name} = {json.dumps(True if row.switch else ['x'] if row.repeatable else 'x')}"
             for name, row in EVERY.items()]  # fmt: skip
    file = found(tmp_path, "\n".join(lines))
    assert file.values == {
        name: True if row.switch else ("x",) if row.repeatable else "x" for name, row in EVERY.items()
    }


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert found(tmp_path, '\ufeffrelease = "2.20"\n').values == {"release": "2.20"}


def test_the_file_is_that_of_the_folder_or_the_one_that_is_named(tmp_path: Path) -> None:
    assert options_file.find_options_file(folder=tmp_path) == options_file.OptionsFile()
    (tmp_path / "pyproject.toml").write_text("[project\nthis is not TOML")
    assert options_file.find_options_file(folder=tmp_path) == options_file.OptionsFile()
    assert found(tmp_path, '[tool.tfbuild]\nrelease = "2.19"\n', "pyproject.toml").values == {"release": "2.19"}
    with pytest.raises(UsageError, match=r"tfbuild.toml and .*pyproject.toml both have options") as refusal:
        found(tmp_path, "jobs = 8\n")
    assert "--options" in refusal.value.hint
    named = tmp_path / "other.toml"
    named.write_text("jobs = 8\n")
    assert options_file.find_options_file(str(named), tmp_path).values == {"jobs": "8"}


@each(
    "text, message, hint",
    [
        ("with_headers = true", "there is no option 'with_headers'", "with-headers"),
        ('build = "x"', "build is not a list of tables", "[[build]], with its options below it"),
        ("[[build]]\n[[build]]\ncpus = 1", "build 2: there is no option 'cpus'", "cpu"),
        (
            'wheel = "official"\n[[build]]\nwheel = "source"',
            "build 1: wheel has another value above",
            "set wheel only in the tables",
        ),
        ('base = "x:1"\n[[build]]\nbase = "auto"', "build 1: base has another value above", "set base only"),
    ],
)
def test_what_a_file_cannot_say_is_refused_with_what_to_write(
    text: str, message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refusal:
        found(tmp_path, text)
    assert message in refusal.value.reason
    assert hint in refusal.value.hint


@each("content", [b"\xff\xfe", b"\0", b"[" * 5000, b"x = " + b"[" * 5000])
def test_a_file_that_is_none_ends_in_a_message(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tfbuild.toml").write_bytes(content)
    with pytest.raises(UsageError, match="is not TOML"):
        options_file.find_options_file(folder=tmp_path)


def test_the_command_line_wins_and_the_plan_says_where_each_value_is_from(tmp_path: Path) -> None:
    (tmp_path / "tfbuild.toml").write_text(
        'target = "cpu"\nrelease = "2.19"\ncpu = "x86-64-v3"\nconfig = ["a"]\nwith-headers = true\njobs = 8\n'
    )
    build = plan(tmp_path, "--target", "mkl", "--config", "v2")
    assert (build["release"], build["target"], build["with_headers"]) == ("2.19.1", "mkl", True)
    assert "v2" in build["configs"]
    assert "a" not in build["configs"]
    assert {name: (row["value"], row["from"]) for name, row in build["options"].items()} == {
        "target": ("mkl", "command line"), "release": ("2.19", "tfbuild.toml"), "config": (["v2"], "command line"),
        "platform": ("linux/amd64", "command line"), "cpu": ("x86-64-v3", "tfbuild.toml"),
        "with-headers": (True, "tfbuild.toml"),
    }  # fmt: skip
    shown = " ".join(invoke("plan", *LINUX, cwd=tmp_path).stdout.split())
    assert "options target (tfbuild.toml), release (tfbuild.toml), platform (command line)" in shown


def test_a_value_in_a_file_is_refused_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "tfbuild.toml").write_text('bazel = "1; rm -rf /"\ncpu = "x86-64-v3"\n')
    error = invoke("plan", *LINUX, cwd=tmp_path, code=2).stderr
    assert error == invoke("plan", *LINUX, "--bazel", "1; rm -rf /", "--cpu", "x86-64-v3", code=2).stderr
    (tmp_path / "tfbuild.toml").write_text('release = "9.9"\ncpu = "x86-64-v3"\n')
    invoke("plan", *LINUX, cwd=tmp_path, code=Unsupported.exit_code)


ROWS = """
release = "2.20"
platform = "linux/amd64"

[[build]]
target = "mkl"
cpu = "x86-64-v3"
python = "3.12"

[[build]]
target = "cpu"
wheel = "official"
release = "2.19"
"""


def test_a_list_of_builds_is_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "tfbuild.toml").write_text(ROWS)
    matrix = json.loads(invoke("matrix", "--format", "json", cwd=tmp_path).stdout)
    assert [row["id"] for row in matrix["rows"]] == ["2.19.1-cpu-py3.11-avx", "2.20.0-mkl-py3.12-x86-64-v3"]
    for row in matrix["rows"]:
        (build,) = json.loads(invoke("plan", "--json", *shlex.split(row["options"]), cwd=tmp_path).stdout)
        assert build["id"] == row["id"]
    kept = json.loads(invoke("matrix", "--format", "json", "--only", "*mkl*", cwd=tmp_path).stdout)
    assert [row["id"] for row in kept["rows"]] == ["2.20.0-mkl-py3.12-x86-64-v3"]
    (tmp_path / "tfbuild.toml").rename(tmp_path / "fleet.toml")
    assert json.loads(invoke("matrix", "--format", "json", "--options", "fleet.toml", cwd=tmp_path).stdout) == matrix
    assert "tables of fleet.toml are for" in invoke("plan", "--options", "fleet.toml", cwd=tmp_path).stderr


def test_a_file_without_a_list_changes_no_matrix_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "tfbuild.toml").write_text('release = "2.19"\n')
    done = invoke("matrix", "--wheel", "official", "--format", "json", cwd=tmp_path)
    assert "has no [[build]]" not in done.stderr  # the rows were chosen otherwise
    done = invoke("matrix", "--format", "json", cwd=tmp_path)
    assert "note: tfbuild.toml has no [[build]]: its options are for a single build and are ignored here" in done.stderr
    assert {row["release"] for row in json.loads(done.stdout)["rows"]} != {"2.19.1"}
