"""What `pull` checks before it pulls: lost images are passed over, changed ones refused, and a second choice named."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.commandline import answer
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import attest, demand_for, empty_referrers, gather, image, labels_of_plan, signed
from tfbuild import cpu
from tfbuild.context.labels import configured_labels
from tfbuild.errors import RegistryRefused, Unfinished, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.manifests import digest_of
from tfbuild.publish import check, choose, inventory, provenance, pulling, yanking
from tfbuild.publish.choose import Choice
from tfbuild.publish.provenance import Statement

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


@pytest.fixture
def names(fake: type[FakeRegistry]) -> dict[str, str]:
    """The identifiers of three images of one release, by their levels."""
    pushed = {level: image(fake, "2.20.0", cpu=level) for level in LEVELS}
    for name in pushed.values():
        gather(fake, name)
    return pushed


def select(fake: type[FakeRegistry], *skip: str, without: Sequence[str] = ()) -> Choice:
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())
    return pulling.select(connect(fake), host, release="", target="mkl", python="", skip=skip, without=without)


def manifest(fake: type[FakeRegistry], name: str) -> str:
    return digest_of(fake.content[f"manifests/{name}"][1])


def without(kind: str) -> Callable[[type[FakeRegistry], str], None]:
    def change(fake: type[FakeRegistry], name: str) -> None:
        path = f"referrers/{manifest(fake, name)}"
        rows = [row for row in json.loads(fake.content[path][1])["manifests"] if row["artifactType"] != kind]
        fake.content[path] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())

    return change


def without_the_sboms_manifest(fake: type[FakeRegistry], name: str) -> None:
    rows = json.loads(fake.content[f"referrers/{manifest(fake, name)}"][1])["manifests"]
    (digest,) = [row["digest"] for row in rows if row["artifactType"] == referrers.SBOM]
    del fake.content[f"manifests/{digest}"]


def reindexed(fake: type[FakeRegistry], old: bytes, new: bytes) -> None:
    for tag in ("any-mkl", "2.20-mkl", "2.20.0-mkl", "latest-mkl"):
        kind, content = fake.content[f"manifests/{tag}"]
        assert old in content
        fake.content[f"manifests/{tag}"] = (kind, content.replace(old, new))


def with_fewer_features_in_the_index(fake: type[FakeRegistry], name: str) -> None:
    reindexed(fake, b" avx512vl", b"")


def replaced(fake: type[FakeRegistry], name: str, *, attestations_of: str = "") -> None:
    """Another image, with the same labels, in its place in all indexes."""
    before = manifest(fake, name)
    kind, content = fake.content[f"manifests/{name}"]
    document = json.loads(content)
    config = json.loads(fake.content[f"blobs/{document['config']['digest']}"][1])
    config["config"]["Entrypoint"] = ["/bin/evil"]
    blob = json.dumps(config).encode()
    document["config"]["digest"] = digest_of(blob)
    forged = json.dumps(document).encode()
    fake.content[f"blobs/{digest_of(blob)}"] = ("application/octet-stream", blob)
    fake.content[f"manifests/{name}"] = fake.content[f"manifests/{digest_of(forged)}"] = (kind, forged)
    empty_referrers(fake, name)
    if attestations_of:
        fake.content[f"referrers/{digest_of(forged)}"] = fake.content[f"referrers/{before}"]
    reindexed(fake, before.encode(), digest_of(forged).encode())


def two_platforms(fake: type[FakeRegistry], name: str) -> None:
    """An index in the place of the image."""
    content = json.dumps({"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": []}).encode()
    fake.content[f"manifests/{digest_of(content)}"] = (manifests.INDEX, content)
    reindexed(fake, manifest(fake, name).encode(), digest_of(content).encode())


def ambiguous(*changes: tuple[bytes, bytes]) -> Callable[[type[FakeRegistry], str], None]:
    """A manifest with the same attestations that other readers take for another one."""

    def change(fake: type[FakeRegistry], name: str) -> None:
        before = manifest(fake, name)
        kind, content = fake.content[f"manifests/{name}"]
        for old, new in changes:
            assert old in content
            content = content.replace(old, new)
        fake.content[f"manifests/{digest_of(content)}"] = (kind, content)
        reindexed(fake, before.encode(), digest_of(content).encode())

    return change


def huge_referrers(fake: type[FakeRegistry], name: str) -> None:
    path = f"referrers/{manifest(fake, name)}"
    kind, content = fake.content[path]
    fake.content[path] = (kind, content + b" " * (5 << 20))


def endless_referrers(fake: type[FakeRegistry], name: str) -> None:
    path = f"referrers/{manifest(fake, name)}"
    _, content = fake.content[path]
    rows = json.loads(content)["manifests"] * 1000
    fake.content[path] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    fake.links[f"/v2/us/x/{path}"] = {"Link": f'<{path.rpartition("/")[2]}>; rel="next"'}


def replaced_with_the_attestations_of_the_former(fake: type[FakeRegistry], name: str) -> None:
    replaced(fake, name, attestations_of=name)


def changed_configuration(fake: type[FakeRegistry], name: str) -> None:
    digest = json.loads(fake.content[f"manifests/{name}"][1])["config"]["digest"]
    kind, content = fake.content[f"blobs/{digest}"]
    fake.content[f"blobs/{digest}"] = (kind, content + b" ")


def row_that_points_elsewhere(fake: type[FakeRegistry], name: str) -> None:
    other = image(fake, "2.20.0", {"io.tfbuild.version": "other"}, cpu="x86-64-v3")
    reindexed(fake, manifest(fake, name).encode(), manifest(fake, other).encode())


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (without(referrers.PROVENANCE), "no provenance is attached"),
        (without(referrers.SBOM), "the SBOM that its provenance names is not attached"),
        (without_the_sboms_manifest, "is listed but missing"),
        (with_fewer_features_in_the_index, "it has other labels than its index says"),
        (replaced, "no provenance is attached"),
        (replaced_with_the_attestations_of_the_former, "is about another image"),
        (row_that_points_elsewhere, "it has other labels than its index says"),
        (two_platforms, "it is not an image but application/vnd.oci.image.index"),
        (ambiguous((b'{"schemaVersion"', b'{"Config": {}, "schemaVersion"')), "has the key 'config' twice"),
        (ambiguous((b'{"schemaVersion"', b'{"manifests": [], "schemaVersion"')), "as an image or as an index"),
        (huge_referrers, "sends more than 4194304 bytes"),
        (endless_referrers, "lists more than 1000 referrers"),
    ],
)
def test_a_changed_image_is_refused_and_the_next_one_named(
    tamper: Callable[[type[FakeRegistry], str], None], reason: str, fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    best, second = names["x86-64-v4"], names["x86-64-v3"]
    assert pulling.accept(connect(fake), select(fake)).image.id == best
    tamper(fake, best)
    with pytest.raises(pulling.Altered, match=reason) as refusal:
        pulling.accept(connect(fake), select(fake))
    assert (refusal.value.exit_code, refusal.value.image.id) == (24, best)
    assert refusal.value.second is not None
    assert refusal.value.hint.endswith(f"second choice: {second}, by the same command with --skip {best}")
    choice = select(fake, best)
    assert pulling.accept(connect(fake), choice).image.id == second
    assert {other.id: other.reason for other in choice.passed_over}[best] == "--skip"


def test_a_second_choice_is_intact_too(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    for level in ("x86-64-v4", "x86-64-v3"):
        without(referrers.SBOM)(fake, names[level])
    with pytest.raises(pulling.Altered, match=f"second choice: {names['x86-64-v2']}"):
        pulling.accept(connect(fake), select(fake))
    without(referrers.SBOM)(fake, names["x86-64-v2"])
    with pytest.raises(pulling.Altered, match="no second choice was found"):
        pulling.accept(connect(fake), select(fake))


def test_a_lost_image_is_passed_over_with_one_line(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    del fake.content[f"manifests/{manifest(fake, names['x86-64-v4'])}"]
    accepted = pulling.accept(connect(fake), select(fake))
    assert accepted.image.id == names["x86-64-v3"]
    (line,) = choose.passed_over_lines(accepted.passed_over)
    assert line.startswith(f"not {names['x86-64-v4']}: it is missing in the registry")
    for level in ("x86-64-v3", "x86-64-v2"):
        del fake.content[f"manifests/{manifest(fake, names[level])}"]
    with pytest.raises(RegistryRefused, match=r"not .*v4, .*v3 and 1 more: it is missing in the registry"):
        pulling.accept(connect(fake), select(fake))


@pytest.mark.parametrize(
    ("lost", "words", "code"),
    [(1, (), 0), (2, (), 0), (4, (), 26), (1, ("--lock=x.lock",), 0), (4, ("--lock=x.lock",), 26)],
)
def test_pull_names_each_lost_image_once_and_with_no_other_reason(
    lost: int, words: tuple[str, ...], code: int, fake: type[FakeRegistry], tmp_path: Path
) -> None:
    """Two of them differ in their builds only."""
    pushed = [image(fake, "2.20.0", cpu=level) for level in reversed(LEVELS)]
    pushed.insert(1, image(fake, "2.20.0", {"io.tfbuild.id": f"{pushed[0]}-a"}, cpu="x86-64-v4"))
    for name in pushed:
        gather(fake, name)
    ranked = [row.id for row in select(fake).fitting]
    for name in ranked[:lost]:
        del fake.content[f"manifests/{manifest(fake, name)}"]
    (tmp_path / "cpuinfo").write_text(machine("rocky9-zen5").cpuinfo())
    place = f"--registry={fake.host}/us/x"
    done = answer("pull", "--dry-run", "--cpuinfo=cpuinfo", place, *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("it is missing in the registry")) == (code, 1), done.stderr
    assert "an older build" not in done.stderr
    if code == 0 and lost == 2:
        assert f"not {ranked[3]}: x86-64-v3 uses more of this CPU than x86-64-v2" in done.stderr


def test_many_lost_images_are_one_line(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    """Whoever may push can add any number of them."""
    choice = select(fake)
    best, *_ = choice.fitting
    lost = [replace(best, id=f"{best.id}-{number}", digest=digest_of(str(number).encode())) for number in range(3000)]
    accepted = pulling.accept(connect(fake), choice.among([*lost[:99], *choice.fitting]))
    assert accepted.image == best
    reason = "it is missing in the registry: push it again, or yank it"
    lines = choose.passed_over_lines(accepted.passed_over)
    assert lines == [f"not {lost[0].id}, {lost[1].id} and 97 more: {reason}"]
    fake.requests.clear()
    said = rf"none of the first 100 images of .* that fit can be pulled: not {lost[0].id}, {lost[1].id} and 98 more"
    with pytest.raises(RegistryRefused, match=said):
        pulling.accept(connect(fake), choice.among([*lost, *choice.fitting]))
    assert len(fake.requests) == 100


def test_many_changed_images_end_too(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    choice = select(fake)
    best, *_ = choice.fitting
    changed = [replace(best, id=f"{best.id}-{number}") for number in range(3000)]
    with pytest.raises(pulling.Altered, match=f"{changed[0].id} is refused: .*") as refusal:
        pulling.accept(connect(fake), choice.among([*changed, *choice.fitting]))
    assert refusal.value.hint.endswith("; no second choice was found")


def with_layers(fake: type[FakeRegistry], release: str, level: str) -> str:
    """An image with two layers, which other images have as well."""
    layers = [b"one layer", b"another layer"]
    for content in layers:
        fake.content[f"blobs/{digest_of(content)}"] = ("application/octet-stream", content)
    name = image(fake, release, cpu=level, layers=layers)
    gather(fake, name)
    return name


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is missing in the registry"), (b"one l", "has 5 bytes in the registry instead of 9")],
)
def test_an_image_whose_layer_is_gone_or_cut_is_marked_and_passed_over(
    content: bytes | None, reason: str, fake: type[FakeRegistry], names: dict[str, str], tmp_path: Path
) -> None:
    best = with_layers(fake, "2.21.0", "x86-64-v4")
    second = image(fake, "2.21.0", cpu="x86-64-v3")
    gather(fake, second)
    assert pulling.accept(connect(fake), select(fake)).image.id == best
    path = f"blobs/{digest_of(b'one layer')}"
    del fake.content[path]
    if content is not None:
        fake.content[path] = ("application/octet-stream", content)
    accepted = pulling.accept(connect(fake), select(fake))
    assert accepted.image.id == second
    assert [row.id for row in accepted.passed_over] == [best]
    assert reason in accepted.passed_over[0].reason
    with pytest.raises(Unfinished, match=reason) as refusal:
        check.image(connect(fake), best, tmp_path)
    assert refusal.value.exit_code == 30
    marks = {entry.id: entry.altered for entry in inventory.remote(connect(fake), None)}
    assert reason in marks[best]
    assert not marks[second]


def test_an_attachment_of_somebody_elses_changes_nothing(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    """Such as an in-toto document with two layers, or one that is gone."""
    best = names["x86-64-v4"]
    subject = connect(fake).manifest(best)
    assert subject is not None
    two = {"subject": {"digest": subject.digest}, "layers": [{"digest": "sha256:x"}, {"digest": "sha256:y"}]}
    content = json.dumps({"artifactType": referrers.PROVENANCE, **two}).encode()
    fake.content[f"manifests/{digest_of(content)}"] = (manifests.IMAGES[0], content)
    path = f"referrers/{subject.digest}"
    rows = json.loads(fake.content[path][1])["manifests"]
    for digest in (digest_of(content), digest_of(b"gone")):
        rows += [{"artifactType": kind, "digest": digest} for kind in referrers.NEEDED]
    fake.content[path] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    assert pulling.accept(connect(fake), select(fake)).image.id == best


def test_an_unsigned_image_of_a_newer_release_does_not_keep_the_signed_ones_from_being_chosen(
    fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    known = set[str]().union(*(signed(fake, name) for name in names.values()))
    demand = demand_for(known)

    def choose_signed() -> Choice:
        return pulling.select_signed(connect(fake), partial(select, fake), demand)

    assert choose_signed().best == select(fake).best
    for level in ("x86-64-v3", "x86-64-v4-vnni"):  # of which the host runs one
        name = image(fake, "2.21.0", cpu=level)
        gather(fake, name)
        chosen = choose_signed()
        assert pulling.accept(connect(fake), chosen, demand=demand).image.id == names["x86-64-v4"]
        passed_over = {row.id: row.reason for row in chosen.passed_over if row.notable}
        assert passed_over == {"TensorFlow 2.21.0": "no image of this release has a signature that cosign accepts"}
    known |= signed(fake, name)
    best = choose_signed().best
    assert best is not None
    assert best.release == "2.21.0"
    known.clear()
    with pytest.raises(VerificationFailed, match="has no signature"):
        pulling.accept(connect(fake), choose_signed(), demand=demand)


def test_an_index_full_of_unsigned_images_is_not_asked_about_to_its_end(
    fake: type[FakeRegistry], names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may push can add any number of newer releases."""
    monkeypatch.setattr(pulling, "MOST_ASKED", 3)
    gather(fake, image(fake, "2.21.0"))
    asked: list[str] = []

    def demand(reference: str) -> None:
        asked.append(reference)
        raise VerificationFailed(f"{reference} has no signature that cosign accepts")

    with pytest.raises(VerificationFailed, match=r"none of the first 3 images that any-mkl@sha256:\w+ names has"):
        pulling.select_signed(connect(fake), partial(select, fake), demand)
    assert len(asked) == 3


