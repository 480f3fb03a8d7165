"""What other tools make of what tfbuild pushes: skopeo, oras and crane, between two real registries.

docs/registries.md says what works by this. No container engine takes part.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import debian
from tests.with_engine import registry as registries
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build
from tfbuild.context.dockerfile import image_digest
from tfbuild.context.labels import labels_of
from tfbuild.engine import Image
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.publish import check, choose, index_updates, indexes, provenance, pulling, sbom
from tfbuild.publish.image_contents import Contents
from tfbuild.publish.pulling import Accepted

pytestmark = pytest.mark.engine
BEST, SECOND = build("x86-64-v4").id, build("x86-64-v3").id
INDEXES = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")
CONTEXT = f"sha256:{64 * '1'}"
PLAIN = ("--src-tls-verify=false", "--dest-tls-verify=false")


def publish(place: Registry, level: str, *, created: str = "2026-11-01T00:00:00Z") -> str:
    """Do what a push does, but for the engine's part: upload an image with its attestations, and write the indexes."""
    base = "sha256:of-a-base"
    labels = labels_of(build(level)) | {
        "io.tfbuild.context": image_digest(CONTEXT, base),
        "org.opencontainers.image.base.digest": base,
    }
    about = {"created": created, "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": []}}
    config = json.dumps({**about, "config": {"Labels": labels, "Entrypoint": ["tfbuild"]}}).encode()
    document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[1], "layers": []}
    document["config"] = {
        "mediaType": "application/vnd.docker.container.image.v1+json", "digest": place.upload(config),
        "size": len(config),
    }  # fmt: skip
    image = Image(
        id=manifests.digest_of(config), labels=labels, size=1, env=(), architecture="amd64",
        repo_digests=(), created=created,
    )  # fmt: skip
    subject = place.manifest(place.put(build(level).id, json.dumps(document).encode(), manifests.IMAGES[1]))
    assert subject is not None
    bill = sbom.document(image, Contents(python=(), debian=(), system={}, built={}, notices=()))
    statement = provenance.statement(
        image, repository=str(place.repository), digest=subject.digest, built={}, wheel_sha256="", git_version="",
        report=b"{}", verified=created, sbom=bill, run=None,
    )  # fmt: skip
    for kind, content in zip(referrers.NEEDED, (bill, provenance.to_json(statement)), strict=True):
        attachment = referrers.Attachment(media_type=kind, title="x", created=created, content=content)
        referrers.attach(place, attachment, subject)
    offered = indexes.of_config(place.config(subject), subject.digest)
    assert offered is not None
    assert tuple(index_updates.gather(place, offered)) == INDEXES
    return subject.digest


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    one, other = (tmp_path_factory.mktemp("registry") for _ in range(2))
    with registries.serve(one) as first, registries.serve(other) as second:
        yield first, second


@pytest.fixture(scope="module")
def place(servers: tuple[Server, Server]) -> Registry:
    """A repository with two published images."""
    registry = servers[0].place("us/x")
    publish(registry, "x86-64-v3")
    publish(registry, "x86-64-v4")
    return registry


def mirror(servers: tuple[Server, Server], path: str) -> Registry:
    return servers[1].place(path)


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def skopeo(*words: str) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("apt-get install skopeo")
    return run("skopeo", *words)


@pytest.fixture(scope="module")
def oras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debian.unpack(tmp_path_factory.mktemp("oras"), "oras") / "usr" / "bin" / "oras"


@pytest.fixture(scope="module")
def crane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debian.unpack(tmp_path_factory.mktemp("crane"), "crane", suite=debian.NEWEST) / "usr" / "bin" / "crane"


def best_for_all(place: Registry) -> Accepted:
    """What a host with every feature gets, after all checks of a pull."""
    index = place.manifest("any-mkl")
    assert index is not None
    published = indexes.read_index(index)
    features = frozenset().union(*(image.features for image in published))
    return pulling.accept(place, choose.choose(published, platform="linux/amd64", features=features))


