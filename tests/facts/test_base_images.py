"""Which base, Python and compiler a release gets, what is said of the choice, and where the compiler comes from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version

from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.errors import Unsupported
from tfbuild.facts import releases, toolchains
from tfbuild.pipeline import base_image
from tfbuild.plan import Build, Request, rules
from tfbuild.util.progress import Progress

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = toolchains.table().distribution
LLVM = toolchains.table().llvm


def chosen(release: str, **options: Any) -> Build:
    request = Request(release=release, target="mkl", cpu="x86-64-v3", platform="linux/amd64")
    return plan.select(replace(request, **options), None)


# --- the facts --------------------------------------------------------------------------------------------------------


def test_every_base_stands_on_a_known_debian_and_one_is_the_default() -> None:
    names = [row.name for row in DISTRIBUTIONS]
    assert len({(row.python, row.distribution) for row in toolchains.bases()}) == len(toolchains.bases())
    assert {row.distribution for row in toolchains.bases()} == set(names)
    assert [row.image for row in toolchains.bases() if row.default] == ["python:3.11-slim-bookworm"]
    assert list(toolchains.base_pythons()) == sorted(toolchains.base_pythons(), key=Version)
    assert [row.glibc for row in DISTRIBUTIONS] == sorted((row.glibc for row in DISTRIBUTIONS), key=Version)


def test_mmdebstrap_makes_the_bases_with_debians_own_python() -> None:
    bootstraps = {row.image: row.bootstrap for row in toolchains.bases() if row.bootstrap}
    assert bootstraps == {f"python:{row.python}-slim-{row.name}": row.name for row in DISTRIBUTIONS}
    assert bootstraps["python:3.11-slim-bookworm"] == "bookworm"


def test_a_debian_release_is_a_row_that_gives_a_base_and_a_python(monkeypatch: pytest.MonkeyPatch) -> None:
    pythons = plan.debian_pythons().replace(" and ", ", ")
    assert f"Debian has {plan.debian_pythons()}." in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    duke = msgspec.structs.replace(DISTRIBUTIONS[-1], name="duke", python="3.16")
    table = msgspec.structs.replace(toolchains.table(), distribution=(*DISTRIBUTIONS, duke))
    monkeypatch.setattr(toolchains, "table", lambda: table)
    assert toolchains.BaseImage(python="3.16", distribution="duke").bootstrap == "duke"
    with pytest.raises(Unsupported) as refusal:
        base_image.resolve(
            Engine.__new__(Engine), "python:3.12-slim-duke", "", "bootstrap", progress=Progress(), log=Path("log")
        )
    assert f"Debian has {pythons} and 3.16)" in refusal.value.hint


def test_llvms_repository_adds_only_what_debian_lacks() -> None:
    for name, added in LLVM.compilers.items():
        distribution = toolchains.distribution(name)
        assert distribution is not None
        assert not set(added) & set(distribution.compilers)
    assert len(LLVM.fingerprint) == 40


def test_every_sure_word_of_a_compilers_row_has_a_place_in_the_order() -> None:
    for release in releases.newest_first():
        known = releases.compilers(release)
        assert [row.certain for row in known] == sorted((row.certain for row in known), reverse=True)


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "python", "distribution", "compiler"),
    [
        ("2.12.1", "3.11", "bookworm", "gcc-11"),
        ("2.14.1", "3.11", "bookworm", "clang-16"),
        ("2.15.1", "3.11", "trixie", "clang-17"),
        ("2.17.1", "3.12", "trixie", "clang-17"),
        ("2.19.1", "3.12", "trixie", "clang-18"),
        ("2.20.0", "3.13", "trixie", "clang-18"),
    ],
)
def test_the_default(release: str, python: str, distribution: str, compiler: str) -> None:
    build = chosen(release)
    assert (build.python, build.compiler) == (python, compiler)
    assert build.base_image == f"python:{python}-slim-{distribution}"
    assert build.id == f"{release}-mkl-py{python}-x86-64-v3"
    assert plan.usual("x86_64", release) == (release, compiler)


def test_a_python_that_is_named_gets_the_surest_compiler_that_its_bases_have() -> None:
    build = chosen("2.20.0", python="3.11")
    assert (build.base_image, build.compiler) == ("python:3.11-slim-trixie", "clang-18")


def test_a_compiler_that_is_named_decides_the_base_and_stands_in_the_identifier() -> None:
    build = chosen("2.14.1", compiler="GCC14")
    assert (build.base_image, build.id) == ("python:3.11-slim-trixie", "2.14.1-mkl-py3.11-x86-64-v3-gcc-14")
    assert chosen("2.12.1", compiler="gcc-11", python="3.11").id == chosen("2.12.1").id


@pytest.mark.parametrize(
    ("release", "options", "base"),
    [
        ("2.15.1", {}, "python:3.11-slim-bookworm"),
        # nvcc and trixie's glibc do not go together.
        ("2.20.0", {"target": "cuda", "compute_capabilities": "12.0"}, "python:3.11-slim-bookworm"),
    ],
)
def test_only_bases_that_can_be_made_here_are_taken_where_that_was_asked_for(
    release: str, options: dict[str, Any], base: str
) -> None:
    build = chosen(release, base="bootstrap", **options)
    assert (build.base_image, build.base_distribution) == (base, base.rpartition("-")[2])


def test_a_python_without_such_a_base_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"no base image with Python 3\.12 can be made by mmdebstrap") as refusal:
        chosen("2.20.0", python="3.12", base="bootstrap")
    assert refusal.value.hint == "one of: 3.11, 3.13; or --base registry"
    with pytest.raises(Unsupported, match="gcc-14 is not in bookworm, on which"):
        chosen("2.20.0", python="3.11", compiler="gcc-14", base="bootstrap")


def test_a_base_of_ones_own_has_the_official_wheels_compiler() -> None:
    build = chosen("2.15.1", base="mine:1")
    assert (build.compiler, build.base_image, build.base_distribution) == ("clang-17", "mine:1", "")


@pytest.mark.parametrize(
    ("python", "image"),
    [("3.11", "python:3.11-slim-bookworm"), ("3.12", "python:3.12-slim-bookworm"), ("3.13", "python:3.13-slim-trixie")],
)
def test_the_base_of_a_wheel_is_one_that_can_be_made_here_if_there_is_one(python: str, image: str) -> None:
    assert rules.base_for_wheel(python).image == image


def test_refusals_name_what_there_is() -> None:
    with pytest.raises(Unsupported, match=r"gcc-16 is not in bookworm, trixie, on .* Python 3\.11") as refusal:
        chosen("2.14.1", compiler="gcc-16")
    assert refusal.value.hint.startswith("--compiler with one of: gcc-11, gcc-12")
    with pytest.raises(Unsupported, match=r"does not support Python 3\.10") as missing:
        chosen("2.14.1", python="3.10")
    assert missing.value.hint == "--python 3.11"


# --- what is said of it -----------------------------------------------------------------------------------------------


def test_notes_say_what_was_passed_over_and_how_sure_the_choice_is() -> None:
    assert chosen("2.12.1").notes[0].startswith("gcc-11 works for others: EasyBuild")
    assert any(
        "not certain: nobody is known to have built" in note for note in chosen("2.12.1", compiler="gcc-13").notes
    )


def test_a_release_that_takes_cuda_from_its_base_says_so() -> None:
    request = Request(release="2.14.1", target="cuda", cpu="x86-64-v3", platform="linux/amd64")
    assert (
        "no known base image has CUDA: name one with CUDA 11.8 and cuDNN 8.7 by --base"
        in plan.select(request, None).notes
    )


# --- LLVM's own packages ----------------------------------------------------------------------------------------------


def test_clang_comes_from_llvm_where_debian_lacks_it() -> None:
    build = chosen("2.15.1", base="bootstrap")
    files = dockerfile.files(build)
    command = f"sh /mnt/llvm.sh https://apt.llvm.org llvm-toolchain-bookworm-17 {LLVM.key} {LLVM.fingerprint} "
    assert command in files["Dockerfile"]
    assert files["Dockerfile"].index(command) < files["Dockerfile"].index(" ca-certificates clang-17 ")
    assert "llvm.sh,target=/mnt/llvm.sh" in files["Dockerfile"]
    assert any("comes from https://apt.llvm.org (llvm-toolchain-bookworm-17)" in note for note in build.notes)
    own = dockerfile.files(chosen("2.15.1"))
    assert "llvm.sh" not in own
    assert "llvm.sh" not in own["Dockerfile"]
