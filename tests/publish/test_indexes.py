"""What an index says, in its published fields; how it is repaired, and what of others is no index or no image."""

import json
import re
from collections.abc import Callable

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import empty_referrers, gather, image, labels_of_plan, offered, published
from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import manifests
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.publish import index_updates, indexes


def test_an_index_has_the_fields_that_others_read(fake: type[FakeRegistry]) -> None:
    """pull.sh, docker and older versions of tfbuild read them by these names, which are published."""
    arm = {
        "io.tfbuild.id": "2.20.0-mkl-py3.13-armv8-a", "io.tfbuild.platform": "linux/arm64",
        "io.tfbuild.instruction-set": "armv8-a", "io.tfbuild.features": "asimd",
    }  # fmt: skip
    names = [image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3"), image(fake, "2.20.0", arm)]
    for name in names:
        gather(fake, name)
    content = json.loads(fake.content["manifests/latest-mkl"][1])
    rows = content.pop("manifests")
    assert content == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "annotations": {
            "io.tfbuild.schema": "1",
            "io.tfbuild.number": str(indexes.number_of(connect(fake).manifest("latest-mkl"))),
        },
    }
    assert [row["annotations"]["io.tfbuild.id"] for row in rows] == names
    row, stored = rows[1], fake.content[f"manifests/{names[1]}"][1]
    own = labels_of_plan("2.20.0", "x86-64-v3")
    kept = ("id", "release", "target", "python", "platform", "instruction-set", "features")
    features = set(own["io.tfbuild.features"].split())
    assert row == {
        "mediaType": manifests.IMAGES[0],
        "digest": digest_of(stored),
        "size": len(stored),
        "platform": {"os": "linux", "architecture": "amd64", "variant": "v3"},
        "annotations": {f"io.tfbuild.{name}": own[f"io.tfbuild.{name}"] for name in kept} | {
            "io.tfbuild.features": " ".join(sorted(features)),
            "io.tfbuild.cpuinfo": " ".join(sorted(features - {"sse3", "lzcnt"} | {"pni", "abm"})),
            "io.tfbuild.speed": row["annotations"]["io.tfbuild.speed"],
            "org.opencontainers.image.created": "2026-11-01T00:00:00Z",
        },
    }  # fmt: skip
    speeds = [one["annotations"]["io.tfbuild.speed"] for one in rows]
    assert all(re.fullmatch(r"[01]+\d{4}", speed) for speed in speeds)
    assert speeds[0] < speeds[1]
    assert [one["platform"] for one in rows[::2]] == [
        {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}
    ]  # fmt: skip


def test_indexes_that_others_keep_overwriting_are_given_up(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = image(fake, "2.20.0")
    pushed = published(connect(fake), name)
    put, writes = Registry.put, list[str]()

    def overwritten(times: int) -> Callable[[Registry, str, bytes, str], str]:
        def write(self: Registry, reference: str, content: bytes, media_type: str) -> str:
            writes.append(reference)
            return put(self, reference, manifests.EMPTY_INDEX if len(writes) <= times else content, media_type)

        return write

    monkeypatch.setattr(Registry, "put", overwritten(12))
    assert index_updates.gather(connect(fake), pushed) == ["2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl"]
    assert len(writes) == 4 * 4
    writes.clear()
    del fake.content["manifests/any-mkl"]
    monkeypatch.setattr(Registry, "put", overwritten(1000))
    with pytest.raises(RegistryRefused, match="x:any-mkl keeps changing") as refusal:
        index_updates.gather(connect(fake), pushed)
    assert writes == 5 * ["any-mkl"]
    assert "push again" in refusal.value.hint


def test_an_index_is_not_created_for_nothing(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0", whole=False)
    empty_referrers(fake, name)
    index_updates.update(connect(fake), published(connect(fake), name))
    assert connect(fake).tags() == [name]


def test_a_tag_that_is_no_index_offers_nothing_and_is_refused_where_one_is_needed(fake: type[FakeRegistry]) -> None:
    subject = connect(fake).manifest(image(fake, "2.20.0"))
    assert subject is not None
    assert indexes.index_rows(subject) == indexes.index_rows(None) == []
    with pytest.raises(VerificationFailed, match=f"{subject.digest} is an image and not an index of images"):
        indexes.read_index(subject)
    with pytest.raises(RegistryRefused, match="x is not an index of images") as refusal:
        indexes.read_index(Manifest(digest="x", media_type=manifests.INDEX, content=b"{}"))
    assert "check that tfbuild pushed it" in refusal.value.hint
    for content in (b"{}", b'{"manifests": {}}'):
        assert not indexes.is_index(Manifest(digest="x", media_type=manifests.INDEX, content=content))


def test_texts_of_others_are_cut_and_printable() -> None:
    labels = labels_of_plan("2.20.0", "avx")
    read = indexes.of_labels(labels, "2026-11-01\x1b[31m" + 100 * "0", digest_of(b""))
    assert read is not None
    assert "\x1b" not in read.created
    assert 20 < len(read.created) <= 64
    undated = indexes.of_labels(labels, None, digest_of(b""))
    assert undated is not None
    assert undated.created == ""


@pytest.mark.parametrize("name", ["id", "release", "target", "python", "platform", "instruction-set", "features"])
def test_each_label_that_a_host_chooses_by_is_checked(name: str) -> None:
    labels = labels_of_plan("2.20.0", "avx")
    for value in ("x\n", "a  b", "ä", "$(x)"):
        assert indexes.of_labels(labels | {f"io.tfbuild.{name}": value}, "", digest_of(b"")) is None
    if name not in ("features", "instruction-set"):
        assert indexes.of_labels(labels | {f"io.tfbuild.{name}": ""}, "", digest_of(b"")) is None


def test_a_release_candidate_is_only_in_the_index_of_its_own(fake: type[FakeRegistry]) -> None:
    release = image(fake, "2.20.0")
    name = release.replace("2.20.0", "2.20.0rc1")
    candidate = image(fake, "2.20.0", {"io.tfbuild.id": name, "io.tfbuild.release": "2.20.0rc1"})
    assert gather(fake, candidate) == ["2.20.0rc1-mkl"]
    gather(fake, release)
    assert [offered(fake, tag) for tag in ("latest-mkl", "any-mkl", "2.20-mkl", "2.20.0-mkl")] == 4 * [[release]]
    assert offered(fake, "2.20.0rc1-mkl") == [candidate]
