"""Unfinished pushes (30), which CI completes, and alterations (24), at which it stops, are told apart."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather, image, labels_of_plan, offered, published, signed
from tests.publish.test_pulling import (
    huge_referrers,
    manifest,
    replaced,
    replaced_with_the_attestations_of_the_former,
    row_that_points_elsewhere,
    with_fewer_features_in_the_index,
    without,
)
from tfbuild.cli import listing
from tfbuild.errors import Unfinished, VerificationFailed
from tfbuild.oci import manifests, references, referrers
from tfbuild.oci.client import Registry
from tfbuild.publish import check, indexes, inventory, pushing

INDEXES = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")
Tampering = Callable[[type[FakeRegistry], str], None]


@pytest.fixture
def name(fake: type[FakeRegistry]) -> str:
    pushed = image(fake, "2.20.0", cpu="x86-64-v4")
    gather(fake, pushed)
    return pushed


def moved_tag(fake: type[FakeRegistry], name: str) -> None:
    """To another whole image of that identifier, such as an older build."""
    assert image(fake, "2.20.0", {"io.tfbuild.version": "0.1"}, cpu="x86-64-v4") == name


def one_index_with_a_false_feature(fake: type[FakeRegistry], name: str) -> None:
    kind, content = fake.content["manifests/2.20-mkl"]
    fake.content["manifests/2.20-mkl"] = (kind, content.replace(b" avx512vl", b""))


def an_index_with_a_row_that_cannot_be_read(fake: type[FakeRegistry], name: str) -> None:
    kind, content = fake.content["manifests/2.20-mkl"]
    fake.content["manifests/2.20-mkl"] = (kind, content.replace(b" avx512vl", b"  avx512vl"))


def a_moving_tag_that_is_an_image(fake: type[FakeRegistry], name: str) -> None:
    fake.content["manifests/latest-mkl"] = fake.content[f"manifests/{name}"]


def a_fixed_tag_that_readers_take_for_two_images(fake: type[FakeRegistry], name: str) -> None:
    kind, content = fake.content[f"manifests/{name}"]
    fake.content[f"manifests/{name}"] = (kind, content.replace(b"{", b'{"Layers": [],', 1))


def a_moving_tag_that_is_an_image_and_an_index(fake: type[FakeRegistry], name: str) -> None:
    kind, content = fake.content["manifests/latest-mkl"]
    fake.content["manifests/latest-mkl"] = (kind, content.replace(b"{", b'{"layers": [],', 1))


def test_what_a_check_of_a_sound_image_answers(fake: type[FakeRegistry], name: str, tmp_path: Path) -> None:
    checked = check.image(connect(fake), name, tmp_path)
    sound = replace(checked, notes=("no report of it is here",))
    assert sound.to_json() == {
        "id": name,
        "reference": f"{connect(fake).repository}@{checked.manifest.digest}",
        "digest": manifests.digest_of(fake.content[f"manifests/{name}"][1]),
        "config": checked.manifest.config,
        "sbom": manifests.digest_of(checked.bill),
        "report_compared": False,
        "notes": ["no report of it is here"],
        "described": True,
    }


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (moved_tag, "another image under its tag .* than in 2.20-mkl, 2.20.0-mkl, any-mkl, latest-mkl"),
        (with_fewer_features_in_the_index, "describe .* otherwise than its labels"),
        (one_index_with_a_false_feature, "^error: 2.20-mkl describe"),
        (an_index_with_a_row_that_cannot_be_read, "^error: 2.20-mkl describe"),
        (a_moving_tag_that_is_an_image, "^error: latest-mkl: not an index any more"),
        (a_moving_tag_that_is_an_image_and_an_index, "^error: latest-mkl: not an index any more"),
        (row_that_points_elsewhere, "than in 2.20-mkl"),
        (replaced, "no provenance is attached"),
        (replaced_with_the_attestations_of_the_former, "is about another image"),
        (a_fixed_tag_that_readers_take_for_two_images, "has the key 'layers' twice"),
        (huge_referrers, "sends more than 4194304 bytes"),
        (without(referrers.SBOM), "no SBOM is attached"),
        (without(referrers.PROVENANCE), "no provenance is attached"),
    ],
)
def test_an_alteration_is_not_taken_for_an_unfinished_push(
    tamper: Tampering, reason: str, fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    check.refuse_unfinished(check.image(connect(fake), name, tmp_path))
    tamper(fake, name)
    with pytest.raises(VerificationFailed, match=reason) as refusal:
        check.image(connect(fake), name, tmp_path)
    assert refusal.value.exit_code == 24
    assert "push it again to" not in refusal.value.hint
    # What CI would repair it with is refused, too, and changes nothing.
    before = dict(fake.content)
    with pytest.raises(VerificationFailed):
        pushing.finish(connect(fake), name, tmp_path)
    assert fake.content == before


def test_a_replacement_whose_indexes_are_missing_is_unfinished_and_can_be_completed(
    fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    """Its arriving tag, which a push removes at its end, and its signature tell it from a tag that somebody moved."""
    old = manifest(fake, name)
    moved_tag(fake, name)
    subject = connect(fake).manifest(name)
    assert subject is not None
    demanded: list[str] = []
    for known in subject.ids:
        tag = f"manifests/{references.arriving_tag(known)}"
        fake.content[tag] = fake.content[f"manifests/{name}"]
        with pytest.raises(Unfinished, match=r"is not offered by 2\.20-mkl, ") as unfinished:
            check.refuse_unfinished(check.image(connect(fake), name, tmp_path, demanded.append))
        assert unfinished.value.exit_code == 30
        # Whoever moves a fixed tag can set an arriving one too.
        with pytest.raises(VerificationFailed, match=r"another image under its tag .* than in 2\.20-mkl"):
            check.image(connect(fake), name, tmp_path)
        with pytest.raises(VerificationFailed, match="not signed") as refusal:
            check.image(connect(fake), name, tmp_path, unsigned)
        assert refusal.value.exit_code == 24
        # The image that it replaces is still offered, and still the one described.
        assert check.image(connect(fake), old, tmp_path).manifest.digest == old
        del fake.content[tag]
    assert set(demanded) == signed(fake, name)
    fake.content[tag] = fake.content[f"manifests/{name}"]
    before = dict(fake.content)
    with pytest.raises(VerificationFailed, match="not signed"):
        pushing.finish(connect(fake), name, tmp_path, demand=unsigned)
    assert fake.content == before
    assert pushing.finish(connect(fake), name, tmp_path, demand=demanded.append).moved == INDEXES
    assert fake.content[tag] == (manifests.INDEX, manifests.EMPTY_INDEX)
    check.refuse_unfinished(check.image(connect(fake), name, tmp_path))


def unsigned(reference: str) -> None:
    raise VerificationFailed(f"{reference} is not signed")


def test_a_signature_is_demanded_before_an_image_can_be_outdated_or_unfinished(
    fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    for change in (without(referrers.SBOM), replaced, moved_tag):
        change(fake, name)
        with pytest.raises(VerificationFailed, match="not signed") as refusal:
            check.image(connect(fake), name, tmp_path, unsigned)
        assert refusal.value.exit_code == 24


def test_an_index_without_the_image_is_unfinished(fake: type[FakeRegistry], name: str, tmp_path: Path) -> None:
    del fake.content["manifests/latest-mkl"]
    with pytest.raises(Unfinished, match="not offered by latest-mkl"):
        check.refuse_unfinished(check.image(connect(fake), name, tmp_path))
    pushing.finish(connect(fake), name, tmp_path)
    check.refuse_unfinished(check.image(connect(fake), name, tmp_path))


@pytest.mark.parametrize(
    ("tamper", "offered", "altered"),
    [
        (moved_tag, False, "an index names another image or other features"),
        (with_fewer_features_in_the_index, False, "an index names another image or other features"),
        (one_index_with_a_false_feature, True, "an index names another image or other features"),
        (an_index_with_a_row_that_cannot_be_read, True, "an index names another image or other features"),
        (row_that_points_elsewhere, False, "an index names another image or other features"),
        (without(referrers.SBOM), True, "its SBOM or its provenance is gone"),
        (replaced, True, "its SBOM or its provenance is gone"),
    ],
)
def test_the_list_shows_what_was_altered(
    tamper: Tampering, offered: bool, altered: str, fake: type[FakeRegistry], name: str
) -> None:
    def listed() -> list[tuple[str, bool | None, str]]:
        entries = inventory.remote(connect(fake), None)
        return [(entry.id, entry.offered, entry.altered) for entry in entries]

    half = image(fake, "2.20.0", cpu="x86-64-v2")
    assert listed() == [(half, False, ""), (name, True, "")]
    tamper(fake, name)
    assert (name, offered, altered) in listed()


@pytest.mark.parametrize("offered", [True, False])
def test_the_list_shows_a_tag_that_was_moved_to_an_image_of_another_name(
    offered: bool, fake: type[FakeRegistry], name: str
) -> None:
    second = image(fake, "2.20.0", cpu="x86-64-v2")
    gather(fake, second)
    if not offered:
        for tag in INDEXES:
            del fake.content[f"manifests/{tag}"]
    fake.content[f"manifests/{name}"] = fake.content[f"manifests/{second}"]
    notes: list[str] = []
    entries = {entry.id: entry for entry in inventory.remote(connect(fake), None, notes.append)}
    assert entries[name].altered == f"its tag was moved: it is {second}"
    assert (entries[name].offered, entries[name].signed, entries[name].yanked) == (False, False, "")
    assert (entries[name].name, entries[name].digest) == (f"{connect(fake).repository}:{name}", entries[second].digest)
    assert (entries[second].altered, notes) == ("", [])
    fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], b'{"config": {}}')
    assert any("is left out" in note for note in listed_notes(fake))
    fake.content[f"manifests/{name}"] = (manifests.INDEX, manifests.EMPTY_INDEX)
    entries = {entry.id: entry for entry in inventory.remote(connect(fake), None)}
    assert entries[name].altered == "its tag was moved: it is an image that is not tfbuild's"


def listed_notes(fake: type[FakeRegistry]) -> list[str]:
    notes: list[str] = []
    inventory.remote(connect(fake), None, notes.append)
    return notes


@pytest.mark.parametrize("tamper", [a_moving_tag_that_is_an_image, a_moving_tag_that_is_an_image_and_an_index])
def test_the_list_says_that_a_moving_tag_is_no_index_any_more(
    tamper: Tampering, fake: type[FakeRegistry], name: str
) -> None:
    tamper(fake, name)
    assert any("latest-mkl was moved and is not an index any more" in line for line in listed_notes(fake))
    gather(fake, name)
    assert listed_notes(fake) == []


@pytest.mark.parametrize("kind", [*referrers.SIGNATURES, ".sig"])
def test_the_list_shows_whether_a_signature_is_attached(kind: str, fake: type[FakeRegistry], name: str) -> None:
    def signed() -> bool | None:
        (entry,) = inventory.remote(connect(fake), None)
        assert entry.to_json()["signature_attached"] == entry.signed
        assert listing._verified(entry) == f"by its publisher, {'signature attached' if entry.signed else 'not signed'}"
        return entry.signed

    assert signed() is False
    digest = manifest(fake, name)
    if kind == ".sig":
        fake.content[f"manifests/{referrers.fallback_tag(digest)}.sig"] = (manifests.IMAGES[0], b"{}")
    else:
        rows = json.loads(fake.content[f"referrers/{digest}"][1])["manifests"]
        rows.append({"artifactType": f"{kind}.v0.3+json", "digest": digest})
        fake.content[f"referrers/{digest}"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    assert signed() is True


@pytest.mark.parametrize("kind", [None, "", referrers.EMPTY_TYPE])
@pytest.mark.parametrize("has_api", [True, False])
def test_attachments_are_known_by_their_own_manifests_where_a_list_has_other_types(
    has_api: bool, kind: str | None, fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    """As skopeo copies such an index, cosign writes one, and the registry of go-containerregistry lists them."""
    digest = manifest(fake, name)
    rows = json.loads(fake.content[f"referrers/{digest}"][1])["manifests"]
    untyped = [{"digest": row["digest"]} | ({} if kind is None else {"artifactType": kind}) for row in rows]
    content = (manifests.INDEX, json.dumps({"schemaVersion": 2, "manifests": untyped}).encode())
    if has_api:
        fake.content[f"referrers/{digest}"] = content
    else:
        del fake.content[f"referrers/{digest}"]
        fake.content[f"manifests/{referrers.fallback_tag(digest)}"] = content
    assert referrers.types(referrers.listed(connect(fake), digest)) == {*referrers.NEEDED}
    check.refuse_unfinished(check.image(connect(fake), name, tmp_path))
    # One that is gone has no type, and hides no other.
    del fake.content[f"manifests/{rows[0]['digest']}"]
    assert not referrers.complete(referrers.listed(connect(fake), digest))
    assert referrers.types(referrers.listed(connect(fake), digest)) >= {rows[1]["artifactType"]}


def test_the_list_names_what_the_registry_lost(fake: type[FakeRegistry], name: str) -> None:
    gather(fake, image(fake, "2.20.0", cpu="x86-64-v2"))
    lost = published(connect(fake), name)
    for tag in (name, lost.digest):
        del fake.content[f"manifests/{tag}"]
    notes: list[str] = []
    inventory.remote(connect(fake), None, notes.append)
    (line,) = notes
    assert f"offers {name}, which is missing or incomplete" in line


def edit_row(**changes: object) -> Callable[[dict[str, Any]], None]:
    def edit(index: dict[str, Any]) -> None:
        index["manifests"][-1].update(changes)

    return edit


def edit_speed(index: dict[str, Any]) -> None:
    index["manifests"][-1]["annotations"]["io.tfbuild.speed"] = "0"


def drop_variants(index: dict[str, Any]) -> None:
    for row in index["manifests"]:
        row["platform"].pop("variant", None)


@pytest.mark.parametrize(
    "edit",
    [
        edit_speed,
        drop_variants,
        edit_row(size=1),
        edit_row(mediaType=manifests.IMAGES[1]),
        edit_row(platform={"os": "linux", "architecture": "arm64"}),
        edit_row(urls=["https://example.org"]),
        lambda index: index["manifests"].reverse(),
        lambda index: index["manifests"].append(index["manifests"][0]),
        lambda index: index.update(annotations={}),
        lambda index: index.update(subject={}),
    ],
)
def test_an_edited_index_is_named_and_written_again(
    edit: Callable[[dict[str, Any]], None], fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    """pull.sh and plain docker go by what was edited. Another version of tfbuild may have written it, too."""
    gather(fake, image(fake, "2.20.0", cpu="x86-64-v2"))
    assert check.image(connect(fake), name, tmp_path).notes == report_is_missing(connect(fake), name, tmp_path)
    kind, content = fake.content["manifests/any-mkl"]
    index = json.loads(content)
    edit(index)
    fake.content["manifests/any-mkl"] = (kind, json.dumps(index, indent=2).encode())
    with pytest.raises(Unfinished, match="any-mkl are not as this tfbuild writes and signs them") as refusal:
        check.refuse_unfinished(check.image(connect(fake), name, tmp_path))
    assert refusal.value.exit_code == 30
    assert pushing.finish(connect(fake), name, tmp_path, dry_run=True).moved == ("any-mkl",)
    pushing.finish(connect(fake), name, tmp_path)
    assert unnumbered(fake.content["manifests/any-mkl"][1]) == unnumbered(content)
    check.refuse_unfinished(check.image(connect(fake), name, tmp_path))


@pytest.mark.parametrize("lost", [False, True], ids=["a row is added", "a row is gone"])
def test_a_row_of_another_image_that_was_added_or_removed_is_named_and_written_again(
    lost: bool, fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    """An image with attestations of its own but without a fixed tag is in nobody's push, and `pull` would take it."""
    other = image(fake, "2.20.0", cpu="x86-64-v3")
    gather(fake, name)
    assert other in offered(fake, "any-mkl")
    tag = fake.content.pop(f"manifests/{other}")
    if lost:
        gather(fake, name)
        fake.content[f"manifests/{other}"] = tag
    wrong = check.image(connect(fake), name, tmp_path)
    assert wrong.lacking == ()
    assert "any-mkl" in wrong.edited
    with pytest.raises(Unfinished, match="are not as this tfbuild writes and signs them") as refusal:
        check.refuse_unfinished(wrong)
    assert refusal.value.hint == f"invoke push {name} --indexes writes them again"
    pushing.finish(connect(fake), name, tmp_path)
    assert (other in offered(fake, "any-mkl")) == lost
    assert check.image(connect(fake), name, tmp_path).edited == ()


