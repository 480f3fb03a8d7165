"""Every release for every target and four CPUs: a plan that is rendered and linted."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tests.commandline import tool
from tests.context.test_dockerfile import runs
from tfbuild.context import dockerfile
from tfbuild.facts import releases, targets, toolchains
from tfbuild.plan import Build, Request, select
from tfbuild.plan.failures import KNOWN_TO_FAIL

# A build's identifier, in the advice that an entry point gives.
NAMED = re.compile(rf"\d+\.\d+\.\d+-({'|'.join(targets.names())})-[\w.+-]+")
CPUS = {"x86-64-v2": "linux/amd64", "x86-64-v3": "linux/amd64", "x86-64-v4": "linux/amd64", "armv8.2-a": "linux/arm64"}


def planned(release: str, target: str, cpu: str) -> Build:
    return select(Request(release=release, target=target, cpu=cpu, platform=CPUS[cpu]), None)


def everything() -> list[tuple[str, str, str]]:
    return [(row.version, target, cpu) for row, target, cpu in product(releases.releases(), targets.names(), CPUS)]


@cache
def rendered() -> dict[str, dict[str, str]]:
    """The files of every build, by its identifier."""
    builds = [planned(*one) for one in everything()]
    return {build.id: dockerfile.files(build) for build in builds}


def test_all_are_rendered() -> None:
    assert len(rendered()) == len(everything()) > 200


def test_no_default_plan_is_known_to_fail_and_its_base_has_its_compiler() -> None:
    for one in everything():
        build = planned(*one)
        assert not [note for note in build.notes if KNOWN_TO_FAIL in note], one
        debian = toolchains.debian_of(build.base_image)
        assert debian, one
        assert build.compiler in toolchains.compilers(debian), one


def without_names(text: str) -> str:
    """A Dockerfile that differs from others only by what no linter reads becomes equal to them: 840 take a minute."""
    text = re.sub(r"^#(?! hadolint).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(
        r"^(    (?:io\.tfbuild|org\.opencontainers)[a-z.-]+)=\"[^\"$]*\"", r'\1="x"', text, flags=re.MULTILINE
    )
    text = re.sub(r"(source\.sh git) v\S+ \"\w*\"", r'\1 v1.0.0 "x"', text)
    return alike(re.sub(r"id=tfbuild-bazel-[^,]+", "id=x", text))


def alike(text: str) -> str:
    """The same for digests, versions and features: to a linter one is as good as another."""
    text = re.sub(r"\b[0-9a-f]{40,64}\b", "0" * 40, text)
    text = re.sub(r"\b(py|python)?\d+(\.\d+){1,2}\b", r"\g<1>1.0.0", text)
    text = re.sub(r"((?:sm|compute)_|x86-64-v|-lt )\d+", r"\g<1>1", text)
    text = re.sub(r"\b((?:sm|compute)_1)(,(?:sm|compute)_1)+", r"\g<1>", text)
    return re.sub(r"\bcompare( \w+)+", "compare x y", text)


@pytest.mark.slow
def test_shellcheck_accepts_every_run_and_every_script(tmp_path: Path) -> None:
    texts = {without_names(files["Dockerfile"]) for files in rendered().values()}
    commands = {run for text in texts for run in runs(text)}
    written = [file for files in rendered().values() for file in files.items()]
    own = [text for name, text in written if name.endswith(".sh") or text.startswith("#!/bin/sh")]
    scripts = {NAMED.sub("x", re.sub(r"^# (?!shellcheck).*\n", "", text, flags=re.MULTILINE)) for text in own}
    assert len(commands) > 60
    both = [f"#!/bin/sh\n# shellcheck disable=SC1091,SC2154\n{command}\n" for command in sorted(commands)]
    for number, text in enumerate(sorted({alike(text) for text in (*both, *scripts)})):
        (tmp_path / f"{number}.sh").write_text(text, encoding="utf-8")
    done = tool("shellcheck", "--shell=dash", *tmp_path.iterdir())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
