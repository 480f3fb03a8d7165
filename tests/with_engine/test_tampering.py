"""Seven ways of tampering with a real registry, and what each verb says to them. No container engine takes part."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, copy_of, cpuinfo, server, shell
from tfbuild.context.digests import image_digest
from tfbuild.context.labels import labels_of
from tfbuild.engine import Image
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.references import Repository
from tfbuild.publish import indexes, provenance, sbom
from tfbuild.publish.image_contents import Contents

__all__ = ["server"]  # a fixture
pytestmark = pytest.mark.engine
BEST, SECOND = build("x86-64-v4").id, build("x86-64-v3").id
INDEXES = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")
CONTEXT = f"sha256:{64 * '1'}"
# Runs the real verbs that read; what would build and push ends with a code of its own.
INVOKE = f"""#!/bin/sh
case $* in
    build*--dry-run*) printf '[\\n  {{\\n    "context_digest": "{CONTEXT}"\\n  }}\\n]\\n' ;;
    build*) exit 99 ;;
    *) case "$*" in *--access*) exit 0 ;; esac; cd {ROOT} && exec {sys.executable} -m invoke "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def published(server: Server) -> tuple[str, str]:
    """A repository with two images, and the digest of an older build of the best one."""
    place = Registry(Repository.parse(f"127.0.0.1:{server.port}/test/tampering"))
    publish(place, "x86-64-v3")
    older = publish(place, "x86-64-v4", created="2026-01-01T00:00:00Z")
    publish(place, "x86-64-v4")
    return place.repository.path, older


