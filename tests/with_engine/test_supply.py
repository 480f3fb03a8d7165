"""SBOM and provenance of real images, attached in a real registry, and found out where somebody changes them there."""

import json
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests

from tests import debian, schemas
from tests.cpu.machines import machine
from tests.servers import Handler, serving
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, made, place, push, server
from tfbuild.context import dockerfile
from tfbuild.context.dockerfile import image_digest
from tfbuild.engine import Engine
from tfbuild.errors import RegistryRefused, TfbuildError, Unfinished, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.references import Repository
from tfbuild.publish import attachments, check, indexes, provenance, pushing, sbom, signing
from tfbuild.util.progress import Progress

__all__ = ["made", "place", "server"]  # fixtures
pytestmark = pytest.mark.engine
Made = Callable[..., str]


def fault(bill: bytes) -> object:
    return schemas.sbom().validate_str(bill.decode())


def pushed(engine: Engine, made: Made, place: Registry, tmp_path: Path) -> tuple[str, Manifest]:
    one = build("x86-64-v3")
    push(engine, made(one), place, tmp_path)
    manifest = place.manifest(one.id)
    assert manifest is not None
    return one.id, manifest


def checked(place: Registry, asked: str, tmp_path: Path) -> check.CheckedImage:
    """With a registry's eyes of its own, which remember nothing."""
    return check.image(Registry(place.repository), asked, tmp_path / "reports")


# --- what is in an image ----------------------------------------------------------------------------------------------


def test_the_bill_of_a_tensorflow_image_is_what_its_own_tools_list(
    engine: Engine, image: Callable[..., str], tmp_path: Path
) -> None:
    ref = image("2.21.0")
    local = engine.image(ref)
    bill = sbom.of_image(engine, local, ref)
    assert fault(bill) is None
    assert sbom.subject(bill) == local.id
    rows = json.loads(bill)["components"]
    purls = {row.get("purl", "").partition("?")[0] for row in rows}
    script = "import importlib.metadata as m; print(*sorted({f'{d.name}=={d.version}' for d in m.distributions()}))"
    output = engine.run(ref, ["python", "-c", script], entrypoint=()).stdout.split()
    assert {f"{row['name']}=={row['version']}" for row in rows if ":pypi/" in row.get("purl", "")} == {
        f"{name.lower().replace('_', '-').replace('.', '-')}=={version}"
        for name, _, version in (line.partition("==") for line in output)
    }
    listed = engine.run(ref, ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n"], entrypoint=())
    debian = [line.split() for line in listed.stdout.splitlines()]
    assert len(debian) > 50
    assert {(row["name"], row["version"]) for row in rows if ":deb/" in row.get("purl", "")} == {
        (name, version) for name, version, _ in debian
    }
    assert "pkg:pypi/tensorflow-cpu@2.21.0" in purls
    base = local.labels["org.opencontainers.image.base.digest"]
    assert any(row["type"] == "container" and row["version"] == base for row in rows)
    tcmalloc = next(row for row in rows if row["name"] == "libtcmalloc-minimal4")
    assert tcmalloc["licenses"]
    openblas = [part for row in rows if row["name"] == "numpy" for part in row["components"]]
    assert any("openblas" in part["name"] and part["hashes"] for part in openblas)


def test_what_pip_and_the_builder_noted_is_in_the_bill(engine: Engine, derived: Callable[..., str]) -> None:
    commit, wheel, builder = secrets.token_hex(20), secrets.token_hex(32), secrets.token_hex(32)
    site = "/opt/tensorflow/lib/python3.11/site-packages/tensorflow-2.20.0.dist-info"
    notes = f"builder=sha256:{builder}\\nsource_commit={commit}\\ncompiler=clang 18\\nwheel={wheel} x.whl\\n"
    ref = derived(
        "tfbuild-base:bookworm",
        f"RUN mkdir -p {site} /opt/tfbuild && printf 'Metadata-Version: 2.1\\nName: tensorflow\\nVersion: 2.20.0\\n'"
        f" > {site}/METADATA && printf '{notes}' > /opt/tfbuild/build.txt",
    )
    local = engine.image(ref)
    bill = sbom.of_image(engine, local, ref)
    assert fault(bill) is None
    (row,) = [row for row in json.loads(bill)["components"] if row["name"] == "tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": wheel}]
    assert row["pedigree"]["commits"] == [{"uid": commit}]
    assert sbom.of_image(engine, local, ref) == bill


