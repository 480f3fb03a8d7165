"""Which base, Python and compiler a release gets, what is said of the choice, and where the compiler comes from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.facts import toolchains
from tfbuild.plan import Build, Request, decision, rules

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = toolchains.table().distribution
LLVM = toolchains.table().llvm


def chosen(release: str, **options: Any) -> Build:
    request = Request(release=release, target="mkl", cpu="x86-64-v3", platform="linux/amd64")
    return plan.select(replace(request, **options), None)


# --- the facts --------------------------------------------------------------------------------------------------------


def test_every_base_stands_on_a_known_debian_and_one_is_the_default() -> None:
    names = [row.name for row in DISTRIBUTIONS]
    assert len({(row.python, row.distribution) for row in toolchains.images().base}) == len(toolchains.images().base)
    assert {row.distribution for row in toolchains.images().base} == set(names)
    assert [row.image for row in toolchains.images().base if row.default] == ["python:3.11-slim-bookworm"]
    assert list(toolchains.base_pythons()) == sorted(toolchains.base_pythons(), key=Version)
    assert [row.glibc for row in DISTRIBUTIONS] == sorted((row.glibc for row in DISTRIBUTIONS), key=Version)


def test_mmdebstrap_makes_the_bases_with_debians_own_python() -> None:
    bootstraps = {row.image: row.bootstrap for row in toolchains.images().base if row.bootstrap}
    assert bootstraps == {f"python:{row.python}-slim-{row.name}": row.name for row in DISTRIBUTIONS}
    assert f"Debian has {rules.debian_pythons()}." in (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_llvms_repository_adds_only_what_debian_lacks() -> None:
    for name, added in LLVM.compilers.items():
        distribution = toolchains.distribution(name)
        assert distribution is not None
        assert not set(added) & set(distribution.compilers)
    assert len(LLVM.fingerprint) == 40


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "options", "base", "compiler"),
    [
        ("2.12.1", {}, "3.11-slim-bookworm", "gcc-11"),
        ("2.14.1", {}, "3.11-slim-bookworm", "clang-16"),
        ("2.14.1", {"compiler": "GCC14"}, "3.11-slim-trixie", "gcc-14"),
        ("2.15.1", {}, "3.11-slim-trixie", "clang-17"),
        ("2.17.1", {}, "3.12-slim-trixie", "clang-17"),
        ("2.14.1", {"target": "cuda", "cpu": "armv8.2-a", "platform": ""}, "3.11-slim-bookworm", "gcc-11"),
        ("2.20.0", {}, "3.13-slim-trixie", "clang-18"),
        # Only bases that can be made here; nvcc and trixie's glibc do not go together.
        ("2.15.1", {"base": "bootstrap"}, "3.11-slim-bookworm", "clang-17"),
        ("2.20.0", {"base": "bootstrap", "target": "cuda", "compute_capabilities": "12.0"}, "3.11-slim-bookworm", ""),
    ],
)
def test_the_base_and_the_compiler(release: str, options: dict[str, Any], base: str, compiler: str) -> None:
    build = chosen(release, **options)
    assert (build.base_image, build.python) == (f"python:{base}", base.partition("-")[0])
    assert build.compiler == compiler or not compiler
    named = f"-{compiler}" if "compiler" in options else ""
    assert build.id.endswith(f"-py{build.python}-x86-64-v3{named}") or options.get("target")
    if not options:
        assert plan.usual("x86_64", release) == (release, compiler)
        assert chosen(release, compiler=compiler, python=build.python).id == build.id


def test_notes_say_how_sure_the_choice_is_and_what_the_base_must_have() -> None:
    cuda = chosen("2.14.1", target="cuda").notes
    assert "no known base image has CUDA: name one with CUDA 11.8 and cuDNN 8.7 by --base" in cuda
    # Of 2.14 and 2.15.0, pip cannot install what the extra requires.
    for release, lacks in (("2.13.1", True), ("2.14.1", True), ("2.15.0", True), ("2.15.1", False)):
        assert (decision.NO_CUDA in chosen(release, target="cuda", wheel="official").notes) is lacks
    assert chosen("2.12.1").notes[0].startswith("gcc-11 works for others: EasyBuild")
    notes = chosen("2.12.1", compiler="gcc-13").notes
    assert [note for note in notes if "not certain: nobody is known to have built" in note]


# --- LLVM's own packages ----------------------------------------------------------------------------------------------


def test_clang_comes_from_llvm_where_debian_lacks_it() -> None:
    for base in ("bootstrap", "x/cuda:1-ubuntu22.04", f"docker.io/library/python:3.11-slim-bookworm@sha256:{'0' * 64}"):
        build, suite = chosen("2.15.1", base=base), f"llvm-toolchain-{'jammy' if 'ubuntu' in base else 'bookworm'}-17"
        text = dockerfile.files(build)["Dockerfile"]
        command = f"sh /mnt/llvm.sh https://apt.llvm.org {suite} {LLVM.key} {LLVM.fingerprint} "
        assert 0 < text.index(command) < text.index(" ca-certificates clang-17 ")
        assert "llvm.sh,target=/mnt/llvm.sh" in text
        assert any(f"comes from https://apt.llvm.org ({suite})" in note for note in build.notes)
    assert "llvm.sh" not in dockerfile.files(chosen("2.15.1"))["Dockerfile"]