def test_an_index_without_an_accepted_signature_is_signed_again_where_one_is_demanded(
    fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    registry, signed = connect(fake), set[str]()
    gather(fake, name)

    tags = indexes.tags_of(published(connect(fake), name))
    digests = {registry.digest(tag) for tag in tags}

    def demand(reference: str) -> None:
        if reference.rpartition("@")[2] in digests and reference not in signed:
            raise VerificationFailed(f"{reference} has no signature that cosign accepts")

    assert check.image(connect(fake), name, tmp_path).edited == ()
    found = check.image(connect(fake), name, tmp_path, demand)
    assert found.edited == tags
    with pytest.raises(Unfinished):
        check.refuse_unfinished(found)
    # A signature of somebody else's does not keep ours away.
    for digest in digests:
        fake.content[f"manifests/{referrers.fallback_tag(digest)}.sig"] = (manifests.IMAGES[0], b"{}")
    pushing.finish(connect(fake), name, tmp_path, demand=demand, sign=signed.add)
    assert {reference.rpartition("@")[2] for reference in signed} == digests
    assert check.image(connect(fake), name, tmp_path, demand).edited == ()


def unnumbered(index: bytes) -> bytes:
    """An index without its number, which grows each time it is written."""
    return re.sub(rb'"io.tfbuild.number": "[0-9]+"', b"", index)


def report_is_missing(registry: Registry, name: str, reports: Path) -> tuple[str, ...]:
    (note,) = check.image(registry, name, reports).notes
    assert "is missing: only the digest of the report is known" in note
    return (note,)


@pytest.mark.parametrize("newer_first", [True, False])
def test_of_several_provenances_that_of_the_last_verification_counts(
    newer_first: bool, fake: type[FakeRegistry], name: str, tmp_path: Path
) -> None:
    """Registries list them in any order. A second one is noted: somebody else may have attached it."""
    subject = connect(fake).manifest(name)
    assert subject is not None
    (old,) = referrers.documents(connect(fake), subject, referrers.PROVENANCE)
    new = old.replace(b'"created": "2026-11-01T00:00:00Z"', b'"created": "2026-11-02T00:00:00+01:00"')
    assert new != old
    attachment = referrers.Attachment(media_type=referrers.PROVENANCE, title="x", created="", content=new)
    referrers.attach(connect(fake), attachment, subject)
    path = f"referrers/{subject.digest}"
    rows = json.loads(fake.content[path][1])["manifests"]
    ordered = sorted(rows, key=rows.index, reverse=newer_first)
    fake.content[path] = (manifests.INDEX, json.dumps({"manifests": ordered}).encode())
    labels = labels_of_plan("2.20.0", "x86-64-v4")
    last = check.statements(connect(fake), subject, labels)[-1]
    assert last.resource(f"{name}.json").annotations == {"created": "2026-11-02T00:00:00+01:00"}
    notes = check.image(connect(fake), name, tmp_path).notes
    assert notes[-1] == "2 provenances describe it; that of the last verification was compared"