def test_skopeo_reads_an_image_and_an_index(place: Registry) -> None:
    document = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{place.repository}:{BEST}"))
    assert (document["Digest"], document["Labels"]["io.tfbuild.id"]) == (place.digest(BEST), BEST)
    # Of an index it takes what plain `docker pull` takes.
    document = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{place.repository}:latest-mkl"))
    assert document["Labels"]["io.tfbuild.id"] == SECOND


def test_skopeo_sync_makes_a_mirror_from_which_hosts_can_pull(
    place: Registry, servers: tuple[Server, Server], tmp_path: Path
) -> None:
    destination = f"127.0.0.1:{servers[1].port}/synced"
    skopeo("sync", "--all", "--src", "docker", "--dest", "docker", *PLAIN, str(place.repository), destination)
    copied = mirror(servers, "synced/x")
    tags = place.tags()
    assert set(tags) >= {*INDEXES, BEST, SECOND}
    assert {tag: copied.digest(tag) for tag in tags} == {tag: place.digest(tag) for tag in tags}
    assert best_for_all(copied).image.id == BEST
    check.refuse_unfinished(check.image(copied, BEST, tmp_path))


def test_skopeo_copy_of_an_index_leaves_the_attachments_behind(place: Registry, servers: tuple[Server, Server]) -> None:
    copied = mirror(servers, "copied/x")
    source, target = f"docker://{place.repository}:any-mkl", f"docker://{copied.repository}:any-mkl"
    skopeo("copy", "--all", *PLAIN, source, target)
    assert copied.digest("any-mkl") == place.digest("any-mkl")
    with pytest.raises(pulling.Altered, match="no provenance is attached"):
        best_for_all(copied)


@pytest.mark.nightly
def test_oras_lists_and_copies_the_attachments(place: Registry, servers: tuple[Server, Server], oras: Path) -> None:
    listed = json.loads(run(oras, "discover", "--plain-http", "--format", "json", f"{place.repository}:{BEST}"))
    assert {row["artifactType"] for row in listed["manifests"]} == {*referrers.NEEDED}
    copied = mirror(servers, "oras/x")
    plain = ("--from-plain-http", "--to-plain-http")
    run(oras, "copy", *plain, "--recursive", f"{place.repository}:{BEST}", f"{copied.repository}:{BEST}")
    assert copied.digest(BEST) == place.digest(BEST)
    assert referrers.complete(referrers.listed(copied, copied.digest(BEST)))


@pytest.mark.nightly
def test_crane_finds_the_image_of_a_level(place: Registry, crane: Path) -> None:
    for platform, image in {"linux/amd64": SECOND, "linux/amd64/v4": BEST}.items():
        found = run(crane, "digest", "--platform", platform, f"{place.repository}:latest-mkl")
        assert found.strip() == place.digest(image)


@pytest.mark.nightly
def test_a_signature_by_cosign_is_seen_in_a_registry_without_referrers(
    place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cosign = debian.unpack(tmp_path / "cosign", "cosign", suite=debian.NEWEST) / "usr" / "bin" / "cosign"
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    prefix = tmp_path / "key"
    run(cosign, "generate-key-pair", "--output-key-prefix", prefix)
    digest = place.digest(BEST)

    def signed() -> bool:
        return referrers.signed(place, digest, referrers.listed(place, digest))

    assert not signed()
    offline = ("--use-signing-config=false", "--tlog-upload=false")
    run(cosign, "sign", "--yes", "--key", f"{prefix}.key", *offline, f"{place.repository}@{digest}")
    assert signed()
    assert referrers.complete(referrers.listed(place, digest))


@pytest.mark.nightly
def test_crane_accepts_each_image_and_refuses_an_index_for_its_variants_alone(place: Registry, crane: Path) -> None:
    """As docs/registries.md says: a row's variant depends on the other rows, so a configuration cannot have it."""
    for name in (BEST, SECOND):
        run(crane, "validate", "--remote", f"{place.repository}:{name}")
    index = place.manifest("latest-mkl")
    assert index is not None
    refused = [row["digest"] for row in index.json()["manifests"] if "variant" in row["platform"]]
    done = subprocess.run(
        [crane, "validate", "--remote", f"{place.repository}:latest-mkl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.findall(r"sha256:[0-9a-f]{64}", done.stderr) == refused == [place.digest(BEST)]
