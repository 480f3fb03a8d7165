"""A push from an engine to a registry: what is there afterwards, in which order it comes, and what stops it before."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import image as foreign_image
from tests.publish.fake_images import labels_of_plan, offered
from tests.publish.test_signing import cosign as cosign
from tests.publish.test_signing import words
from tests.publish.test_supply import files
from tests.verify.test_report import report
from tfbuild.engine import Engine, Files, Image
from tfbuild.errors import (
    RegistryRefused,
    Stale,
    TfbuildError,
    Unfinished,
    UnknownImage,
    UsageError,
    VerificationFailed,
    Yanked,
)
from tfbuild.measure import records
from tfbuild.oci import manifests, references, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import digest_of
from tfbuild.publish import check, pushing, signing, yanking
from tfbuild.publish.pushing import Pushed
from tfbuild.util.progress import Progress

PLATFORM = {"os": "linux", "architecture": "amd64"}
CREATED = "2026-11-01T00:00:00Z"
INDEXES = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")


LAYER = b"a layer"


class Host(Engine):
    """An engine with one image. It pushes to a fake registry and knows what it pulled by the configuration."""

    def __init__(self, fake: type[FakeRegistry], labels: dict[str, str] | None = None) -> None:
        self.fake, self.labels = fake, labels_of_plan("2.20.0", "x86-64-v3") | (labels or {})
        self.config = json.dumps({**PLATFORM, "created": CREATED, "config": {"Labels": self.labels}}).encode()
        self.own_id = digest_of(self.config)
        self.identifier = self.labels.get("io.tfbuild.id", "")
        self.names = {f"tfbuild:{self.identifier}"}
        self.repo_digests: tuple[str, ...] = ()
        self.pushed: list[str] = []
        self.files = files()

    def exists(self, ref: str) -> bool:
        return ref in self.names or ref == self.own_id

    def image(self, ref: str) -> Image:
        if not self.exists(ref) and not ref.startswith(f"{connect(self.fake).repository}@"):
            raise UnknownImage(f"no image {ref}", hint="")
        return Image(
            id=self.own_id, labels=self.labels, size=1, env=(), architecture="amd64",
            repo_digests=self.repo_digests, tags=tuple(self.names), created=CREATED,
        )  # fmt: skip

    def labelled(self, label: str) -> list[Image]:
        return [self.image(self.own_id)] if label in self.labels else []

    def tag(self, ref: str, new: str) -> None:
        self.image(ref)
        self.names.add(new)

    def untag(self, ref: str) -> None:
        self.names.remove(ref)

    def push(self, ref: str, progress: Progress) -> None:
        assert ref in self.names
        self.pushed.append(ref)
        self.arrive(ref.rpartition(":")[2])

    def arrive(self, tag: str) -> str:
        """Put the image under a tag, as a push of the engine does; return the digest of its manifest."""
        document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": {"digest": self.own_id}}
        content = json.dumps(document | {"layers": [{"digest": digest_of(LAYER), "size": len(LAYER)}]}).encode()
        self.fake.content[f"blobs/{digest_of(LAYER)}"] = ("application/octet-stream", LAYER)
        self.fake.content[f"blobs/{self.own_id}"] = ("application/octet-stream", self.config)
        for name in (tag, digest_of(content)):
            self.fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], content)
        return digest_of(content)

    def pull(self, ref: str, progress: Progress) -> None:
        self.pushed.append(f"pulled {ref}")

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int, *_: Any) -> Files:
        self.image(ref)
        known = {path: content for path, content in self.files.files.items() if wanted(path)}
        assert known.keys() == self.files.files.keys()
        return Files(files=known, links=self.files.links)


@pytest.fixture
def host(fake: type[FakeRegistry], tmp_path: Path) -> Host:
    """An engine with an image that passed verification."""
    host = Host(fake)
    verified(host, tmp_path)
    return host


def verified(host: Host, reports: Path, verdict: str = "pass", **image: Any) -> None:
    facts = replace(report().image, **({"id": host.own_id} | image))
    written = replace(report(), id=host.identifier, verdict=verdict, image=facts)
    (reports / f"{host.identifier}.json").write_text(records.to_json(written))


def push(host: Host, reports: Path, name: str = "", registry: Registry | None = None, **options: Any) -> Pushed:
    named = name or f"tfbuild:{host.identifier}"
    given = {"force": False, "progress": Progress(), **options}
    return pushing.push(host, named, registry or connect(host.fake), reports, **given)


def other_image(fake: type[FakeRegistry]) -> str:
    """Put another build of the same identifier under the fixed tag."""
    name = foreign_image(fake, "2.20.0", {"io.tfbuild.version": "other"}, cpu="x86-64-v3")
    return digest_of(fake.content[f"manifests/{name}"][1])


def writes(fake: type[FakeRegistry]) -> list[str]:
    return [request for request in fake.requests if request.startswith(("PUT ", "DELETE "))]


def test_a_pushed_image_is_offered_with_its_attestations_and_is_the_one_described(host: Host, tmp_path: Path) -> None:
    done = push(host, tmp_path)
    registry = connect(host.fake)
    ref = f"{registry.repository}:{host.identifier}"
    assert (done.ref, done.moved, done.uploaded, done.signed) == (ref, INDEXES, True, False)
    assert done.digest == registry.digest(host.identifier)
    assert done.attestations is not None
    rows = referrers.listed(registry, done.digest)
    assert [(row["artifactType"], row["digest"]) for row in rows] == [
        (referrers.SBOM, done.attestations.sbom), (referrers.PROVENANCE, done.attestations.provenance)
    ]  # fmt: skip
    assert done.to_json() == {
        "image": ref, "digest": done.digest, "uploaded": True, "indexes": list(INDEXES), "sbom": done.attestations.sbom,
        "provenance": done.attestations.provenance, "signed": False,
    }  # fmt: skip
    assert [offered(host.fake, tag) for tag in INDEXES] == [[host.identifier]] * len(INDEXES)
    # What the registry has is what lies beside the report.
    subject = registry.manifest(host.identifier)
    assert subject is not None
    for kind, suffix in ((referrers.SBOM, "cdx"), (referrers.PROVENANCE, "provenance")):
        attestation = (tmp_path / f"{host.identifier}.{suffix}.json").read_bytes()
        assert referrers.documents(registry, subject, kind) == [attestation]
    checked = check.image(registry, host.identifier, tmp_path)
    assert (checked.report, checked.lacking, checked.notes) == (True, (), ())
    # Neither the engine nor the registry keeps the name of the upload.
    assert host.names == {f"tfbuild:{host.identifier}"}
    arriving = references.arriving_tag(host.own_id)
    assert host.pushed == [f"{registry.repository}:{arriving}"]
    assert host.fake.content[f"manifests/{arriving}"] == (manifests.INDEX, manifests.EMPTY_INDEX)


def test_pushing_again_uploads_nothing_and_makes_the_same_attestations(host: Host, tmp_path: Path) -> None:
    first = push(host, tmp_path)
    host.fake.requests.clear()
    again = push(host, tmp_path)
    assert again == replace(first, uploaded=False)
    assert len(host.pushed) == 1
    assert f"PUT /v2/us/x/manifests/{host.identifier}" not in host.fake.requests


def test_an_image_whose_layer_the_registry_lost_is_uploaded_again(host: Host, tmp_path: Path) -> None:
    first = push(host, tmp_path)
    del host.fake.content[f"blobs/{digest_of(LAYER)}"]
    with pytest.raises(Unfinished, match=r"its layer .* is missing in the registry"):
        pushing.finish(connect(host.fake), host.identifier, tmp_path)
    assert push(host, tmp_path) == replace(first, uploaded=True)
    assert len(host.pushed) == 2
    check.refuse_unfinished(check.image(connect(host.fake), host.identifier, tmp_path))


def test_the_name_that_a_push_left_which_was_killed_after_its_upload_goes(host: Host, tmp_path: Path) -> None:
    name = f"{connect(host.fake).repository}:{references.arriving_tag(host.own_id)}"
    host.tag(host.own_id, name)
    host.push(name, Progress())
    push(host, tmp_path)
    assert (host.pushed, host.names) == ([name], {f"tfbuild:{host.identifier}"})


def test_an_image_is_signed_before_anything_offers_it(host: Host, tmp_path: Path, cosign: Path) -> None:
    (cosign / "code").write_text("1")
    with pytest.raises(TfbuildError, match="cosign did not sign"):
        push(host, tmp_path, sign=signing.signer("--key k", None))
    assert connect(host.fake).tags() == []
    assert not [path for path in host.fake.content if path.startswith("referrers/")]
    # The same command goes on with what has arrived.
    (cosign / "code").write_text("0")
    done = push(host, tmp_path, sign=signing.signer("--key k", None))
    assert (done.signed, done.uploaded, len(host.pushed)) == (True, True, 1)
    assert done.attestations is not None
    signed = [f"{connect(host.fake).repository}@{digest}" for digest in (done.digest, done.attestations.provenance)]
    command = ["sign", "--yes", "--key", "k"]
    # At the end the indexes that offer it, so that nobody can put an older one back unnoticed.
    indexed = sorted({f"{connect(host.fake).repository}@{connect(host.fake).digest(tag)}" for tag in done.moved})
    expected = [word for reference in (*signed, *indexed) for word in (*command, reference)]
    assert (cosign / "all").read_text().splitlines()[-len(expected) :] == expected
    assert words(cosign) == [*command, indexed[-1]]


def test_without_cosign_a_signed_push_ends_before_the_upload(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TfbuildError, match="not on PATH"):
        push(host, tmp_path, sign=signing.signer("", None))
    assert (host.pushed, writes(host.fake)) == ([], [])
    assert push(host, tmp_path).signed is False


@pytest.mark.parametrize(
    "unverify",
    [
        lambda host, reports: (reports / f"{host.identifier}.json").unlink(),
        lambda host, reports: verified(host, reports, "fail"),
        lambda host, reports: verified(host, reports, id=digest_of(b"another")),
    ],
    ids=["no report", "it failed", "of another image"],
)
def test_only_an_image_that_passed_verification_is_pushed(
    unverify: Callable[[Host, Path], None], host: Host, tmp_path: Path
) -> None:
    unverify(host, tmp_path)
    with pytest.raises(VerificationFailed, match=f"tfbuild:{host.identifier} is not verified") as refusal:
        push(host, tmp_path)
    assert refusal.value.hint == f"invoke verify tfbuild:{host.identifier}"
    assert (host.pushed, writes(host.fake)) == ([], [])


def test_a_fixed_tag_is_only_moved_with_force(host: Host, tmp_path: Path) -> None:
    other = other_image(host.fake)
    with pytest.raises(RegistryRefused, match=rf"{host.identifier} is another image there \({other}\)") as refusal:
        push(host, tmp_path)
    assert "--force" in refusal.value.hint
    assert (host.pushed, writes(host.fake)) == ([], [])
    done = push(host, tmp_path, force=True)
    assert done.uploaded
    assert connect(host.fake).digest(host.identifier) == done.digest != other


def test_an_image_that_takes_the_fixed_tag_meanwhile_keeps_it(host: Host, tmp_path: Path) -> None:
    read = host.read_files

    def read_files(ref: str, wanted: Callable[[str], bool], limit: int) -> Files:
        others.append(other_image(host.fake))
        return read(ref, wanted, limit)

    others: list[str] = []
    host.read_files = read_files  # type: ignore[method-assign]
    with pytest.raises(RegistryRefused, match="is another image there"):
        push(host, tmp_path)
    assert [connect(host.fake).digest(host.identifier)] == others


def test_a_push_whose_tag_is_overwritten_at_its_end_says_so(host: Host, tmp_path: Path) -> None:
    class Racing(Registry):
        def discard(self, tag: str) -> None:
            other_image(host.fake)

    racing = Racing(connect(host.fake).repository)
    with pytest.raises(RegistryRefused, match="was changed to another image during the push"):
        push(host, tmp_path, registry=racing)


def test_an_upload_that_another_one_overwrites_is_refused(host: Host, tmp_path: Path) -> None:
    intruder = Host(host.fake, {"io.tfbuild.version": "of somebody else"})

    def overwritten(ref: str, progress: Progress) -> None:
        intruder.arrive(ref.rpartition(":")[2])

    host.push = overwritten  # type: ignore[method-assign]
    with pytest.raises(RegistryRefused, match=r"arriving-.* is not the image that was pushed"):
        push(host, tmp_path)
    assert connect(host.fake).tags() == []


def test_two_pushes_of_one_image_at_once_both_end_well(host: Host, tmp_path: Path) -> None:
    """The other one has set the fixed tag and removed the arriving tag before this one looks for it."""

    def beaten(ref: str, progress: Progress) -> None:
        host.arrive(host.identifier)

    host.push = beaten  # type: ignore[method-assign]
    assert push(host, tmp_path).moved == INDEXES


def test_a_yanked_image_is_not_pushed_again(host: Host, tmp_path: Path) -> None:
    done = push(host, tmp_path)
    yanking.yank(connect(host.fake), host.identifier, "crashes")
    with pytest.raises(Yanked, match=f"this image, {host.identifier}, was yanked: crashes") as refusal:
        push(host, tmp_path, force=True)
    assert refusal.value.hint == f"invoke yank {host.identifier} --undo"
    # Nor when its tag is another image now: the engine knows the image by the digest that it pulled.
    other_image(host.fake)
    host.repo_digests = (f"elsewhere/x@{digest_of(b'x')}", f"{connect(host.fake).repository}@{done.digest}")
    host.fake.requests.clear()
    with pytest.raises(Yanked):
        push(host, tmp_path, force=True)
    assert writes(host.fake) == []
    # Or it shows only when the image has arrived.
    host.repo_digests = (f"elsewhere/x@{done.digest}",)
    with pytest.raises(Yanked):
        push(host, tmp_path, force=True)
    assert connect(host.fake).digest(host.identifier) != done.digest


def test_an_image_whose_labels_no_plan_writes_is_not_pushed(fake: type[FakeRegistry], tmp_path: Path) -> None:
    for labels in ({"io.tfbuild.release": "x"}, {"io.tfbuild.platform": "plan9/mips"}):
        host = Host(fake, labels)
        verified(host, tmp_path)
        with pytest.raises(RegistryRefused, match="are invalid") as refusal:
            push(host, tmp_path)
        assert refusal.value.hint == "build it again with this tfbuild"
        assert writes(fake) == []


def test_an_image_may_be_named_as_it_will_be_in_the_registry(host: Host, tmp_path: Path) -> None:
    ref = f"{connect(host.fake).repository}:{host.identifier}"
    assert push(host, tmp_path, ref).ref == ref
    assert push(host, tmp_path, host.identifier).ref == ref
    with pytest.raises(UnknownImage):
        push(host, tmp_path, f"ghcr.io/us/x:{host.identifier}")


def test_a_rehearsal_finds_what_stops_a_push_and_changes_nothing(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(host.fake)

    def rehearse(**options: Any) -> pushing.Rehearsal:
        name = f"tfbuild:{host.identifier}"
        return pushing.rehearse(host, name, registry, tmp_path, **{"force": False, **options})

    before = dict(host.fake.content)
    ready = rehearse()
    assert (ready.ref, ready.there, ready.existing) == (f"{registry.repository}:{host.identifier}", None, None)
    assert (host.fake.content, host.pushed) == (before, [])
    other = other_image(host.fake)
    with pytest.raises(RegistryRefused, match="is another image there"):
        rehearse()
    forced = rehearse(force=True)
    assert forced.there is not None
    assert (forced.there.digest, forced.existing) == (other, None)
    push(host, tmp_path, force=True)
    again = rehearse()
    assert again.there is not None
    assert again.existing == again.there
    monkeypatch.setattr(host.fake, "do_POST", lambda self: self.answer(403, "application/json", b"{}"))
    with pytest.raises(RegistryRefused, match="answers 403"):
        rehearse()
    with pytest.raises(RegistryRefused, match="answers 403"):
        pushing.access(registry, host.identifier)
    with pytest.raises(RegistryRefused, match="answers 403"):
        pushing.finish(registry, host.identifier, tmp_path, dry_run=True)


def test_ci_learns_which_tag_it_may_write_and_what_that_is_now(host: Host, tmp_path: Path) -> None:
    registry = connect(host.fake)
    ref = f"{registry.repository}:{host.identifier}"
    assert pushing.access(registry, host.identifier) == (ref, "")
    done = push(host, tmp_path)
    for name in (host.identifier, f"tfbuild:{host.identifier}", ref):
        assert pushing.access(registry, name) == (ref, done.digest)
    with pytest.raises(UsageError, match="does not name a tag"):
        pushing.access(registry, done.digest)
    with pytest.raises(UsageError, match="does not name an image in a repository") as refusal:
        pushing.access(registry, "us/x")
    assert "invoke images" in refusal.value.hint
    with pytest.raises(UsageError, match=f"ghcr.io/us/x:{host.identifier} is not in {registry.repository}") as refusal:
        pushing.access(registry, f"ghcr.io/us/x:{host.identifier}")
    assert refusal.value.hint == "--registry ghcr.io/us/x"


def test_finishing_a_push_only_writes_indexes(host: Host, tmp_path: Path) -> None:
    done = push(host, tmp_path)
    registry = connect(host.fake)
    del host.fake.content["manifests/any-mkl"]
    before = dict(host.fake.content)
    ready = pushing.finish(registry, host.identifier, tmp_path, dry_run=True)
    assert ready == replace(done, uploaded=False, attestations=None, signed=None, moved=("any-mkl",))
    assert ready.to_json() == done.to_json() | {
        "uploaded": False, "sbom": None, "provenance": None, "signed": None, "indexes": ["any-mkl"]
    }  # fmt: skip
    assert host.fake.content == before
    assert pushing.finish(registry, host.identifier, tmp_path).moved == INDEXES
    assert offered(host.fake, "any-mkl") == [host.identifier]
    with pytest.raises(UnknownImage, match=r"has no 2\.20\.0-mkl-py3\.13-gone"):
        pushing.finish(registry, "2.20.0-mkl-py3.13-gone", tmp_path)


# --- what was pushed is checked ---------------------------------------------------------------------------------------


def test_a_report_is_compared_with_the_one_that_was_published(host: Host, tmp_path: Path) -> None:
    push(host, tmp_path)
    path = tmp_path / f"{host.identifier}.json"
    published = path.read_text()

    def checked() -> check.CheckedImage:
        return check.image(connect(host.fake), host.identifier, tmp_path)

    assert checked().to_json()["report_compared"] is True
    changed = published.replace('"seconds": 37.2', '"seconds": 1.2')
    assert changed != published
    path.write_text(changed)
    with pytest.raises(VerificationFailed, match="was changed: it is not the report that the provenance names") as bad:
        checked()
    assert bad.value.hint == f"invoke verify tfbuild:{host.identifier}; then push it again"
    path.write_text("not a report")
    with pytest.raises(VerificationFailed, match="was changed"):
        checked()
    # A later verification of the same image, or one of another image, is not what was published.
    later = published.replace(report().created, "2026-12-01T00:00:00+00:00")
    other = published.replace(host.own_id, digest_of(b"other"))
    for text in (later, other):
        path.write_text(text)
        (note,) = checked().notes
        assert "is from another verification than the published one" in note
        assert checked().report is False
    path.unlink()
    (note,) = checked().notes
    assert f"is missing: only the digest of the report is known ({digest_of(published.encode())})" in note


def test_a_pulled_image_is_compared_with_its_sbom(host: Host, tmp_path: Path) -> None:
    push(host, tmp_path)
    checked = check.image(connect(host.fake), host.identifier, tmp_path)
    check.pull(host, checked, Progress())
    assert host.pushed[-1] == f"pulled {checked.reference}"
    extra = f"{'/opt/tensorflow'}/lib/python3.13/site-packages/evil-1.dist-info/METADATA"
    host.files = files(**{extra: b"Metadata-Version: 2.4\nName: evil\nVersion: 1\n"})
    with pytest.raises(VerificationFailed, match=r"differs from the image in 1 components, such as pkg:pypi/evil@1"):
        check.pull(host, checked, Progress())
    host.own_id = digest_of(b"another")
    with pytest.raises(RegistryRefused, match="is another image on this engine") as refusal:
        check.pull(host, checked, Progress())
    assert refusal.value.hint == f"docker image rm {checked.reference}"
    # Under containerd an engine knows an image by its manifest.
    host.files, host.own_id = files(), checked.manifest.digest
    check.pull(host, replace(checked, bill=sbom_of(host)), Progress())


def sbom_of(host: Host) -> bytes:
    from tfbuild.publish import sbom

    return sbom.of_image(host, host.image(host.own_id), host.own_id)


def test_an_image_of_another_context_is_outdated(host: Host, tmp_path: Path) -> None:
    push(host, tmp_path)
    checked = check.image(connect(host.fake), host.identifier, tmp_path)
    with pytest.raises(Stale, match=f"{host.identifier} was made from another context"):
        check.refuse_outdated(checked, f"sha256:{64 * '0'}")
    with pytest.raises(UsageError, match="'latest' is not the digest of a context") as refusal:
        check.refuse_outdated(checked, "latest")
    assert "invoke dockerfile --json" in refusal.value.hint


def test_a_push_that_died_before_its_attestations_is_unfinished(host: Host, tmp_path: Path) -> None:
    host.arrive(host.identifier)
    with pytest.raises(Unfinished, match="has no SBOM or no provenance, and no index offers it") as unfinished:
        check.image(connect(host.fake), host.identifier, tmp_path)
    assert unfinished.value.hint.startswith("push it again")
    push(host, tmp_path)
    check.refuse_unfinished(check.image(connect(host.fake), host.identifier, tmp_path))


def test_an_image_is_checked_by_any_of_its_names_and_no_other(host: Host, tmp_path: Path) -> None:
    digest = push(host, tmp_path).digest
    repository = connect(host.fake).repository
    for name in (host.identifier, digest, f"{repository}@{digest}", f"{repository}:{host.identifier}"):
        assert check.image(connect(host.fake), name, tmp_path).manifest.digest == digest
    host.arrive("mine")
    with pytest.raises(VerificationFailed, match=f":mine has the labels of {host.identifier}"):
        check.image(connect(host.fake), "mine", tmp_path)
    with pytest.raises(UsageError, match="latest-mkl is an index of several images") as refusal:
        check.image(connect(host.fake), "latest-mkl", tmp_path)
    assert refusal.value.hint == f"one of: {host.identifier}"
    bad = Host(host.fake, {"io.tfbuild.platform": "plan9/mips"})
    bad.arrive(bad.identifier)
    with pytest.raises(VerificationFailed, match=f"the labels of {bad.identifier} are invalid"):
        check.image(connect(host.fake), bad.identifier, tmp_path)
