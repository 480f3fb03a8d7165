"""What kind of program an ELF file is."""

import platform
import sys
from pathlib import Path

import pytest

from tests.binary import libraries
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


def test_what_a_program_exports_and_needs_is_read() -> None:
    read = read_program(OWN)
    assert any(name.startswith("libc.") for name in read.needed)
    assert "Py_BytesMain" in read.exports or any("libpython" in name for name in read.needed)
    assert not {"malloc", "__libc_start_main"} & read.exports, "it takes these from others"


@pytest.mark.parametrize("name", ["Py_BytesMain", "_Py_UnixMain", "Py_Main"])
def test_each_way_to_start_cpython_is_one(name: str) -> None:
    assert python_version(b"\0003.7.9\0", program(name)) == "3.7"


def test_a_library_for_arm_is_told(tmp_path: Path) -> None:
    machines = {183: "aarch64", 62: "x86_64"}
    for number, arch in machines.items():
        record = libraries.recorded("tensorflow_cpu-2.21.0")
        read = read_program(libraries.library(record, machine=number))
        assert (read.arch, read.needed) == (arch, ())