# --- in a registry ----------------------------------------------------------------------------------------------------


def test_a_push_attaches_both_and_verify_agrees(engine: Engine, made: Made, place: Registry, tmp_path: Path) -> None:
    name, manifest = pushed(engine, made, place, tmp_path)
    published = checked(place, name, tmp_path)
    assert (published.manifest.digest, published.report) == (manifest.digest, True)
    for reference in (manifest.digest, f"{place.repository}:{name}", f"{place.repository}@{manifest.digest}"):
        assert checked(place, reference, tmp_path) == published
    reports = tmp_path / "reports"
    assert (reports / f"{name}.cdx.json").read_bytes() == published.bill
    assert fault(published.bill) is None
    document = provenance.from_json((reports / f"{name}.provenance.json").read_bytes())
    assert document.subject[0].sha256 == manifest.digest
    assert document.resource(f"{name}.json").sha256 == manifests.digest_of((reports / f"{name}.json").read_bytes())
    # Debian's registry has no referrers API: the tag schema of the specification stands in for it.
    assert place.referrers(manifest.digest) is None
    address = f"{place.repository.url}manifests/sha256-{manifest.digest[7:]}"
    index = requests.get(address, headers={"Accept": manifests.INDEX}, timeout=10).json()
    assert {row["artifactType"] for row in index["manifests"]} == set(referrers.NEEDED)
    assert place.tags() == ["2.20-mkl", "2.20.0-mkl", name, "any-mkl", "latest-mkl"]
    with pytest.raises(UsageError, match=f"hint: one of: {name}"):
        checked(place, "latest-mkl", tmp_path)
    with pytest.raises(UnknownImage):
        checked(place, "2.20.0-mkl-py3.13-avx", tmp_path)
    with pytest.raises(UsageError, match="is not in"):
        checked(place, f"elsewhere.example/x:{name}", tmp_path)


def test_a_second_push_attaches_the_same_bytes(engine: Engine, made: Made, place: Registry, tmp_path: Path) -> None:
    image = made(build("x86-64-v3"))
    first = push(engine, image, place, tmp_path)
    again = push(engine, image, place, tmp_path)
    assert again.attestations == first.attestations
    assert len(referrers.listed(place, first.digest)) == 2


def test_no_index_offers_an_image_whose_attestations_are_not_there(
    engine: Engine, made: Made, place: Registry, tmp_path: Path
) -> None:
    """One push came as far as its fixed tag, and another, of another image, gathers the indexes meanwhile."""
    half, whole = build("x86-64-v4"), build("x86-64-v2")
    ref = f"{place.repository}:{half.id}"
    engine.tag(made(half), ref)
    engine.push(ref, Progress())
    engine.untag(ref)
    push(engine, made(whole), place, tmp_path)
    index = place.manifest("latest-mkl")
    assert index is not None
    assert [image.id for image in indexes.read_index(index)] == [whole.id]
    with pytest.raises(Unfinished, match="no index offers it: its push did not finish") as unfinished:
        checked(place, half.id, tmp_path)
    assert unfinished.value.exit_code == 30
    with pytest.raises(Unfinished):
        pushing.finish(Registry(place.repository), half.id, tmp_path / "reports")


def test_the_report_is_compared_where_it_is_here(engine: Engine, made: Made, place: Registry, tmp_path: Path) -> None:
    name, _ = pushed(engine, made, place, tmp_path)
    path = tmp_path / "reports" / f"{name}.json"
    text = path.read_text()
    path.write_text(text.replace('"seconds": 37.2', '"seconds": 37.3'))
    assert path.read_text() != text
    with pytest.raises(VerificationFailed, match="was changed"):
        checked(place, name, tmp_path)
    path.write_text(text.replace("2026-11-21T10:00", "2026-11-21T11:00"))
    assert "another verification" in checked(place, name, tmp_path).notes[0]
    path.unlink()
    published = checked(place, name, tmp_path)
    assert (published.report, "is missing" in published.notes[0]) == (False, True)


