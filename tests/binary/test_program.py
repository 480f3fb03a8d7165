"""What kind of program an ELF file is."""

import platform
import sys
from pathlib import Path

import pytest

from tfbuild.binary.program import Program, python_version, read_program

OWN = Path(sys.executable).resolve().read_bytes()
NAMED = b"\x003.2.0\x00\x003.12.4+\x00"


def program(*exports: str, needed: tuple[str, ...] = ()) -> Program:
    return Program(arch="x86_64", exports=frozenset(exports), needed=needed)


def test_this_python_is_one() -> None:
    read = read_program(OWN)
    assert read.arch == platform.machine()
    assert python_version(OWN, read) == "{}.{}".format(*sys.version_info[:2])


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\nexec true\n", OWN[:1000], OWN[:4] + b"\0" * 100])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no ELF program"):
        read_program(content)


def test_a_python_with_a_shared_library_is_known_by_it() -> None:
    assert python_version(b"", program("main", needed=("libpython3.7m.so.1.0", "libc.so.6"))) == "3.7"
    assert python_version(b"", program("main", needed=("libpython3.14.so.1.0",))) == "3.14"


def test_a_program_that_only_names_versions_is_no_python() -> None:
    assert python_version(NAMED, program("Py_BytesMain")) == "3.12"
    assert python_version(NAMED, program("main", "PyObject_Call")) == ""
    assert python_version(b"", program("Py_BytesMain")) == ""
    assert python_version(NAMED, program("main", needed=("libpython3.11-evil.so",))) == ""
