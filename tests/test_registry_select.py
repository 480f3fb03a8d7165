"""What `pull` and pull.sh choose out of a registry: the indexes that pushes left there, read over HTTP."""

import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import ThreadingHTTPServer
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import machine, recording
from tests.test_registry_untrusted import Shelf, empty_referrers, image, published, registry
from tfbuild import cpu, publish
from tfbuild.cli import publishing
from tfbuild.cpu import isa
from tfbuild.errors import EngineMissing, NothingFits
from tfbuild.oci import client
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Choice, Published

ROOT = Path(__file__).parent.parent
RELEASES = ("2.9.3", "2.14.1", "2.20.0")
SETS = ("x86-64-v2", "avx", "x86-64-v3", "x86-64-v4")
PYTHONS = ("3.9", "3.10")
# Release, set, Python, and whether its push came to its end.
every = [(*words, whole) for words in product(RELEASES, SETS, PYTHONS) for whole in (True, True, False)]
pushes = st.lists(st.sampled_from(every), max_size=7, unique_by=lambda push: push[:3])
HOSTS = {
    "AVX-512": machine("rocky9-zen5").cpuinfo(),
    "AVX2": machine("rhel7-haswell").cpuinfo(),
    "AVX": machine("scientificfermi6-bulldozer").cpuinfo(),
    "SSE4.2": recording("py-cpuinfo-linux-ubuntu-16-04-x86-64").text,
    "SSSE3": recording("py-cpuinfo-linux-debian-8-x86-64").text,
}


@contextmanager
def serving() -> Iterator[type[Shelf]]:
    handler = type("Here", (Shelf,), {"content": {}, "seen": [], "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        handler.host = f"127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def push(here: type[Shelf], release: str, name: str, python: str, whole: bool) -> Published:
    """An image as a push leaves it; one that is not whole died before its papers, and so before its indexes."""
    told = {"io.tfbuild.id": f"{release}-mkl-py{python}-{name}", "io.tfbuild.python": python}
    found = published(registry(here), image(here, release, told, whole=whole, cpu=name))
    if whole:
        indexes.gather(registry(here), found)
    else:
        empty_referrers(here, found.id)
    return found


@cache
def parsed(text: str) -> cpu.Cpu:
    return cpu.parse(text)


def select(here: type[Shelf], text: str, release: str = "", python: str = "") -> Choice | None:
    """None where there is no such index, or nothing with that Python in it."""
    host = parsed(text)
    features = frozenset(isa.of_cpu(host).features)
    try:
        return publish.select(registry(here), host, features, release=release, target="mkl", python=python)
    except NothingFits:
        return None


def shell(here: type[Shelf], text: str, *words: str) -> "subprocess.CompletedProcess[str]":
    with TemporaryDirectory() as folder:
        (Path(folder) / "cpuinfo").write_text(text)
        env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": f"{folder}/cpuinfo", "DRY_RUN": "1", "no_proxy": "*"}
        repository = f"{here.host}/us/x"  # type: ignore[attr-defined]
        return subprocess.run(
            ["dash", ROOT / "pull.sh", repository, *words],
            capture_output=True, text=True, check=False, env=env, timeout=60,
        )  # fmt: skip


@settings(max_examples=25)
@given(pushes, st.sampled_from(list(HOSTS)), st.sampled_from(("", "2.14", "2.20.0")), st.sampled_from(("", *PYTHONS)))
def test_of_all_that_is_whole_in_a_registry_the_best_that_fits_is_chosen(
    pushed: list[tuple[str, str, str, bool]], name: str, release: str, python: str
) -> None:
    """Never features that the host lacks, never a smaller set when a larger one fits, nothing half-pushed."""
    features = frozenset(isa.of_cpu(parsed(HOSTS[name])).features)
    with serving() as here:
        there = [image for words in pushed if (image := push(here, *words)) and words[3]]
        asked = choose.matching(there, release=release, target="mkl", python=python)
        fitting = [image for image in asked if image.features <= features]
        best = max(fitting, key=choose.rank, default=None)
        found = select(here, HOSTS[name], release, python)
        assert (found.best if found else None) == best
        if found is not None and best is not None:
            assert not [image for image in fitting if image.features > best.features]
            assert {one.id for one in found.passed_over} < {image.id for image in asked}
        done = shell(here, HOSTS[name], release or "latest", "mkl", *([python] if python else []))
        assert done.stdout == (f"{registry(here).repository}@{best.digest} {best.id}\n" if best else "")
        assert done.returncode == (0 if best else 27 if f"{release or 'latest'}-mkl" in registry(here).tags() else 26)


@settings(max_examples=15)
@given(pushes, st.sampled_from(list(HOSTS)), st.integers())
def test_neither_the_order_of_the_pushes_nor_that_of_the_registry_matters(
    pushed: list[tuple[str, str, str, bool]], name: str, seed: int
) -> None:
    shuffle = random.Random(seed).shuffle
    with serving() as first, serving() as second:
        for words in pushed:
            push(first, *words)
        shuffle(pushed)
        for words in pushed:
            push(second, *words)
        found = select(first, HOSTS[name])
        assert select(second, HOSTS[name]) == found
        if found is not None:
            sent = json.loads(second.content["manifests/latest-mkl"][1])
            shuffle(sent["manifests"])
            second.content["manifests/latest-mkl"] = (client.INDEX, json.dumps(sent).encode())
            assert select(second, HOSTS[name]) == found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("AVX-512", "2.14.1-mkl-py3.9-x86-64-v4"),
        ("AVX", "2.20.0-mkl-py3.9-avx"),
        ("SSE4.2", "2.14.1-mkl-py3.9-x86-64-v2"),
    ],
)
def test_a_new_release_that_has_one_set_takes_no_other_set_away(name: str, wanted: str) -> None:
    with serving() as here:
        for words in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
            push(here, "2.14.1", words, "3.9", whole=True)
        push(here, "2.20.0", "avx", "3.9", whole=True)
        found = select(here, HOSTS[name])
        assert found is not None
        assert found.best is not None
        assert found.best.id == wanted
        assert len(found.passed_over) == 3
        assert shell(here, HOSTS[name]).stdout.split()[1:] == [wanted]


