"""An index that somebody put back is older than the one that a host has seen."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather, image, published
from tfbuild import cpu
from tfbuild.errors import VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import index_updates, indexes, pulling

Select = Callable[[], list[str]]


@pytest.fixture
def signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The references that are signed; the host's memory is in a folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return set()


@pytest.fixture
def select(fake: type[FakeRegistry], signatures: set[str]) -> Select:
    """Choose, with signatures required, and return the notes."""

    def demand(reference: str) -> None:
        if reference not in signatures:
            raise VerificationFailed(f"{reference} is not signed")

    def chosen() -> list[str]:
        host = cpu.parse(machine("rocky9-zen5").cpuinfo())
        notes: list[str] = []
        options = {"release": "", "target": "mkl", "python": ""}
        pulling.select(connect(fake), host, **options, demand=demand, note=notes.append)  # type: ignore[arg-type]
        return notes

    return chosen


def sign(fake: type[FakeRegistry], name: str, signatures: set[str]) -> None:
    """As `push --sign` does at its end."""
    registry = connect(fake)
    index_updates.gather(registry, published(registry, name), sign=signatures.add)


def test_an_older_index_is_noticed_by_a_host_that_has_seen_a_newer_one(
    fake: type[FakeRegistry], select: Select, signatures: set[str], tmp_path: Path
) -> None:
    sign(fake, image(fake, "2.20.0", cpu="x86-64-v3"), signatures)
    assert select() == []
    before = fake.content["manifests/any-mkl"]
    sign(fake, image(fake, "2.20.0", cpu="x86-64-v4"), signatures)
    assert select() == []
    newest = fake.content["manifests/any-mkl"]
    fake.content["manifests/any-mkl"] = before
    with pytest.raises(VerificationFailed, match=r"any-mkl has the number \d+, and this host has seen \d+") as refusal:
        select()
    path = tmp_path / "state" / "tfbuild" / "indexes.json"
    assert f"remove {path}" in refusal.value.hint
    assert refusal.value.exit_code == 24
    fake.content["manifests/any-mkl"] = newest
    assert select() == []
    name = f"{connect(fake).repository}:any-mkl"
    assert json.loads(path.read_text()) == {name: indexes.number_of(connect(fake).manifest("any-mkl"))}
    fake.content["manifests/any-mkl"] = before
    path.unlink()
    assert select() == []


def test_an_index_that_is_not_signed_any_more_is_refused_where_one_was(
    fake: type[FakeRegistry], select: Select, signatures: set[str]
) -> None:
    name = image(fake, "2.20.0", cpu="x86-64-v3")
    gather(fake, name)
    assert select() == [
        f"the index {connect(fake).repository}:any-mkl has no accepted signature, so an older one would not be noticed"
    ]
    sign(fake, name, signatures)
    assert select() == []
    gather(fake, image(fake, "2.20.0", cpu="x86-64-v4"))  # a push without --sign
    with pytest.raises(VerificationFailed, match="no accepted signature, but this host has seen one"):
        select()
    sign(fake, name, signatures)
    assert select() == []


def test_a_host_that_cannot_remember_says_so(
    fake: type[FakeRegistry], select: Select, signatures: set[str], tmp_path: Path
) -> None:
    sign(fake, image(fake, "2.20.0"), signatures)
    (tmp_path / "state").write_text("a file in place of the folder")
    (note,) = select()
    assert note.startswith("an older index will not be noticed: cannot write to ")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"x": "1"}', b"\xff"])
def test_a_memory_that_cannot_be_read_is_written_anew(
    content: bytes, fake: type[FakeRegistry], select: Select, signatures: set[str], tmp_path: Path
) -> None:
    sign(fake, image(fake, "2.20.0"), signatures)
    path = tmp_path / "state" / "tfbuild" / "indexes.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert select() == []
    assert list(json.loads(path.read_text())) == [f"{connect(fake).repository}:any-mkl"]


def test_the_number_of_an_index_grows_even_if_the_index_was_lost_or_is_of_the_future(
    fake: type[FakeRegistry],
) -> None:
    name = image(fake, "2.20.0")

    def number() -> int:
        return indexes.number_of(connect(fake).manifest("any-mkl"))

    gather(fake, name)
    seen = [number()]
    gather(fake, name)
    assert number() == seen[0], "nothing has changed"
    gather(fake, image(fake, "2.20.0", cpu="x86-64-v4"))
    seen.append(number())
    kind, content = fake.content["manifests/any-mkl"]
    later = content.replace(str(number()).encode(), b"99999999999999")
    fake.content["manifests/any-mkl"] = (kind, later.replace(b"avx512bw", b"avx"))
    gather(fake, name)
    seen.append(number())
    assert seen[-1] == 100000000000000
    assert seen == sorted(set(seen))
    del fake.content["manifests/any-mkl"]
    gather(fake, name)
    assert number() >= seen[0], "it is the time"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "\u0661", 41 * "9"])
def test_what_is_no_number_is_none(text: str) -> None:
    content = json.dumps({"manifests": [], "annotations": {"io.tfbuild.number": text}}).encode()
    assert indexes.number_of(Manifest(digest="x", media_type=manifests.INDEX, content=content)) == 0
    assert indexes.number_of(None) == 0


def test_an_index_is_signed_once(fake: type[FakeRegistry]) -> None:
    name, signed = image(fake, "2.20.0"), list[str]()
    registry = connect(fake)
    index_updates.gather(registry, published(registry, name), sign=signed.append)
    digests = {registry.digest(tag) for tag in ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")}
    assert signed == sorted(f"{registry.repository}@{digest}" for digest in digests)
    for digest in digests:
        fake.content[f"manifests/{referrers.fallback_tag(digest)}.sig"] = (manifests.IMAGES[0], b"{}")
    index_updates.gather(connect(fake), published(registry, name), sign=signed.append)
    assert len(signed) == len(digests)


def test_the_memory_is_where_a_users_state_is() -> None:
    assert pulling.seen_file({"XDG_STATE_HOME": "/x"}) == Path("/x/tfbuild/indexes.json")
    assert pulling.seen_file({}) == Path.home() / ".local/state/tfbuild/indexes.json"


def test_a_user_without_a_name_and_home_has_such_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with `--user 54321`."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert pulling.seen_file({}) == Path("/.local/state/tfbuild/indexes.json")
