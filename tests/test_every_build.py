"""Every release for every target and four CPUs: a plan that is rendered and linted, or a refusal that is known here."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from packaging.version import Version

from tests.test_dockerfile import runs
from tfbuild import dockerfile, releases
from tfbuild.errors import TfbuildError, UncertainFact, UnknownRelease
from tfbuild.plan import TARGETS, Build, Request, select

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CPUS = {"x86-64-v2": "linux/amd64", "x86-64-v3": "linux/amd64", "x86-64-v4": "linux/amd64", "armv8.2-a": "linux/arm64"}
# Which Bazel 2.19 needs is not certain: it is forced, as the refusal says.
BAZEL = {"2.19.0": "6.5.0", "2.19.1": "6.5.0"}
# An image that is named may have any compiler: what Debian's releases lack has tests of its own.
BASE = "a-base:1"


def planned(release: str, target: str, cpu: str) -> Build:
    request = Request(
        release=release, target=target, cpu=cpu, platform=CPUS[cpu], base=BASE, bazel=BAZEL.get(release, "")
    )
    return select(request, None)


def refusal(release: str, target: str, cpu: str) -> type[TfbuildError] | None:
    """The refusals that the facts ask for: oneDNN on Arm before 2.5, and in 2.21, whose configs nobody has seen."""
    if target != "mkl":
        return None
    if cpu.startswith("arm"):
        before = Version(release)
        return UnknownRelease if before < Version("2.4") else UncertainFact if before < Version("2.5") else None
    return UncertainFact if Version(release) >= Version("2.21") else None


def everything() -> list[tuple[str, str, str]]:
    return [(row.version, target, cpu) for row, target, cpu in product(releases.releases(), TARGETS, CPUS)]


@cache
def rendered() -> dict[str, dict[str, str]]:
    """The files of every build that is not refused, by its identifier."""
    builds = [planned(*one) for one in everything() if refusal(*one) is None]
    return {build.id: dockerfile.files(build) for build in builds}


def tool(program: str, option: str, paths: list[Path]) -> str:
    """What it says of the files, which it reads on all processors; "" where it accepts them all."""
    count = os.cpu_count() or 1

    def part(number: int) -> str:
        done = subprocess.run(
            [BIN / program, option, *paths[number::count]], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")

    with ThreadPoolExecutor(count) as pool:
        return "".join(pool.map(part, range(count)))


def test_what_is_refused_is_refused_for_a_known_reason() -> None:
    for release, target, cpu in everything():
        if expected := refusal(release, target, cpu):
            with pytest.raises(expected) as found:
                planned(release, target, cpu)
            assert found.value.hint


def test_all_others_are_rendered() -> None:
    asked = everything()
    assert len(rendered()) == len(asked) - sum(refusal(*one) is not None for one in asked)
    assert len(rendered()) > 800


def test_hadolint_accepts_every_dockerfile(tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate({without_names(files["Dockerfile"]) for files in rendered().values()}):
        paths.append(tmp_path / f"Dockerfile.{number}")
        paths[-1].write_text(text, encoding="utf-8")
    assert len(paths) > 100
    assert tool("hadolint", f"--config={ROOT}/.hadolint.yaml", paths) == ""


def without_names(text: str) -> str:
    """A Dockerfile that differs from others only by what no linter reads becomes equal to them: 840 take a minute."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"^(    (?:io\.tfbuild|org\.opencontainers)[a-z.-]+)=\"[^\"$]*\"", r'\1="x"', text, flags=re.MULTILINE
    )
    return re.sub(r"id=tfbuild-bazel-[^,]+", "id=x", text)


def test_shellcheck_accepts_every_run_and_every_script(tmp_path: Path) -> None:
    commands = {run for files in rendered().values() for run in runs(files["Dockerfile"])}
    scripts = {text for files in rendered().values() for text in files.values() if text.startswith("#!/bin/sh")}
    assert len(commands) > 100
    both = [f"#!/bin/sh\n# shellcheck disable=SC1091,SC2154\n{command}\n" for command in sorted(commands)]
    paths = []
    for number, text in enumerate([*both, *sorted(scripts)]):
        paths.append(tmp_path / f"{number}.sh")
        paths[-1].write_text(text, encoding="utf-8")
    assert tool("shellcheck", "--shell=dash", paths) == ""