class WithReferrers(Handler):
    """The same registry with the referrers API that it lacks: what the specification wants of one that has it."""

    origin = ""
    rows: ClassVar[dict[str, list[dict[str, Any]]]] = {}

    def do_GET(self) -> None:
        found = self.rows.get(self.path.rpartition("/")[2], [])
        if "/referrers/" in self.path:
            index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": found}
            self.say(200, json.dumps(index).encode(), {"Content-Type": manifests.INDEX})
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        kept = {name: self.headers[name] for name in ("Accept", "Content-Type", "Host") if name in self.headers}
        answer = requests.request(
            self.command, f"{self.origin}{self.path}", headers=kept, data=body, timeout=10, allow_redirects=False
        )
        more = {name: answer.headers[name] for name in ("Content-Type", "Location") if name in answer.headers}
        if self.command == "PUT" and "/manifests/" in self.path and (about := json.loads(body).get("subject")):
            row = {"digest": manifests.digest_of(body), "size": len(body), "mediaType": manifests.IMAGES[0]}
            row["artifactType"] = json.loads(body)["artifactType"]
            self.rows.setdefault(about["digest"], []).append(row)
            more["OCI-Subject"] = about["digest"]
        self.say(answer.status_code, answer.content, more)

    do_HEAD = do_PUT = do_POST = do_GET


def test_a_registry_that_lists_referrers_itself_gets_no_tag_for_them(
    engine: Engine, made: Made, place: Registry, tmp_path: Path
) -> None:
    one = build("x86-64-v3")
    image, ref = made(one), f"{place.repository}:{one.id}"
    engine.tag(image, ref)
    engine.push(ref, Progress())
    engine.untag(ref)
    handler = type("Here", (WithReferrers,), {"origin": f"http://{place.repository.host}", "rows": {}})
    with serving(handler) as host:
        modern = Registry(Repository.parse(f"{host}/{place.repository.path}"))
        manifest = modern.manifest(one.id)
        assert manifest is not None
        attachments.attach(engine, engine.image(image), modern, manifest, tmp_path / "reports")
        assert referrers.complete(referrers.listed(modern, manifest.digest))
        assert checked(modern, one.id, tmp_path).report
    assert place.manifest(referrers.fallback_tag(manifest.digest)) is None


# --- tampering --------------------------------------------------------------------------------------------------------


def replace_attached(place: Registry, manifest: Manifest, media_type: str, change: Callable[[bytes], bytes]) -> None:
    """As somebody who may push does it: the index of what is attached gets another document of that type."""
    (content,) = referrers.documents(place, manifest, media_type)
    rows = [row for row in referrers.listed(place, manifest.digest) if row["artifactType"] != media_type]
    index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": rows}
    place.put(referrers.fallback_tag(manifest.digest), json.dumps(index).encode(), manifests.INDEX)
    forged = change(content)
    assert forged != content
    one = referrers.Attachment(media_type=media_type, title="x", created="", content=forged)
    referrers.attach(place, one, manifest)


def relabelled(content: bytes) -> bytes:
    document = json.loads(content)
    document["predicate"]["buildDefinition"]["internalParameters"]["labels"]["io.tfbuild.features"] = "avx"
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("media_type", "change", "reason"),
    [
        (referrers.SBOM, lambda old: old.replace(b'"CycloneDX"', b'"cyclonedx"'), "no attached SBOM is the one"),
        (referrers.PROVENANCE, relabelled, "labels differ from its provenance: io.tfbuild.features"),
        (referrers.PROVENANCE, lambda old: old.replace(b'"x86-64-v3"', b'"x86-64-v2"'), "labels differ"),
        (referrers.PROVENANCE, lambda old: old[:-20], "not a provenance statement"),
        (referrers.PROVENANCE, lambda old: old.replace(b"slsa.dev/provenance/v1", b"example.org/x"), "not an SLSA"),
    ],
)
def test_a_changed_attachment_is_found_out(
    media_type: str,
    change: Callable[[bytes], bytes],
    reason: str,
    engine: Engine,
    made: Made,
    place: Registry,
    tmp_path: Path,
) -> None:
    name, manifest = pushed(engine, made, place, tmp_path)
    replace_attached(place, manifest, media_type, change)
    with pytest.raises(VerificationFailed, match=reason) as failure:
        checked(place, name, tmp_path)
    assert failure.value.exit_code == 24


@pytest.mark.parametrize("media_type", referrers.NEEDED)
def test_a_missing_attachment_is_found_out(
    media_type: str, engine: Engine, made: Made, place: Registry, tmp_path: Path
) -> None:
    name, manifest = pushed(engine, made, place, tmp_path)
    rows = [row for row in referrers.listed(place, manifest.digest) if row["artifactType"] != media_type]
    index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": rows}
    place.put(referrers.fallback_tag(manifest.digest), json.dumps(index).encode(), manifests.INDEX)
    with pytest.raises(VerificationFailed, match="is attached to"):
        checked(place, name, tmp_path)