def test_each_candidate_in_turn_is_asked_for_its_signature(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    known = set[str]().union(*(signed(fake, names[level]) for level in ("x86-64-v2", "x86-64-v3")))
    demand = demand_for(known)
    accepted = pulling.accept(connect(fake), select(fake), demand=demand)
    assert accepted.image.id == names["x86-64-v3"]
    assert [other.id for other in accepted.passed_over] == [names["x86-64-v4"]]
    # Neither does an image without a signature become the second choice.
    without(referrers.SBOM)(fake, names["x86-64-v3"])
    known.remove(f"{connect(fake).repository}@{manifest(fake, names['x86-64-v2'])}")
    with pytest.raises(pulling.Altered, match="no second choice was found"):
        pulling.accept(connect(fake), select(fake), demand=demand)
    known.clear()
    with pytest.raises(VerificationFailed, match=f"{manifest(fake, names['x86-64-v4'])} has no signature"):
        pulling.accept(connect(fake), select(fake), demand=demand)


def test_a_provenance_without_a_signature_does_not_count_if_one_is_required(
    fake: type[FakeRegistry], names: dict[str, str], tmp_path: Path
) -> None:
    """A genuine, signed image to which somebody attached a provenance of their own, of a later verification."""
    best = names["x86-64-v4"]
    known = signed(fake, best)
    demand = demand_for(known)
    subject = connect(fake).manifest(best)
    assert subject is not None
    (own,) = referrers.documents(connect(fake), subject, referrers.PROVENANCE)
    forged = own.replace(b'"created": "2026-11-01T00:00:00Z"', b'"created": "2026-11-02T00:00:00Z"')
    attestation = referrers.Attachment(media_type=referrers.PROVENANCE, title="x", created="", content=forged)
    attached = f"{connect(fake).repository}@{referrers.attach(connect(fake), attestation, subject)}"
    labels = configured_labels(connect(fake).config(subject))

    def counts(demand: referrers.Demand | None) -> list[Statement]:
        return check.statements(connect(fake), subject, labels, demand=demand)

    assert len(counts(None)) == 2
    assert len(counts(demand)) == 1
    assert check.image(connect(fake), best, tmp_path, demand).notes != ()
    assert pulling.accept(connect(fake), select(fake), demand=demand).image.id == best
    # With the forged one alone, it is not the image described.
    known -= signed(fake, best) - {f"{connect(fake).repository}@{subject.digest}", attached}
    for refused in (
        lambda: check.image(connect(fake), best, tmp_path, demand),
        lambda: pulling.accept(connect(fake), select(fake), demand=demand),
    ):
        with pytest.raises(VerificationFailed, match=r"the attached application/vnd\.in-toto\+json is not signed"):
            refused()


def test_a_provenance_of_the_future_does_not_count(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    subject = connect(fake).manifest(names["x86-64-v4"])
    assert subject is not None
    labels = configured_labels(connect(fake).config(subject))
    (own,) = referrers.documents(connect(fake), subject, referrers.PROVENANCE)
    later = own.replace(b'"created": "2026-11-01T00:00:00Z"', b'"created": "2099-11-02T00:00:00Z"')
    attestation = referrers.Attachment(media_type=referrers.PROVENANCE, title="x", created="", content=later)
    referrers.attach(connect(fake), attestation, subject)
    (counts,) = check.statements(connect(fake), subject, labels)
    assert counts == provenance.from_json(own)
    without(referrers.PROVENANCE)(fake, names["x86-64-v4"])
    referrers.attach(connect(fake), attestation, subject)
    with pytest.raises(VerificationFailed, match=r"is of the future \(2099-11-02"):
        check.statements(connect(fake), subject, labels)


def test_an_image_is_checked_with_few_requests_and_without_its_sbom(
    fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    choice, registry = select(fake), connect(fake)
    fake.requests.clear()
    pulling.accept(registry, choice)
    assert len(fake.requests) <= 7
    assert len([request for request in fake.requests if "/blobs/" in request]) == 2


def test_attestations_that_name_another_image_do_not_vouch(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    best = names["x86-64-v4"]
    subject = connect(fake).manifest(best)
    assert subject is not None
    attest(fake, labels_of_plan("2.20.0", "x86-64-v3"), subject)
    with pytest.raises(pulling.Altered, match="labels differ from its provenance"):
        pulling.accept(connect(fake), select(fake))


def test_a_yanked_image_that_an_index_offers_again_is_passed_over(
    fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    """Somebody puts back the indexes of the day before."""
    best = names["x86-64-v4"]
    indexes_before = {path: fake.content[path] for path in fake.content if path.endswith("-mkl")}
    yanking.yank(connect(fake), best, "crashes in MatMul")
    chosen = select(fake).best
    assert chosen is not None
    assert chosen.id == names["x86-64-v3"]
    fake.content.update(indexes_before)
    accepted = pulling.accept(connect(fake), select(fake))
    assert accepted.image.id == names["x86-64-v3"]
    assert [other.reason for other in accepted.passed_over] == ["it was yanked: crashes in MatMul"]
    yanking.yank(connect(fake), best, "")
    assert pulling.accept(connect(fake), select(fake)).image.id == best


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"avx512bw avx512cd", b"avx512bw  avx512cd"), (b"linux/amd64", b"Linux/amd64"), (b"v4", b"v\xd1\x85")],
)
def test_a_row_that_cannot_be_read_is_named(
    old: bytes, new: bytes, fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    """It is not the same as an index without that image."""
    best, second = names["x86-64-v4"], names["x86-64-v3"]
    kind, content = fake.content["manifests/any-mkl"]
    head, name, tail = content.partition(f'"io.tfbuild.id": "{best}"'.encode())
    assert old in tail
    fake.content["manifests/any-mkl"] = (kind, head + name + tail.replace(old, new))
    choice = select(fake)
    assert choice.best is not None
    assert choice.best.id == second
    why = choose.explanation(choice, any_release=False)[1]
    assert f"not {best}: its row in the index cannot be read" in why
    # By its digest, where not even that can be read.
    fake.content["manifests/any-mkl"] = (kind, head + tail.replace(b",", b"", 1))
    (row,) = [row for row in select(fake).passed_over if row.notable]
    assert row.id == manifest(fake, best)
