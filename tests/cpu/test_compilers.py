"""The rows of compilers: what is known of which version, where a row begins and ends, and what a mistake is told."""

import pytest

from tfbuild.cpu import compilers
from tfbuild.cpu.compilers import Broken
from tfbuild.errors import Unsupported

GCC, CLANG = ({row.name: row.versions for row in compilers.table().compiler}[name] for name in ("gcc", "clang"))


@pytest.mark.parametrize("text", ["gcc-12", "gcc12", " GCC-12.2.0 ", "g++-12", "clang++-12", "Clang12.0.1"])
def test_a_compiler_is_found_by_any_usual_spelling(text: str) -> None:
    assert compilers.find(text) == ("clang" if "lang" in text else "gcc", 12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gcc-8", "gcc-9, gcc-10, gcc-11"),
        ("gcc-99", f"gcc-{GCC[-1]}, gcc-{GCC[-2]}, gcc-{GCC[-3]}"),
        ("clang-8", "clang-9, clang-10, clang-11"),
        ("icc-12", f"gcc-{GCC[-1]}, clang-{CLANG[-1]}"),
        ("gcc", f"gcc-{GCC[-1]}, clang-{CLANG[-1]}"),
    ],
)
def test_an_unknown_one_is_told_the_nearest(text: str, told: str) -> None:
    with pytest.raises(Unsupported) as refused:
        compilers.find(text)
    assert refused.value.reason == f"unknown compiler {text!r}"
    assert refused.value.hint == f"its flags were tried with: {told}"


ROW = Broken(feature="avx", reason="r", source="s", start="2.5.0", before="2.9.0", compiler="clang", since=14, until=17)
ANY = Broken(feature="avx", reason="r", source="s", start="2.5.0")


@pytest.mark.parametrize(
    ("compiler", "version", "release", "concerned", "by_any"),
    [
        ("clang", 14, "2.5.0", True, True),
        ("clang", 16, "2.8.4", True, True),
        ("clang", 13, "2.5.0", False, True),
        ("clang", 17, "2.5.0", False, True),
        ("gcc", 14, "2.5.0", False, True),
        ("clang", 14, "2.4.4", False, False),
        ("clang", 14, "2.9.0", False, True),
        ("clang", 14, "2.10.0", False, True),
        ("clang", 14, "", False, False),
    ],
)
def test_a_known_problem_holds_in_half_open_ranges(
    compiler: str, version: int, release: str, concerned: bool, by_any: bool
) -> None:
    assert ROW.concerns(compiler, version, release) is concerned
    assert ANY.concerns(compiler, version, release) is by_any


def test_a_name_tunes_badly_from_its_first_version_to_before_its_last() -> None:
    def slow(name: str, compiler: str) -> list[int]:
        versions = GCC if compiler == "gcc" else CLANG
        return [version for version in versions if compilers.slow(name, compiler, version, "x86_64")]

    assert slow("znver3", "gcc") == [11, 12]
    assert slow("skylake", "clang") == [version for version in CLANG if version >= 14]
    assert slow("skylake", "gcc") == slow("znver3", "clang") == slow("haswell", "clang") == []
    row = compilers.slow("zen3", "gcc", 12, "x86_64")
    assert row is not None
    assert row.name == "znver3"
