"""The rows of compilers: what is known of which version, where a row begins and ends, and what a mistake is told."""

import pytest

from tfbuild.cpu import compilers
from tfbuild.cpu.compilers import Broken
from tfbuild.errors import Unsupported


@pytest.mark.parametrize("text", ["gcc-12", "gcc12", " GCC-12.2.0 ", "g++-12", "clang++-12", "Clang12.0.1"])
def test_a_compiler_is_found_by_any_usual_spelling(text: str) -> None:
    assert compilers.parse_compiler(text) == ("clang" if "lang" in text else "gcc", 12)


@pytest.mark.parametrize("text", ["gcc-8", "gcc-99", "clang-8", "icc-12", "gcc"])
def test_an_unknown_one_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match=f"unknown compiler '{text}'"):
        compilers.parse_compiler(text)


ROW = Broken(feature="avx", reason="r", source="s", start="2.5.0", before="2.9.0", compiler="clang", since=14, until=17)
ANY = Broken(feature="avx", reason="r", source="s", start="2.5.0")


@pytest.mark.parametrize(
    ("compiler", "version", "release", "concerned", "by_any"),
    [
        ("clang", 14, "2.5.0", True, True), ("clang", 16, "2.8.4", True, True), ("clang", 13, "2.5.0", False, True),
        ("clang", 17, "2.5.0", False, True), ("gcc", 14, "2.5.0", False, True), ("clang", 14, "2.4.4", False, False),
        ("clang", 14, "2.9.0", False, True), ("clang", 14, "2.10.0", False, True), ("clang", 14, "", False, False),
    ],
)  # fmt: skip
def test_a_known_problem_holds_in_half_open_ranges(
    compiler: str, version: int, release: str, concerned: bool, by_any: bool
) -> None:
    assert ROW.concerns(compiler, version, release) is concerned
    assert ANY.concerns(compiler, version, release) is by_any
