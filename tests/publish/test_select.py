"""The choice of `pull` and pull.sh: they read the indexes in a registry over HTTP."""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests import servers
from tests.cpu.machines import machine, recording
from tests.examples import few
from tests.oci.fake_registry import FakeRegistry, connect
from tests.publish.fake_images import empty_referrers, image, offered, published
from tfbuild import cpu
from tfbuild.cli import publishing
from tfbuild.cpu import isa
from tfbuild.errors import EngineMissing, NothingFits
from tfbuild.oci import manifests
from tfbuild.publish import choose, index_updates, indexes, pulling
from tfbuild.publish.choose import Choice, Published

ROOT = Path(__file__).parents[2]
RELEASES = ("2.9.3", "2.14.1", "2.20.0")
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


@contextmanager
def serving() -> Iterator[type[FakeRegistry]]:
    handler: type[FakeRegistry] = type("Here", (FakeRegistry,), {"content": {}, "authorizations": [], "requests": []})
    with servers.serving(handler) as handler.host:
        yield handler


def push(fake: type[FakeRegistry], release: str, name: str, python: str, whole: bool) -> Published:
    """Put an image there as a push does; without `whole`, as one that died before its attestations."""
    labels = {"io.tfbuild.id": f"{release}-mkl-py{python}-{name}", "io.tfbuild.python": python}
    pushed = published(connect(fake), image(fake, release, labels, whole=whole, cpu=name))
    if whole:
        index_updates.gather(connect(fake), pushed)
    else:
        empty_referrers(fake, pushed.id)
    return pushed


@cache
def parsed(text: str) -> cpu.Cpu:
    return cpu.parse(text)


def select(
    fake: type[FakeRegistry], text: str, release: str = "", python: str = "", *, any_release: bool = False
) -> Choice | None:
    """None if there is no such index, or no image with that Python in it."""
    host = parsed(text)
    try:
        return pulling.select(
            connect(fake), host, release=release, target="mkl", python=python, any_release=any_release
        )
    except NothingFits:
        return None