def test_bytes_that_change_on_the_registrys_disk_are_found_out(
    engine: Engine, made: Made, place: Registry, server: Server, tmp_path: Path
) -> None:
    name, manifest = pushed(engine, made, place, tmp_path)
    (content,) = referrers.documents(place, manifest, referrers.PROVENANCE)
    digest = manifests.digest_of(content).removeprefix("sha256:")
    (path,) = (server.folder / "data").rglob(f"sha256/{digest[:2]}/{digest}/data")
    path.write_bytes(content.replace(b'"x86-64-v3"', b'"x86-64-v2"'))
    with pytest.raises(RegistryRefused, match="does not match its digest"):
        checked(place, name, tmp_path)


def test_another_images_attestations_do_not_vouch_for_this_one(
    engine: Engine, made: Made, place: Registry, tmp_path: Path
) -> None:
    """An image with more features than it has: its configuration is another, and so is its manifest."""
    name, manifest = pushed(engine, made, place, tmp_path)
    config = place.config(manifest)
    config["config"]["Labels"]["io.tfbuild.features"] = "avx"
    content = json.dumps(config).encode()
    document = manifest.json()
    document["config"] |= {"digest": place.upload(content), "size": len(content)}
    forged = json.dumps(document).encode()
    place.put(name, forged, manifest.media_type)
    # The index offers another image by that name: no push that came to no end.
    with pytest.raises(VerificationFailed, match="is another image under its tag"):
        checked(place, name, tmp_path)
    # The true image's attestations, attached to the forged one.
    there = Registry(place.repository).manifest(name)
    assert there is not None
    for media_type in referrers.NEEDED:
        (attestation,) = referrers.documents(place, manifest, media_type)
        one = referrers.Attachment(media_type=media_type, title="x", created="", content=attestation)
        referrers.attach(place, one, there)
    with pytest.raises(VerificationFailed, match="about another image"):
        checked(place, there.digest, tmp_path)
    # And with the subject changed to it.
    lying = json.loads(attestation)
    lying["subject"][0]["digest"]["sha256"] = there.digest.removeprefix("sha256:")
    referrers.attach(place, replace(one, content=json.dumps(lying).encode()), there)
    with pytest.raises(VerificationFailed, match="another configuration"):
        checked(place, there.digest, tmp_path)


def test_pulled_files_that_the_bill_does_not_name_are_found_out(
    engine: Engine, made: Made, place: Registry, tmp_path: Path
) -> None:
    name, _ = pushed(engine, made, place, tmp_path)
    published = checked(place, name, tmp_path)
    try:
        check.pull(engine, published, Progress())
        bill = json.loads(published.bill)
        bill["components"] = [{"type": "library", "name": "left-pad", "bom-ref": "left-pad"}]
        with pytest.raises(VerificationFailed, match="left-pad"):
            check.pull(engine, replace(published, bill=json.dumps(bill).encode()), Progress())
    finally:
        engine.remove(published.reference)


# --- signatures -------------------------------------------------------------------------------------------------------


def test_signing_without_cosign_pushes_nothing(
    engine: Engine, made: Made, place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(build("avx"))
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "empty"))
        with pytest.raises(TfbuildError, match=r"(?s)need cosign.*hint: install cosign"):
            signing.signer("", place.ca)
    assert place.tags() == []


# A log of signatures in the web is none of a test's business.
UNLOGGED, UNLOGGED_CHECK = "--tlog-upload=false", "--insecure-ignore-tlog=true"