def publish(place: Registry, level: str, *, created: str = "2026-11-01T00:00:00Z") -> str:
    """Do what a push does, but for the engine's part: upload an image, attach its papers, and write the indexes."""
    base = "sha256:of-a-base"
    labels = labels_of(build(level)) | {
        "io.tfbuild.context": image_digest(CONTEXT, base),
        "org.opencontainers.image.base.digest": base,
    }
    config = json.dumps({"created": created, "config": {"Labels": labels, "Entrypoint": ["tfbuild"]}}).encode()
    document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[1], "layers": []}
    document["config"] = {
        "mediaType": "application/vnd.docker.container.image.v1+json", "digest": place.upload(config),
        "size": len(config),
    }  # fmt: skip
    image = Image(
        id=manifests.digest_of(config), labels=labels, size=1, env=(), entrypoint=(), architecture="amd64",
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
    assert tuple(indexes.gather(place, offered)) == INDEXES
    return subject.digest


def best_of(place: Registry) -> Manifest:
    manifest = place.manifest(BEST)
    assert manifest is not None
    return manifest


def forged(place: Registry) -> tuple[str, bytes]:
    """An image with another entry point and the same labels: its digest and its manifest."""
    manifest = best_of(place)
    config = place.config(manifest) | {"forged": True}
    config["config"]["Entrypoint"] = ["/bin/evil"]
    content = json.dumps(config).encode()
    document = manifest.json()
    document["config"] |= {"digest": place.upload(content), "size": len(content)}
    sent = json.dumps(document).encode()
    return place.put(BEST, sent, manifest.media_type), sent


def reindex(place: Registry, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the best image's row in all indexes."""
    for tag in INDEXES:
        index = place.manifest(tag)
        assert index is not None
        document = index.json()
        (row,) = [row for row in document["manifests"] if row["annotations"]["io.tfbuild.id"] == BEST]
        change(row)
        place.put(tag, json.dumps(document, indent=2).encode(), manifests.INDEX)


def changed_config(place: Registry, older: str) -> None:
    forged(place)


def deleted_sbom(place: Registry, older: str) -> None:
    digest = best_of(place).digest
    rows = [row for row in referrers.listed(place, digest) if row["artifactType"] != referrers.SBOM]
    index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": rows}
    place.put(referrers.fallback_tag(digest), json.dumps(index).encode(), manifests.INDEX)


def moved_tag(place: Registry, older: str) -> None:
    manifest = place.manifest(older)
    assert manifest is not None
    place.put(BEST, manifest.content, manifest.media_type)


def false_features(place: Registry, older: str) -> None:
    def change(row: dict[str, Any]) -> None:
        for name in ("io.tfbuild.features", "io.tfbuild.cpuinfo"):
            row["annotations"][name] = re.sub(r"avx512\w+ ?", "", row["annotations"][name]).strip()

    reindex(place, change)


def replaced_entry_point(place: Registry, older: str) -> None:
    digest, content = forged(place)
    reindex(place, lambda row: row.update(digest=digest, size=len(content)))


def row_pointing_elsewhere(place: Registry, older: str) -> None:
    other = place.manifest(SECOND)
    assert other is not None
    reindex(place, lambda row: row.update(digest=other.digest, size=len(other.content)))


def deleted_manifest(place: Registry, older: str) -> None:
    assert requests.delete(f"{place.repository.url}manifests/{best_of(place).digest}", timeout=10).ok


# What the AVX-512 host gets by `pull` and by pull.sh ("" if refused, with 24); the exit codes of `verify` and
# ci/image.sh (99: it builds); and what `images` says.
INDEX_DIFFERS, NO_PAPERS = "an index names another image or other features", "its SBOM or its provenance is gone"
TABLE = [
    # Hosts get what the indexes describe: the image that was pushed.
    (changed_config, BEST, BEST, 24, 24, INDEX_DIFFERS),
    (moved_tag, BEST, BEST, 24, 24, INDEX_DIFFERS),
    (false_features, "", "", 24, 24, INDEX_DIFFERS),
    (row_pointing_elsewhere, "", "", 24, 24, INDEX_DIFFERS),
    # pull.sh reads no papers.
    (deleted_sbom, "", BEST, 24, 24, NO_PAPERS),
    (replaced_entry_point, "", BEST, 24, 24, NO_PAPERS),
    (deleted_manifest, SECOND, SECOND, 25, 99, "the registry lost"),
]


@pytest.mark.parametrize(("tamper", "by_pull", "by_shell", "verify", "ci", "listed"), TABLE)
def test_each_verb_notices_a_tampering(
    tamper: Callable[[Registry, str], None],
    by_pull: str,
    by_shell: str,
    verify: int,
    ci: int,
    listed: str,
    published: tuple[str, str],
    server: Server,
    invoke: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    path, older = published
    place = Registry(Repository.parse(f"127.0.0.1:{server.port}/{copy_of(path, server)}"))
    registry = f"--registry={place.repository}"
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    tamper(place, older)

    pulled = invoke(
        "pull", registry, f"--cpuinfo={tmp_path / 'cpuinfo'}", "--dry-run", "--json", code=0 if by_pull else 24
    )
    document = json.loads(pulled.stdout)
    assert (document["id"] or "", document["second_choice"]) == (by_pull, None if by_pull else SECOND)
    assert (f"{BEST} is refused" in pulled.stderr) == (not by_pull)
    assert (f"not {BEST}: the registry lost it" in pulled.stderr) == (by_pull == SECOND)

    done = shell(place, tmp_path / "cpuinfo", code=0 if by_shell else 24, DRY_RUN="1")
    assert done.stdout.split()[1:] == ([by_shell] if by_shell else [])
    assert (f"second choice: {SECOND}, with SKIP='{BEST}'" in done.stderr) == (not by_shell)
    assert (f"not {BEST}: the registry lost it" in done.stderr) == (by_shell == SECOND)

    refused = invoke("verify", BEST, registry, code=verify)
    assert "did not finish" not in refused.stderr

    # It lists the registry alone where no engine answers.
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    images = invoke("images", registry, "--json", env=env)
    altered = {row["id"]: row["altered"] for row in json.loads(images.stdout) if row["place"] == str(place.repository)}
    assert altered[SECOND] is None
    assert listed in (altered.get(BEST), *re.findall("the registry lost", images.stderr))

    program = tmp_path / "invoke"
    program.write_text(INVOKE)
    program.chmod(0o755)
    before = {tag: place.digest(tag) for tag in (*INDEXES, BEST)}
    row = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", BEST, ""],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "INVOKE": str(program), "TFBUILD_REGISTRY": str(place.repository)},
    )  # fmt: skip
    assert row.returncode == ci, row.stderr
    assert {tag: place.digest(tag) for tag in (*INDEXES, BEST)} == before


def test_a_withdrawn_image_is_passed_over_by_each_verb_and_left_alone_by_ci(
    published: tuple[str, str],
    server: Server,
    invoke: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    """Debian's registry has no referrers API: the withdrawal is in the index of the tag schema."""
    place = Registry(Repository.parse(f"127.0.0.1:{server.port}/{copy_of(published[0], server)}"))
    registry = f"--registry={place.repository}"
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    before = {tag: place.digest(tag) for tag in INDEXES}
    assert json.loads(invoke("withdraw", BEST, registry, "--reason", "it crashes", "--json").stdout)["recorded"]
    arguments = (registry, f"--cpuinfo={tmp_path / 'cpuinfo'}", "--dry-run", "--json")
    assert json.loads(invoke("pull", *arguments).stdout)["id"] == SECOND
    assert shell(place, tmp_path / "cpuinfo", DRY_RUN="1").stdout.split()[1:] == [SECOND]
    assert f"{BEST} was withdrawn: it crashes" in invoke("verify", BEST, registry, code=32).stderr
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    rows = {row["id"]: row for row in json.loads(invoke("images", registry, "--json", env=env).stdout)}
    assert (rows[BEST]["withdrawn"], rows[BEST]["offered"]) == ("it crashes", False)
    program = tmp_path / "invoke"
    program.write_text(INVOKE)
    program.chmod(0o755)
    row = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", BEST, ""],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "INVOKE": str(program), "TFBUILD_REGISTRY": str(place.repository)},
    )  # fmt: skip
    assert (row.returncode, "was withdrawn: it crashes" in row.stderr) == (0, True)
    invoke("withdraw", BEST, registry, "--undo")
    assert {tag: place.digest(tag) for tag in INDEXES} == before
    invoke("verify", BEST, registry)
