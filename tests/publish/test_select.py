"""The choice of `pull` and pull.sh: they read the indexes in a registry over HTTP."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.commandline import executable
from tests.cpu.machines import Machine, machine, machines, recording
from tests.examples import few
from tests.oci.fake_registry import FakeRegistry, connect, registry
from tests.publish.fake_images import gather, image, published, pull_script
from tfbuild import cpu
from tfbuild.cpu import isa
from tfbuild.errors import NothingFits
from tfbuild.publish import choose, pulling, pushing
from tfbuild.publish.choose import Choice, Published

RELEASES = ("2.13.1", "2.14.1", "2.20.0")
SETS = ("x86-64-v2", "avx", "x86-64-v3", "x86-64-v4")
PYTHONS = ("3.9", "3.10")
# Release, set, Python, and whether the push finished.
every = [(*image, whole) for image in product(RELEASES, SETS, PYTHONS) for whole in (True, True, False)]
pushes = st.lists(st.sampled_from(every), max_size=7, unique_by=lambda push: push[:3])
HOSTS = {
    "AVX-512": machine("rocky9-zen5").cpuinfo(),
    "AVX2": machine("rhel7-haswell").cpuinfo(),
    "AVX": machine("scientificfermi6-bulldozer").cpuinfo(),
    "SSE4.2": recording("py-cpuinfo-linux-ubuntu-16-04-x86-64").text,
    "SSSE3": recording("py-cpuinfo-linux-debian-8-x86-64").text,
}


def push(
    fake: type[FakeRegistry], release: str, name: str, python: str, whole: bool, platform: str = "linux/amd64"
) -> Published:
    """Put an image there as a push does; without `whole`, as one that died before its attestations."""
    labels = {"io.tfbuild.id": f"{release}-mkl-py{python}-{name}", "io.tfbuild.python": python}
    pushed = image(fake, release, labels, whole=whole, cpu=name, platform=platform)
    gather(fake, pushed)
    return published(fake, pushed)


@cache
def parsed(text: str) -> cpu.Cpu:
    return cpu.parse(text)


def select(fake: type[FakeRegistry], text: str, release: str = "", python: str = "") -> Choice | None:
    """None if there is no such index, or no image with that Python in it."""
    try:
        return pulling.choose_image(connect(fake), parsed(text), release=release, target="mkl", python=python)
    except NothingFits:
        return None


def shell(
    fake: type[FakeRegistry], text: str, *arguments: str, machine: str = "x86_64"
) -> "subprocess.CompletedProcess[str]":
    """`machine`: what `uname -m` says there."""
    with TemporaryDirectory() as folder:
        executable(Path(folder) / "uname", f"echo {machine}")
        path = f"{folder}:{os.environ['PATH']}"
        return pull_script(Path(folder), f"{fake.host}/us/x", *arguments, cpuinfo=text, PATH=path)


@few
@given(pushes, st.sampled_from(list(HOSTS)), st.sampled_from(("", "2.14", "2.20.0")), st.sampled_from(("", *PYTHONS)))
def test_the_best_complete_image_that_fits_is_chosen(
    pushed: list[tuple[str, str, str, bool]], name: str, release: str, python: str
) -> None:
    """One release; never features that the host lacks, or a smaller set if a larger one fits; no unfinished push."""
    features = frozenset(isa.of_cpu(parsed(HOSTS[name]), exact=True).features)
    with registry() as fake:
        complete = [image for arguments in pushed if (image := push(fake, *arguments)) and arguments[3]]
        matches = choose.matching(complete, release=release, target="mkl", python="")
        if not release:  # the newest release of all, whatever its Pythons
            newest = max((Version(image.release) for image in matches), default=None)
            matches = [image for image in matches if Version(image.release) == newest]
        matches = [image for image in matches if python in ("", image.python)]
        newest = max((Version(image.release) for image in matches), default=None)
        fitting = [image for image in matches if Version(image.release) == newest and image.features <= features]
        best = max(fitting, key=choose.rank, default=None)
        choice = select(fake, HOSTS[name], release, python)
        assert (choice.best if choice else None) == best
        if choice is not None and best is not None:
            assert not [image for image in fitting if image.features > best.features]
            assert {image.id for image in choice.passed_over} < {image.id for image in matches}
        done = shell(fake, HOSTS[name], release or "latest", "mkl", *([python] if python else []))
        assert done.stdout == (f"{connect(fake).repository}@{best.digest} {best.id}\n" if best else "")
        assert done.returncode == (0 if best else 27)


def test_every_recorded_machine_gets_the_same_from_pull_and_pull_sh() -> None:
    with registry() as fake:
        for level in (*SETS, "x86-64-v4-vnni", "armv8-a", "armv8.2-a"):
            platform = "linux/arm64" if level.startswith("arm") else "linux/amd64"
            for python in PYTHONS:
                push(fake, "2.20.0", level, python, whole=True, platform=platform)
        push(fake, "2.14.1", "x86-64-v4", "3.9", whole=True)

        def both(recorded: Machine) -> tuple[str, list[str]]:
            choice = select(fake, recorded.cpuinfo())
            done = shell(fake, recorded.cpuinfo(), machine=recorded.arch)
            return choice.best.id if choice and choice.best else "", done.stdout.split()[1:]

        with ThreadPoolExecutor(4) as pool:
            chosen = dict(zip(machines(), pool.map(both, machines()), strict=True))
    assert {recorded.name: script for recorded, (_, script) in chosen.items()} == {
        recorded.name: [best] if best else [] for recorded, (best, _) in chosen.items()
    }
    assert len({best for best, _ in chosen.values()}) > 4


def test_what_to_do_is_said_where_nothing_fits() -> None:
    with registry() as fake:
        push(fake, "2.20.0", "x86-64-v4", "3.9", whole=True)
        host = cpu.parse(HOSTS["AVX"])
        choice = pulling.choose_image(connect(fake), host, release="2.20", target="mkl", python="3.9")
        with pytest.raises(NothingFits) as refusal:
            pulling.accept(connect(fake), choice)
        assert "x86-64-v4: this CPU lacks avx2 avx512" in refusal.value.reason
        push(fake, "2.20.0", "avx", "3.10", whole=True)
        with pytest.raises(NothingFits, match=r"has no image with Python 3\.8") as refusal:
            pulling.choose_image(connect(fake), host, release="2.20", target="mkl", python="3.8")
        with pytest.raises(NothingFits, match=r"has no 2\.14-mkl") as refusal:
            pulling.choose_image(connect(fake), host, release="2.14", target="mkl", python="")
        assert "latest-mkl" in refusal.value.hint
        newest, latest = (
            pulling.choose_image(connect(fake), host, release=name, target="mkl", python="") for name in ("", "latest")
        )
        assert newest == latest
        pushing.yank(connect(fake), "2.20.0-mkl-py3.10-avx", "crashes", print)
        pushing.yank(connect(fake), "2.20.0-mkl-py3.9-x86-64-v4", "crashes", print)
        with pytest.raises(NothingFits, match=r"2\.20-mkl has no image\n"):
            pulling.choose_image(connect(fake), host, release="2.20", target="mkl", python="")
