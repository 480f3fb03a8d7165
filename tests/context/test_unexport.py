"""unexport.py on libraries that the compiler of this machine makes: they export less, and run as before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.checkout import ROOT

PROGRAM = ROOT / "templates" / "unexport.py"
SLIM = ROOT / "templates" / "slim.sh"
LIBRARY = """
#include <new>
#include <stdexcept>
#include <cstdlib>
namespace a_name_that_is_about_as_long_as_that_of_one_of_the_expressions_in_a_kernel_of_tensorflow {
template <int N> int helper(int n) {
    if (n < 0) throw std::runtime_error("negative");
    return n + N;
}
template <int N> struct Kernel {
    virtual int run(int n) { return helper<N>(n) + helper<N + 1>(n); }
    virtual ~Kernel() {}
};
template <int N> inline int calls() { static int count = 0; return ++count; }
template <int N> struct Sum {
    static int of(int n) { return Kernel<N>().run(n) + calls<N>() + Sum<N - 1>::of(n); }
};
template <> struct Sum<0> { static int of(int) { return 0; } };
int (*table[])(int) = {helper<300>, helper<301>};
}
using namespace a_name_that_is_about_as_long_as_that_of_one_of_the_expressions_in_a_kernel_of_tensorflow;
__attribute__((weak)) void operator delete(void *pointer) noexcept { std::free(pointer); }
extern "C" int total(int n) {
    int (*volatile taken)(int) = helper<302>;
    try {
        return Sum<200>::of(n) + table[0](n) + table[1](n) + taken(n);
    } catch (const std::exception &) {
        return -1;
    }
}
"""
BESIDE = """
namespace a_name_that_is_about_as_long_as_that_of_one_of_the_expressions_in_a_kernel_of_tensorflow {
template <int N> int helper(int n);
extern template int helper<7>(int);
}
extern "C" int beside(int n) {
    return a_name_that_is_about_as_long_as_that_of_one_of_the_expressions_in_a_kernel_of_tensorflow::helper<7>(n);
}
"""
MAIN = """
#include <cstdio>
extern "C" int total(int), beside(int);
int main() { std::printf("%d %d %d", total(1), total(-1), beside(2)); }
"""
LINKED = ["g++", "main.cc", "-o", "main", "-L.", "-lbeside", "-lkernels", "-Wl,-rpath,$ORIGIN,-z,lazy"]
SAID = "{} -1 9"  # total(1): each kernel's sum is 2 n + 2 N + 1, and it has been called once

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="it needs a compiler for C++")


def compiled(folder: Path, *options: str) -> Path:
    """Make the library, one beside it that needs one of its functions, and a program that is linked with both."""
    for name, text in (("kernels", LIBRARY), ("beside", BESIDE), ("main", MAIN)):
        (folder / f"{name}.cc").write_text(text)
    shared = ["g++", "-shared", "-fPIC", "-O0"]
    library = folder / "libkernels.so"
    commands = [
        [*shared, "kernels.cc", "-o", library.name, *options],
        [*shared, "beside.cc", "-o", "libbeside.so"],
        LINKED,
    ]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True)
    return library


def run(folder: Path, **env: str) -> str:
    main = [str(folder / "main")]
    return subprocess.run(main, env=os.environ | env, capture_output=True, text=True, check=True).stdout


def unexport(library: Path) -> str:
    command = [sys.executable, str(PROGRAM), str(library), str(library.parent)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exported(library: Path) -> set[str]:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        return {symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("-Wl,-z,max-page-size=65536",),
        ("-Wl,-z,noseparate-code", "-s"),
        ("-Wl,-z,pack-relative-relocs",),
    ],
)
def test_a_library_exports_less_and_runs_as_before(tmp_path: Path, options: tuple[str, ...]) -> None:
    library = compiled(tmp_path, *options)
    before, size, said = exported(library), library.stat().st_size, run(tmp_path)
    assert said == SAID.format(sum(2 + 2 * n + 1 + 1 for n in range(1, 201)) + 3 * 1 + 300 + 301 + 302)
    printed = unexport(library)
    after = exported(library)
    gone = before - after
    assert f"exports {len(gone):,} functions less: {size - library.stat().st_size:,} bytes" in printed
    # Every instance but the one that the other library asks for.
    kernels = {name for name in before if "Kernel" in name and not name.startswith(("_ZTV", "_ZTI", "_ZTS"))}
    helpers = {name for name in before if "helper" in name}
    (asked,) = (name for name in helpers if "ILi7EE" in name)
    assert kernels | helpers - {asked} <= gone
    assert {"total", asked, "_ZdlPv"} <= after
    assert {name for name in before if name.startswith(("_ZTV", "_ZTI", "_ZTS", "_ZZ", "_ZGV"))} <= after
    for env in ({}, {"LD_BIND_NOW": "1"}):
        assert run(tmp_path, **env) == said
    # The tools that read, link and strip a library take it.
    read = subprocess.run(["readelf", "-aW", library], capture_output=True, text=True, check=True)
    assert read.stderr == ""
    subprocess.run(LINKED, cwd=tmp_path, check=True)
    subprocess.run(["strip", "--strip-unneeded", library], check=True)
    assert run(tmp_path) == said


def test_a_library_of_another_layout_is_left_as_it_is(tmp_path: Path) -> None:
    library = compiled(tmp_path, "-Wl,--hash-style=both")
    before = library.read_bytes()
    assert unexport(library) == "tfbuild: libkernels.so exports what it did: a hash table of the older kind\n"
    assert library.read_bytes() == before
    assert {path.name for path in tmp_path.glob("lib*")} == {"libkernels.so", "libbeside.so"}


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\x02\x01\x01", b"INPUT(libkernels.so.1)", b"\x7fELF\x02\x01\x01" + b"\xff" * 999]
)
def test_what_is_no_library_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libkernels.so"
    library.write_bytes(content)
    assert unexport(library).startswith("tfbuild: libkernels.so exports what it did: ")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [content]


@pytest.mark.slow
@pytest.mark.parametrize(("headers", "kept"), [("no-headers", False), ("headers", True)])
def test_slim_takes_names_from_the_large_library_unless_headers_are_kept(
    tmp_path: Path, headers: str, kept: bool
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    package = site / "tensorflow"
    (package / "include").mkdir(parents=True)
    for number, name in enumerate(("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")):
        text = LIBRARY.replace("a_name", f"name_{number}") + 'asm(".data; .zero 101 << 20; .text");'
        (tmp_path / "large.cc").write_text(text)
        subprocess.run(["g++", "-shared", "-fPIC", "-O0", tmp_path / "large.cc", "-o", package / name], check=True)
    before = {path.name: exported(path) for path in package.glob("*.so.2")}
    subprocess.run(["sh", SLIM, venv, headers], check=True)
    after = {path.name: exported(path) for path in package.glob("*.so.2")}
    assert (after["libtensorflow_cc.so.2"] == before["libtensorflow_cc.so.2"]) is kept
    assert after["libtensorflow_framework.so.2"] == before["libtensorflow_framework.so.2"]


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    library = compiled(tmp_path)
    unexport(library)
    before = library.read_bytes()
    assert "exports what it did: nothing to gain" in unexport(library)
    assert library.read_bytes() == before
