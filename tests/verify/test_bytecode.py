"""Bytecode is compared with what its source compiles to, by the Python that would load it."""

import importlib.util
import json
import marshal
import py_compile
import struct
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from tests.rows import each
from tfbuild.in_container.smoke import bytecode

FOLDER = Path(bytecode.__file__).parents[1]
SHOW = """
import json, sys
sys.path.insert(0, sys.argv[1])
from smoke.bytecode import compared
print(json.dumps(compared(sys.argv[2:])))
"""
SOURCE = '''
"""A module."""
import os
def one(x, *, y=(1, 2.0, "3", b"4", None, ..., -0.0)):
    try:
        return {x: y} if x in {"a", "b", "c", 1} else [z for z in y]
    except (ValueError, OSError):
        assert x, "why"
        raise
class Two:
    def three(self): return lambda: (yield 5j)
'''
EVIL = SOURCE.replace("return {x: y}", "return {y: x}")


def compared(folder: Path) -> tuple[int, list[str]]:
    command = [sys.executable, "-I", "-S", "-B", "-X", "pycache_prefix=/nowhere", "-c", SHOW, str(FOLDER), str(folder)]
    count, wrong = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return count, [Path(path).name for path in wrong]


def compiled(folder: Path, name: str = "x", optimize: int = 0, mode: str = "UNCHECKED_HASH") -> Path:
    """A source in the folder and its bytecode."""
    (folder / f"{name}.py").write_text(SOURCE)
    invalidation = py_compile.PycInvalidationMode[mode]
    return Path(str(py_compile.compile(str(folder / f"{name}.py"), optimize=optimize, invalidation_mode=invalidation)))


def forge(path: Path, code: CodeType) -> None:
    path.write_bytes(path.read_bytes()[:16] + marshal.dumps(code))


def test_bytecode_of_every_kind_comes_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for number, mode in enumerate(("UNCHECKED_HASH", "CHECKED_HASH", "TIMESTAMP")):
        for optimize in (0, 1, 2):
            compiled(tmp_path / "sub", f"x{number}", optimize, mode)
    assert compared(tmp_path) == (9, [])


def code(source: str, optimize: int = 0) -> CodeType:
    return compile(source, "x.py", "exec", dont_inherit=True, optimize=optimize)


@each(
    "forged",
    [
        code(EVIL),
        code(SOURCE + "os.x = 1\n"),
        code(SOURCE.replace("5j", "6j")),
        code(SOURCE.replace("-0.0", "0.0")),
        code(SOURCE.replace("(1, 2.0", "(True, 2.0")),
        code(SOURCE.replace('"c", 1}', '"c", 2}')),
        code(SOURCE.replace("OSError)", "EOFError)")),
        code(SOURCE, optimize=1),
        code(SOURCE).replace(co_consts=(*code(SOURCE).co_consts, 1)),
    ],
)
@each("optimize", [0, 2])
def test_other_code_is_found(forged: CodeType, optimize: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("forged")
    path = compiled(folder, optimize=optimize)
    forge(path, forged)
    assert compared(folder) == (1, [path.name])


def test_other_code_of_an_exception_is_found(tmp_path: Path) -> None:
    """Where a handler begins is in a table beside the code (from Python 3.11 on)."""
    real = code("try:\n    x()\nexcept ValueError:\n    y()\n")
    path = compiled(tmp_path)
    (tmp_path / "x.py").write_text("try:\n    x()\nexcept ValueError:\n    y()\n")
    forge(path, real)
    assert compared(tmp_path) == (1, [])
    forge(path, real.replace(co_exceptiontable=b""))
    assert compared(tmp_path) == (1, [path.name])


@each("content", [b"", b"\0" * 20, b"\xff" * 99, marshal.dumps((1,)), marshal.dumps("text")])
def test_bytecode_that_is_no_code_is_found(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("none")
    path = compiled(folder)
    path.write_bytes(path.read_bytes()[:16] + content)
    assert compared(folder) == (1, [path.name])


def test_bytecode_without_a_source_is_found_where_python_loads_it(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    (tmp_path / "y.pyc").write_bytes(path.read_bytes())
    (tmp_path / "x.py").unlink()
    # Python does not look into __pycache__ for what has no source.
    assert compared(tmp_path) == (2, ["y.pyc"])


def test_bytecode_that_python_would_not_load_is_passed_over(tmp_path: Path) -> None:
    """Of another Python, and of another time than its source's."""
    path = compiled(tmp_path, mode="TIMESTAMP")
    forge(path, code(EVIL))
    assert compared(tmp_path) == (1, [path.name])
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 8, 1)
    path.write_bytes(content)
    assert compared(tmp_path) == (1, [])
    path.rename(path.with_name("x.cpython-27.pyc"))
    assert compared(tmp_path) == (0, [])


def test_the_comparison_runs_none_of_the_bytecode_beside_its_own_sources(tmp_path: Path) -> None:
    """Its own modules could be forged, too: with the option that the check gives, they are compiled."""
    smoke = tmp_path / "smoke"
    smoke.mkdir()
    for name in ("__init__.py", "bytecode.py"):
        (smoke / name).write_bytes((FOLDER / "smoke" / name).read_bytes())
    forged = Path(importlib.util.cache_from_source(str(smoke / "bytecode.py")))
    py_compile.compile(str(smoke / "bytecode.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    forge(forged, code("def compared(folders): return 0, ('forged',)\n"))
    for option, shown in (([], [0, ["forged"]]), (["-X", "pycache_prefix=/nowhere"], [0, []])):
        command = [sys.executable, "-I", "-S", "-B", *option, "-c", SHOW, str(tmp_path), str(tmp_path / "empty")]
        assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == shown
