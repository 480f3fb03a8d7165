"""What stands between a command and its first line: few modules, and none of Invoke's where `tfbuild` is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import contextlib, io, sys
from tfbuild.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main()
print(*sys.modules)
"""


def imported(*words: str) -> set[str]:
    command = [sys.executable, "-c", CODE, *words]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("plan", "--target", "mkl"), set[str]()),
        (("plan", "--wheel", "official"), set[str]()),
        (("copts",), set[str]()),
        (("copts", "--cpu", "haswell"), {"archspec"}),
        (("detect",), set[str]()),
    ],
)
def test_a_verb_imports_nothing_that_it_does_not_use(words: tuple[str, ...], more: set[str]) -> None:
    modules = imported(*words)
    rooms = {name.split(".")[1] for name in modules if name.startswith("tfbuild.")}
    assert rooms - {"bench"} == {"__main__", "cli", "cpu", "errors", "facts", "plan", "util"}
    assert ("bench" in rooms) == (words == ("detect",)), "its table of gains"
    libraries = {name.partition(".")[0] for name in modules} - {*sys.stdlib_module_names, "tfbuild"}
    # setuptools has the last one.
    assert libraries <= {"msgspec", "packaging", "typing_extensions", "__main__", "_distutils_hack", *more}
    assert not modules & {"packaging.requirements", "packaging.utils"}
    slow = {"difflib", "hashlib", "importlib.metadata", "importlib.resources", "shutil", "tarfile", "tempfile"}
    assert not modules & slow
    assert not modules & {"ctypes.util", "http.client", "sqlite3", "urllib.request", "xml.etree.ElementTree"}
