"""What kind of program an ELF file is."""

import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.binary import libraries
from tests.rows import each
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
    with pytest.raises(ValueError, match="not an ELF program"):
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


# --- small files that would fill the memory ---------------------------------------------------------------------------

MIB = 1 << 20
LONG = b"\0" + b"A" * MIB + b"\0"
READ = """
import resource, sys
from pathlib import Path
from tfbuild.binary import guard, program, scan
from tfbuild.errors import TfbuildError

path = Path(sys.argv[1])
content = path.read_bytes()
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
readers = [lambda: program.read_program(content), lambda: scan.read_code(path)]
readers.append(lambda: guard.read_guard(path, "2.21.0"))
for read in readers:
    try:
        read()
    except (TfbuildError, ValueError):
        pass
"""


def tables(symbols: bytes = b"", dynamic: bytes = b"") -> bytes:
    """An ELF file whose dynamic names are one of a MiB, of which each end is a name too."""
    parts = [(".dynsym", libraries.DYNSYM, symbols), (".dynstr", libraries.STRTAB, LONG), (".dynamic", 6, dynamic)]
    return libraries.elf(
        [libraries.Part(name=name, kind=kind, address=0, content=content) for name, kind, content in parts]
    )


def sections() -> bytes:
    """An ELF file whose sections' names are the ends of one name of a MiB."""
    names = [LONG[1:-1].decode(), *("" for _ in range(900))]
    content = bytearray(libraries.elf([libraries.Part(name=name, kind=1, address=0, content=b"") for name in names]))
    (headers,) = struct.unpack_from("<Q", content, 40)
    for number in range(1, len(names) + 1):
        struct.pack_into("<I", content, headers + 64 * number, number)
    return bytes(content)


HOSTILE = {
    "symbols": tables(symbols=b"".join(struct.pack("<IBBHQQ", n, 2, 0, 1, 0, 0) for n in range(1, 40_000))),
    "needed libraries": tables(dynamic=b"".join(struct.pack("<qQ", 1, n) for n in range(1, 60_000))),
    "sections": sections(),
}


@each("content", HOSTILE)
def test_names_that_overlap_take_no_memory(content: str, tmp_path: Path) -> None:
    """Each file has 2 MB, and would take 1 to 40 GB if each name in it were kept."""
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[content])
    # Most of it is Python, with its own libraries, and threads' stacks that are only reserved.
    command = [sys.executable, "-c", READ, str(path), str(768 * MIB)]
    subprocess.run(command, check=True)
