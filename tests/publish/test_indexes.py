"""What an index says, in its published fields; how a push computes it, and what of others is no index or no image."""

import json
import re
from collections.abc import Callable

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import INDEXES, attach, digest, gather, image, labels_of_plan, offered
from tfbuild.context.labels import read_labels
from tfbuild.errors import RegistryRefused, Yanked
from tfbuild.oci import client, manifests
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.publish import choose, indexes


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
        "annotations": {"io.tfbuild.schema": "1"},
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
        "annotations": {f"io.tfbuild.{name}": read_labels(own).get(name) for name in kept} | {
            "io.tfbuild.features": " ".join(sorted(features)),
            "io.tfbuild.cpuinfo": " ".join(sorted(features - {"sse3", "lzcnt"} | {"pni", "abm"})),
            "io.tfbuild.speed": row["annotations"]["io.tfbuild.speed"],
            "org.opencontainers.image.created": "2026-11-01T00:00:00Z",
        },
    }  # fmt: skip
    speeds = [one["annotations"]["io.tfbuild.speed"] for one in rows]
    assert [speed for speed in speeds if not re.fullmatch(r"[01]+\d{4}", speed)] == []
    assert speeds[0] < speeds[1]
    assert [one["platform"] for one in rows[::2]] == [
        {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}
    ]  # fmt: skip


def test_images_that_are_yanked_for_one_reason_are_offered_again_one_by_one(fake: type[FakeRegistry]) -> None:
    for name in ("a", "b"):
        indexes.record_yank(connect(fake), name, "crashes")
    assert connect(fake).digest("a.yanked") != connect(fake).digest("b.yanked")
    # GitLab's registry refuses types that it does not know.
    assert json.loads(fake.content["manifests/a.yanked"][1])["artifactType"] == "application/json"


def test_indexes_that_others_keep_overwriting_are_given_up(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = image(fake, "2.20.0")
    put, writes, waited = Registry.put, list[str](), list[float]()

    def overwritten(times: int) -> Callable[[Registry, str, bytes, str], bool]:
        def write(self: Registry, reference: str, content: bytes, media_type: str) -> bool:
            writes.append(reference)
            return put(self, reference, b'{"manifests": []}' if len(writes) <= times else content, media_type)

        return write

    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr(Registry, "put", overwritten(12))
    assert gather(fake, name) == INDEXES
    assert len(writes) == 5 * 3
    assert waited == [0, *client.LATE], "GHCR shows an index some seconds late"
    writes.clear()
    del fake.content["manifests/latest-mkl"]
    monkeypatch.setattr(Registry, "put", overwritten(1000))
    with pytest.raises(RegistryRefused, match="x:latest-mkl keeps changing"):
        gather(fake, name)
    assert writes == 5 * ["latest-mkl"]


def test_an_index_has_only_images_with_sbom_and_provenance_that_were_not_yanked(fake: type[FakeRegistry]) -> None:
    whole, half, third = (image(fake, "2.20.0", cpu=cpu) for cpu in ("avx", "x86-64-v3", "x86-64-v4"))
    attach(fake, digest(fake, half), client.SBOM)
    newer = image(fake, "2.21.0", whole=False)
    assert gather(fake, half) == gather(fake, newer) == []
    assert "2.21-mkl" not in connect(fake).tags()
    assert offered(fake, "latest-mkl") == [whole, third]
    assert indexes.state(connect(fake), "2.20.0", "mkl", print)[1] == []
    attach(fake, digest(fake, half), client.SBOM, client.PROVENANCE)
    assert indexes.state(connect(fake), "2.20.0", "mkl", print)[1] == INDEXES
    assert gather(fake, half) == INDEXES
    indexes.record_yank(connect(fake), half, "crashes\x1b[31m in MatMul")
    fake.requests.clear()
    assert gather(fake, whole) == INDEXES
    assert not [asked for asked in fake.requests if asked.endswith(f"manifests/{half}.yanked")], "it is no image"
    assert offered(fake, "latest-mkl") == offered(fake, "2.20-mkl") == [whole, third]
    with pytest.raises(Yanked, match=r"was yanked: crashes \[31m in MatMul"):
        indexes.refuse_yanked(connect(fake), half)
    indexes.refuse_yanked(connect(fake), whole)
    # Who deletes the tag offers it again.
    del fake.content[f"manifests/{half}.yanked"]
    assert gather(fake, whole) == INDEXES
    assert half in offered(fake, "latest-mkl")


def test_what_contradicts_itself_is_not_offered(fake: type[FakeRegistry]) -> None:
    """Another tag of an image, and one for another architecture than its labels say."""
    name = image(fake, "2.20.0")
    image(fake, "2.20.0", cpu="x86-64-v3", machine="arm64")
    fake.content[f"manifests/{name}-copy"] = fake.content[f"manifests/{name}"]
    assert gather(fake, name) == INDEXES
    assert offered(fake, "latest-mkl") == [name]


def test_a_damaged_image_is_left_out_and_named(fake: type[FakeRegistry]) -> None:
    whole, damaged = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    config = json.loads(fake.content[f"manifests/{damaged}"][1])["config"]["digest"]
    del fake.content[f"blobs/{config}"]
    notes: list[str] = []
    indexes.update(connect(fake), "2.20.0", "mkl", notes.append)
    assert offered(fake, "latest-mkl") == [whole]
    assert [damaged in note and "does not have the configuration" in note for note in notes] == [True]


def test_what_is_no_index_is_refused_by_readers_and_written_again_by_a_push(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0")
    subject = connect(fake).manifest(name)
    assert subject is not None
    assert indexes.read_index(None) == []
    assert indexes.read_index(Manifest(digest="x", media_type=manifests.INDEX, content=b'{"manifests": [{}, 1]}')) == []
    for manifest in (subject, Manifest(digest="x", media_type=manifests.INDEX, content=b'{"manifests": {}}')):
        with pytest.raises(RegistryRefused, match="is not an index of images"):
            indexes.read_index(manifest)
    many = json.dumps({"manifests": [{}] * 5001}).encode()
    with pytest.raises(RegistryRefused, match="has 5001 rows"):
        indexes.read_index(Manifest(digest="x", media_type=manifests.INDEX, content=many))
    for content in (fake.content[f"manifests/{name}"], (manifests.INDEX, b"nothing"), (manifests.INDEX, many)):
        fake.content["manifests/latest-mkl"] = content
        assert gather(fake, name) == INDEXES
        assert offered(fake, "latest-mkl") == [name]


@pytest.mark.parametrize("name", choose.LABELS)
def test_each_label_that_a_host_chooses_by_is_checked(name: str) -> None:
    labels = labels_of_plan("2.20.0", "avx")
    read = indexes.of_labels(labels, "2026-11-01\x1b[31m" + 100 * "0", digest_of(b""))
    assert read is not None
    assert ("\x1b" in read.created, len(read.created)) == (False, 64)
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
    assert [offered(fake, tag) for tag in INDEXES] == 3 * [[release]]
    assert offered(fake, "2.20.0rc1-mkl") == [candidate]
