"""What stands between a command and its first line: few modules, and the options of its own verb."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import tasks
from tfbuild.cli import command_line, repository
from tfbuild.cli.verbs import VERBS

ROOT = Path(__file__).parents[2]
EVERY = {**VERBS, **repository.VERBS}
CODE = """
import contextlib, io, sys
from invoke.program import Program
sys.argv = ["invoke", *sys.argv[1:]]
of_invoke = {*sys.modules}
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    Program(name="Invoke", binary_names=["invoke"]).run(sys.argv)
print(*({*sys.modules} - of_invoke))
"""


def imported(*words: str) -> set[str]:
    """Return what a command imports that Invoke has not imported."""
    command = [sys.executable, "-c", CODE, *words]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("plan", "--target", "mkl"), set[str]()),
        (("plan", "--wheel", "official"), set[str]()),
        (("copts",), {"archspec"}),
        (("detect",), {"archspec"}),
    ],
)
def test_a_verb_imports_nothing_that_it_does_not_use(words: tuple[str, ...], more: set[str]) -> None:
    modules = imported(*words)
    rooms = {name.split(".")[1] for name in modules if name.startswith("tfbuild.")}
    assert rooms == {"binary", "cli", "cpu", "errors", "facts", "plan", "util"}
    libraries = {name.partition(".")[0] for name in modules} - {*sys.stdlib_module_names, "tasks", "tfbuild"}
    # py-cpuinfo's parser makes a module __mp_main__.
    assert libraries <= {"cpuinfo", "__mp_main__", "msgspec", "packaging", "rich", "typing_extensions"} | more
    assert not modules & {"packaging.requirements", "rich._emoji_codes", "rich.live", "rich.progress"}
    assert not modules & {"ctypes.util", "http.client", "sqlite3", "urllib.request", "xml.etree.ElementTree"}


@pytest.mark.parametrize(
    ("command", "verbs"),
    [
        (["/x/bin/invoke", "plan", "--target", "mkl"], ["plan"]),
        (["/x/invoke/__main__.py", "copts", "--cpu=avx", "plan"], ["copts", "plan"]),
        (["tfbuild", "plan"], ["plan"]),
        (["invoke"], sorted(EVERY)),
        (["invoke", "--complete", "--", "plan"], sorted(EVERY)),
        (["invoke", "--list-format=json", "plan"], sorted(EVERY)),
        (["pytest", "-k", "plan"], sorted(EVERY)),
    ],
    ids=" ".join,
)
def test_invoke_gets_the_verbs_of_the_command_line(command: list[str], verbs: list[str]) -> None:
    assert sorted(command_line.named(command, EVERY)) == verbs


def test_garbage_is_collected_once_the_verbs_are_imported() -> None:
    assert tasks.namespace.task_names
    assert gc.isenabled()
