"""Seven ways of tampering with a real registry, and what each verb says to them. No container engine takes part."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, copy_of, cpuinfo, server, shell
from tfbuild.context.dockerfile import image_digest
from tfbuild.context.labels import labels_of
from tfbuild.engine import Image
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import index_updates, indexes, provenance, sbom
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
    place = server.place("test/tampering")
    publish(place, "x86-64-v3")
    older = publish(place, "x86-64-v4", created="2026-01-01T00:00:00Z")
    publish(place, "x86-64-v4")
    return place.repository.path, older


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


def offered(place: Registry, tag: str) -> list[str]:
    """The images in an index, in its order."""
    index = place.manifest(tag)
    assert index is not None
    return [image.id for image in indexes.read_index(index)]


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


@dataclass(frozen=True, kw_only=True)
class Said:
    """What each verb says to a tampering, with its exit code.

    `by_pull`, `by_shell`: what the AVX-512 host gets by `pull` and by pull.sh, or "" if that is refused, with 24;
    `refusal`: why `pull` refuses it. `verify`, `ci`: the exit codes of `verify` and ci/image.sh (99: it builds), which
    both say `why`. `listed`: what `images` says.
    """

    by_pull: str
    by_shell: str
    verify: int
    ci: int
    why: str
    listed: str
    refusal: str = ""


OTHER_LABELS = "it has other labels than its index says"
INDEX_DIFFERS, NO_PAPERS = "an index names another image or other features", "its SBOM or its provenance is gone"
TAG_DIFFERS = f"{BEST} is another image under its tag"
TABLE = {
    # Hosts get what the indexes describe: the image that was pushed.
    changed_config: Said(by_pull=BEST, by_shell=BEST, verify=24, ci=24, why=TAG_DIFFERS, listed=INDEX_DIFFERS),
    moved_tag: Said(by_pull=BEST, by_shell=BEST, verify=24, ci=24, why=TAG_DIFFERS, listed=INDEX_DIFFERS),
    false_features: Said(
        by_pull="", by_shell="", verify=24, ci=24, refusal=OTHER_LABELS,
        why=f"latest-mkl describe {BEST} otherwise than its labels", listed=INDEX_DIFFERS,
    ),
    row_pointing_elsewhere: Said(
        by_pull="", by_shell="", verify=24, ci=24, refusal=OTHER_LABELS, why=TAG_DIFFERS, listed=INDEX_DIFFERS
    ),
    # pull.sh reads no attestations.
    deleted_sbom: Said(
        by_pull="", by_shell=BEST, verify=24, ci=24, refusal="the SBOM that its provenance names is not attached",
        why="no SBOM is attached", listed=NO_PAPERS,
    ),
    replaced_entry_point: Said(
        by_pull="", by_shell=BEST, verify=24, ci=24, refusal="no provenance is attached",
        why="no provenance is attached", listed=NO_PAPERS,
    ),
    deleted_manifest: Said(
        by_pull=SECOND, by_shell=SECOND, verify=25, ci=99, why=f"has no {BEST}",
        listed=f"offers {BEST}, which is missing or incomplete",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tamper", "said"), TABLE.items())
def test_each_verb_notices_a_tampering(
    tamper: Callable[[Registry, str], None],
    said: Said,
    published: tuple[str, str],
    server: Server,
    invoke: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    path, older = published
    place = server.place(copy_of(path, server))
    registry = f"--registry={place.repository}"
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    tamper(place, older)

    pulled = invoke(
        "pull", registry, f"--cpuinfo={tmp_path / 'cpuinfo'}", "--dry-run", "--json", code=0 if said.by_pull else 24
    )
    document = json.loads(pulled.stdout)
    assert (document["id"] or "", document["second_choice"]) == (said.by_pull, None if said.by_pull else SECOND)
    assert (f"{BEST} is refused: {said.refusal}" in pulled.stderr) == (not said.by_pull)
    assert (f"not {BEST}: it is missing in the registry" in pulled.stderr) == (said.by_pull == SECOND)

    done = shell(place, tmp_path / "cpuinfo", code=0 if said.by_shell else 24, DRY_RUN="1")
    assert done.stdout.split()[1:] == ([said.by_shell] if said.by_shell else [])
    assert (f"{BEST} is refused: it is not what its index says" in done.stderr) == (not said.by_shell)
    assert (f"second choice: {SECOND}, with SKIP='{BEST}'" in done.stderr) == (not said.by_shell)
    assert (f"not {BEST}: it is missing in the registry" in done.stderr) == (said.by_shell == SECOND)

    refused = invoke("verify", BEST, registry, code=said.verify)
    assert said.why in refused.stderr
    assert "did not finish" not in refused.stderr

    # It lists the registry alone where no engine answers.
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    images = invoke("images", registry, "--json", env=env)
    altered = {row["id"]: row["altered"] for row in json.loads(images.stdout) if row["place"] == str(place.repository)}
    assert altered[SECOND] is None
    assert said.listed in (altered.get(BEST) or images.stderr)

    program = tmp_path / "invoke"
    program.write_text(INVOKE)
    program.chmod(0o755)
    before = {tag: place.digest(tag) for tag in (*INDEXES, BEST)}
    row = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", BEST, ""],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "INVOKE": str(program), "TFBUILD_REGISTRY": str(place.repository)},
    )  # fmt: skip
    assert row.returncode == said.ci, row.stderr
    assert said.why in row.stderr
    assert {tag: place.digest(tag) for tag in (*INDEXES, BEST)} == before


def test_a_yanked_image_is_passed_over_by_each_verb_and_left_alone_by_ci(
    published: tuple[str, str],
    server: Server,
    invoke: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    """Debian's registry has no referrers API: the yank is in the index of the tag schema."""
    place = server.place(copy_of(published[0], server))
    registry = f"--registry={place.repository}"
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    before = {tag: offered(place, tag) for tag in INDEXES}
    assert json.loads(invoke("yank", BEST, registry, "--reason", "it crashes", "--json").stdout)["recorded"]
    arguments = (registry, f"--cpuinfo={tmp_path / 'cpuinfo'}", "--dry-run", "--json")
    assert json.loads(invoke("pull", *arguments).stdout)["id"] == SECOND
    assert shell(place, tmp_path / "cpuinfo", DRY_RUN="1").stdout.split()[1:] == [SECOND]
    assert f"{BEST} was yanked: it crashes" in invoke("verify", BEST, registry, code=32).stderr
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    rows = {row["id"]: row for row in json.loads(invoke("images", registry, "--json", env=env).stdout)}
    assert (rows[BEST]["yanked"], rows[BEST]["offered"]) == ("it crashes", False)
    program = tmp_path / "invoke"
    program.write_text(INVOKE)
    program.chmod(0o755)
    row = subprocess.run(
        ["dash", ROOT / "ci" / "image.sh", BEST, ""],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "INVOKE": str(program), "TFBUILD_REGISTRY": str(place.repository)},
    )  # fmt: skip
    assert (row.returncode, "was yanked: it crashes" in row.stderr) == (0, True)
    invoke("yank", BEST, registry, "--undo")
    assert {tag: offered(place, tag) for tag in INDEXES} == before
    invoke("verify", BEST, registry)