def test_a_registry_is_listed_without_an_engine_and_what_no_index_offers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with serving() as here:
        whole = push(here, "2.20.0", "avx", "3.9", whole=True)
        half = push(here, "2.20.0", "x86-64-v3", "3.9", whole=False)
        # An index that is none keeps nobody from what the others offer.
        here.content["manifests/2.20-mkl"] = here.content[f"manifests/{half.id}"]
        words = {"engine": "", "registry": f"{here.host}/us/x", "ca_cert": ""}  # type: ignore[attr-defined]
        publishing.images(**words, json=True)
        told = capsys.readouterr()
        assert {row["id"]: row["offered"] for row in json.loads(told.out)} == {whole.id: True, half.id: False}
        assert "the registry alone is listed, for the CPU of this machine" in told.err
        publishing.images(**words, json=False)
        lines = capsys.readouterr().out.splitlines()
        assert ["not offered" in line for line in lines if ":2.20.0-mkl-" in line] == [False, True]
        monkeypatch.delenv("TFBUILD_REGISTRY", raising=False)
        with pytest.raises(EngineMissing):
            publishing.images(engine="", registry="", ca_cert="", json=True)


def test_a_latest_index_asks_for_no_more_releases_than_it_names() -> None:
    with serving() as here:
        for release in ("2.9.3", "2.11.1", "2.14.1"):
            push(here, release, "avx", "3.9", whole=True)
        push(here, "2.20.0", "avx", "3.9", whole=False)
        here.asked.clear()
        indexes.View(registry(here), "mkl", {}).rows(indexes.LATEST)
        asked = [one.rpartition("/")[2] for one in here.asked if one.startswith("HEAD ")]
        assert asked == ["2.20.0-mkl-py3.9-avx", "2.14.1-mkl-py3.9-avx"]