@pytest.fixture
def cosign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pairs of keys, `ours` and `theirs`, where the real cosign is on PATH."""
    return debian.cosign_keys(tmp_path, monkeypatch)


# cosign 3 attaches signatures as referrers, beside the SBOM and the provenance; cosign 2 does so where it is asked to.
@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.nightly), "oci-1-1"])
def test_a_signature_by_the_real_cosign_is_demanded_and_found(
    mode: str,
    cosign: Path,
    engine: Engine,
    made: Made,
    place: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Callable[..., Any],
) -> None:
    monkeypatch.setenv("COSIGN_EXPERIMENTAL", "1" if mode == "oci-1-1" else "0")
    one = build("avx")
    image = made(one)
    key, public, other = (shlex.quote(str(cosign / name)) for name in ("ours.key", "ours.pub", "theirs.pub"))
    options = f"--key {key} {UNLOGGED} --registry-referrers-mode={mode}"
    look = f"{UNLOGGED_CHECK} --experimental-oci11={'true' if mode == 'oci-1-1' else 'false'}"
    signed, by_others = (f"--key {one} {look}" for one in (public, other))
    arrive = partial(pushing.push, engine, image, place, tmp_path / "reports", force=False, progress=Progress())

    with pytest.raises(TfbuildError, match="cosign did not sign"):
        arrive(sign=signing.signer(f"--key {key}.none", place.ca))
    # What is not signed has no fixed tag.
    assert place.tags() == []
    with pytest.raises(UnknownImage):
        checked(place, one.id, tmp_path)

    reference = f"{place.repository}@{arrive().digest}"
    verify = partial(invoke, "verify", one.id, "--registry", str(place.repository), "--json")
    (tmp_path / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    pull = partial(
        invoke, "pull", "--registry", str(place.repository), "--cpuinfo", str(tmp_path / "cpuinfo"), "--json"
    )
    refused = verify("--signed", signed, code=24)
    assert "has no signature that cosign accepts" in refused.stderr
    assert json.loads(verify().stdout)["signed"] is None

    done = arrive(sign=signing.signer(options, place.ca))
    assert done.signed
    assert not done.uploaded
    assert f"{place.repository}@{done.digest}" == reference
    assert checked(Registry(place.repository), one.id, tmp_path).lacking == ()
    assert json.loads(verify("--signed", signed).stdout)["signed"] is True
    assert verify("--signed", by_others, code=24).stdout == ""
    # Attestations that a later push attaches leave the signature where it is.
    arrive()
    assert json.loads(verify("--signed", signed).stdout)["signed"] is True

    engine.remove(image)
    pull("--signed", by_others, code=24)
    assert not engine.exists(reference)
    memory = {"XDG_STATE_HOME": str(tmp_path / "state")}
    answer = pull("--signed", signed, env={**os.environ, **memory})
    pulled = json.loads(answer.stdout)
    assert (pulled["signed"], pulled["reference"]) == (True, reference)
    # cosign accepts the index too, of which the number is remembered.
    assert "the index" not in answer.stderr
    seen = json.loads((tmp_path / "state" / "tfbuild" / "indexes.json").read_text())
    assert seen == {f"{place.repository}:any-mkl": indexes.number_of(place.manifest("any-mkl"))}
    engine.remove(pulled["image"])


def test_an_image_of_another_context_is_told_from_one_of_this(
    engine: Engine, made: Made, place: Registry, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    one = build("x86-64-v3")
    context = json.loads(
        invoke("dockerfile", *dockerfile.options(one).split(), "--output", f"{tmp_path}/x", "--json").stdout
    )
    assert context["id"] == one.id
    key = image_digest(context["digest"], "sha256:of-a-base")
    more = {"io.tfbuild.context": key, "org.opencontainers.image.base.digest": "sha256:of-a-base"}
    push(engine, made(one, more=more), place, tmp_path)
    arguments = ("verify", one.id, "--registry", str(place.repository), "--context")
    invoke(*arguments, context["digest"])
    assert "was made from another context" in invoke(*arguments, f"sha256:{64 * '0'}", code=33).stderr
    invoke(*arguments, "latest", code=2)
    invoke("verify", one.id, "--context", context["digest"], code=2)


# --- as a user --------------------------------------------------------------------------------------------------------


def test_the_verbs(engine: Engine, made: Made, place: Registry, tmp_path: Path, invoke: Callable[..., Any]) -> None:
    image = made(build("x86-64-v3"))
    push(engine, image, place, tmp_path)
    name = build("x86-64-v3").id
    bill = json.loads(invoke("sbom", image).stdout)
    assert bill["metadata"]["component"]["version"] == name
    written = tmp_path / "bill.json"
    assert json.loads(invoke("sbom", image, "--output", str(written), "--json").stdout)["sbom"] == str(written)
    assert json.loads(written.read_bytes()) == bill
    document = json.loads(invoke("verify", name, "--registry", str(place.repository), "--json").stdout)
    assert (document["id"], document["described"]) == (name, True)
    manifest = place.manifest(name)
    assert manifest is not None
    replace_attached(place, manifest, referrers.PROVENANCE, relabelled)
    done = invoke("verify", name, "--registry", str(place.repository), code=24)
    assert "io.tfbuild.features" in done.stderr