def shell(
    fake: type[FakeRegistry], text: str, *arguments: str, machine: str = "x86_64"
) -> "subprocess.CompletedProcess[str]":
    """`machine`: what `uname -m` says there."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "cpuinfo").write_text(text)
        (Path(folder) / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
        (Path(folder) / "uname").chmod(0o755)
        env = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "TFBUILD_CPUINFO": f"{folder}/cpuinfo",
            "DRY_RUN": "1",
            "no_proxy": "*",
        }
        repository = f"{fake.host}/us/x"
        return subprocess.run(
            ["dash", ROOT / "pull.sh", repository, *arguments],
            capture_output=True, text=True, check=False, env=env, timeout=60,
        )  # fmt: skip


@few
@given(
    pushes,
    st.sampled_from(list(HOSTS)),
    st.sampled_from(("", "any", "2.14", "2.20.0")),
    st.sampled_from(("", *PYTHONS)),
)
def test_the_best_complete_image_that_fits_is_chosen(
    pushed: list[tuple[str, str, str, bool]], name: str, release: str, python: str
) -> None:
    """One release; never features that the host lacks, or a smaller set if a larger one fits; no unfinished push."""
    word, any_release, release = release or "latest", release == "any", release.replace("any", "")
    features = frozenset(isa.all_of_cpu(parsed(HOSTS[name])).features)
    with serving() as fake:
        complete = [image for arguments in pushed if (image := push(fake, *arguments)) and arguments[3]]
        matches = choose.matching(complete, release=release, target="mkl", python=python)
        newest = max((Version(image.release) for image in matches), default=None)
        among = [image for image in matches if any_release or Version(image.release) == newest]
        fitting = [image for image in among if image.features <= features]
        best = max(fitting, key=choose.rank, default=None)
        choice = select(fake, HOSTS[name], release, python, any_release=any_release)
        assert (choice.best if choice else None) == best
        if choice is not None and best is not None:
            assert not [image for image in fitting if image.features > best.features]
            assert {image.id for image in choice.passed_over} < {image.id for image in matches}
        done = shell(fake, HOSTS[name], word, "mkl", *([python] if python else []))
        assert done.stdout == (f"{connect(fake).repository}@{best.digest} {best.id}\n" if best else "")
        assert done.returncode == (0 if best else 27 if f"{release or 'any'}-mkl" in connect(fake).tags() else 26)
        why = "uses more of this CPU" if best else "runs on this host"
        again = " ".join(("pull.sh", str(connect(fake).repository), "any", "mkl", python)).strip()
        assert [line for line in done.stderr.splitlines() if "of an older release" in line] == [
            f"pull.sh: {older.id}, of an older release, {why}: {again}" for older in (choice and choice.older,) if older
        ]


@few
@given(pushes, st.sampled_from(list(HOSTS)), st.integers())
def test_the_orders_of_pushes_and_of_index_entries_do_not_matter(
    pushed: list[tuple[str, str, str, bool]], name: str, seed: int
) -> None:
    shuffle = random.Random(seed).shuffle
    with serving() as first, serving() as second:
        for arguments in pushed:
            push(first, *arguments)
        shuffle(pushed)
        for arguments in pushed:
            push(second, *arguments)
        choice = select(first, HOSTS[name])
        assert select(second, HOSTS[name]) == choice
        if choice is not None:
            sent = json.loads(second.content["manifests/any-mkl"][1])
            shuffle(sent["manifests"])
            second.content["manifests/any-mkl"] = (manifests.INDEX, json.dumps(sent).encode())
            assert select(second, HOSTS[name]) == choice


@pytest.mark.parametrize(
    ("name", "newest", "fastest"),
    [
        ("AVX-512", "2.20.0-mkl-py3.9-avx", "2.14.1-mkl-py3.9-x86-64-v4"),
        ("AVX", "2.20.0-mkl-py3.9-avx", "2.20.0-mkl-py3.9-avx"),
        ("SSE4.2", "", "2.14.1-mkl-py3.9-x86-64-v2"),
    ],
)
def test_a_new_release_with_one_set_is_the_only_one_that_any_host_gets(name: str, newest: str, fastest: str) -> None:
    with serving() as fake:
        for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
            push(fake, "2.14.1", level, "3.9", whole=True)
        push(fake, "2.20.0", "avx", "3.9", whole=True)
        assert offered(fake, "latest-mkl") == ["2.20.0-mkl-py3.9-avx"]
        choice, any_choice = select(fake, HOSTS[name]), select(fake, HOSTS[name], any_release=True)
        assert choice is not None
        assert any_choice is not None
        assert (choice.best.id if choice.best else "") == newest
        assert (any_choice.best.id if any_choice.best else "") == fastest
        assert (choice.older.id if choice.older else newest) == fastest
        done = shell(fake, HOSTS[name])
        assert (done.returncode, done.stdout.split()[1:]) == ((0, [newest]) if newest else (27, []))
        assert (f"pull.sh: {fastest}, of an older release, " in done.stderr) == (newest != fastest)
        assert shell(fake, HOSTS[name], "any").stdout.split()[1:] == [fastest]
        if not newest:
            refusal = pulling.nothing_fits(connect(fake), choice)
            assert f"--any-release chooses {fastest}, of an older release" in str(refusal)


def test_a_fleet_gets_one_release_of_three_and_the_largest_set_of_it_for_each_host() -> None:
    """SSE4.2, AVX, AVX2, AVX-512 and aarch64, of which the newest release has fewer sets than the others."""
    hosts = {name: HOSTS[name] for name in ("SSE4.2", "AVX", "AVX2", "AVX-512")}
    hosts["aarch64"] = machine("amazon-neoverse_n1").cpuinfo()
    with serving() as fake:
        for release, sets in (("2.9.3", SETS), ("2.14.1", SETS), ("2.20.0", ("x86-64-v2", "x86-64-v3"))):
            for level in sets:
                push(fake, release, level, "3.9", whole=True)
        arm = {"io.tfbuild.platform": "linux/arm64", "io.tfbuild.features": "asimd crc32"}
        for release in ("2.14.1", "2.20.0"):
            labels = {**arm, "io.tfbuild.id": f"{release}-mkl-py3.9-armv8-a", "io.tfbuild.python": "3.9"}
            labels["io.tfbuild.instruction-set"] = "armv8-a"
            index_updates.gather(connect(fake), published(connect(fake), image(fake, release, labels)))
        chosen = {name: select(fake, text) for name, text in hosts.items()}
        assert {name: choice.best.id for name, choice in chosen.items() if choice and choice.best} == {
            "SSE4.2": "2.20.0-mkl-py3.9-x86-64-v2",
            "AVX": "2.20.0-mkl-py3.9-x86-64-v2",
            "AVX2": "2.20.0-mkl-py3.9-x86-64-v3",
            "AVX-512": "2.20.0-mkl-py3.9-x86-64-v3",
            "aarch64": "2.20.0-mkl-py3.9-armv8-a",
        }
        assert {name: choice.older.id for name, choice in chosen.items() if choice and choice.older} == {
            "AVX": "2.14.1-mkl-py3.9-avx", "AVX-512": "2.14.1-mkl-py3.9-x86-64-v4"
        }  # fmt: skip
        for name, text in hosts.items():
            choice, host = chosen[name], "aarch64" if name == "aarch64" else "x86_64"
            assert choice is not None
            assert choice.best is not None
            done = shell(fake, text, machine=host)
            assert (done.returncode, done.stdout.split()[1:]) == (0, [choice.best.id])
            assert ("of an older release" in done.stderr) == (choice.older is not None)
        for text in hosts.values():
            choice = select(fake, text, "2.14")
            assert choice is not None
            assert choice.best is not None
            assert choice.best.release == "2.14.1"


def test_a_registry_is_listed_without_an_engine_and_marks_images_that_no_index_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with serving() as fake:
        whole = push(fake, "2.20.0", "avx", "3.9", whole=True)
        half = push(fake, "2.20.0", "x86-64-v3", "3.9", whole=False)
        # An invalid index does not hide what the others offer.
        fake.content["manifests/2.20-mkl"] = fake.content[f"manifests/{half.id}"]
        options = {"engine": "", "registry": f"{fake.host}/us/x", "ca_cert": ""}
        publishing.images(**options, outdated=False, json=True)
        output = capsys.readouterr()
        assert {row["id"]: row["offered"] for row in json.loads(output.out)} == {whole.id: True, half.id: False}
        assert "listing only the registry, for the CPU of this machine" in output.err
        publishing.images(**options, outdated=False, json=False)
        lines = capsys.readouterr().out.splitlines()
        assert ["not offered" in line for line in lines if ":2.20.0-mkl-" in line] == [False, True]
        monkeypatch.delenv("TFBUILD_REGISTRY", raising=False)
        with pytest.raises(EngineMissing):
            publishing.images(engine="", registry="", ca_cert="", outdated=False, json=True)


def test_an_empty_registry_is_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with serving() as fake:
        registry = f"{fake.host}/us/x"
        publishing.images(engine="", registry=registry, ca_cert="", outdated=False, json=True)
        output = capsys.readouterr()
        assert json.loads(output.out) == []
        assert f"note: {registry} has no images of tfbuild" in output.err
        push(fake, "2.20.0", "avx", "3.9", whole=True)
        publishing.images(engine="", registry=registry, ca_cert="", outdated=False, json=True)
        assert "has no images" not in capsys.readouterr().err


def test_a_latest_index_reads_no_more_releases_than_it_needs() -> None:
    with serving() as fake:
        for release in ("2.9.3", "2.11.1", "2.14.1"):
            push(fake, release, "avx", "3.9", whole=True)
        push(fake, "2.20.0", "avx", "3.9", whole=False)
        fake.requests.clear()
        index_updates.View(connect(fake), "mkl", {}, indexes.quietly).rows(indexes.LATEST)
        tags = [request.rpartition("/")[2] for request in fake.requests if request.startswith("HEAD ")]
        assert tags == ["2.20.0-mkl-py3.9-avx", "2.14.1-mkl-py3.9-avx"]
        fake.requests.clear()
        index_updates.View(connect(fake), "mkl", {}, indexes.quietly).rows(indexes.ANY)
        assert [request.rpartition("/")[2] for request in fake.requests if request.startswith("HEAD ")] == tags


def test_only_options_that_were_given_are_to_be_left_out() -> None:
    with serving() as fake:
        push(fake, "2.20.0", "x86-64-v4", "3.9", whole=True)
        host = cpu.parse(HOSTS["AVX"])
        for release, python, advice in (
            ("", "", ""),
            ("2.20", "", "; or leave out --release, which excluded images"),
            ("2.20", "3.9", "; or leave out --release and --python, which excluded images"),
        ):
            choice = pulling.select(connect(fake), host, release=release, target="mkl", python=python)
            hint = pulling.nothing_fits(connect(fake), choice).hint
            assert hint == f"build one here: invoke build --cpu host{advice}"
