"""Forgeries in a real registry by somebody who may push: `pull` and pull.sh take nothing that was not described."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.with_engine.registry import Server
from tests.with_engine.test_registry import copy_of, cpuinfo, server, shell
from tests.with_engine.test_tampering import BEST, INDEXES, SECOND, best_of, published, reindex
from tfbuild.engine import Engine
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.publish import yanking

__all__ = ["published", "server"]  # fixtures
pytestmark = pytest.mark.engine


def other_case(place: Registry) -> None:
    """The row's identifier and features under other names, which only a lax reader takes."""

    def change(row: dict[str, Any]) -> None:
        row["annotations"] = {key.replace(".tfbuild.", "-TFBUILD."): text for key, text in row["annotations"].items()}

    reindex(place, change)


def other_white_space(place: Registry) -> None:
    def change(row: dict[str, Any]) -> None:
        for name in ("io.tfbuild.features", "io.tfbuild.cpuinfo"):
            row["annotations"][name] = row["annotations"][name].replace(" ", "  ")

    reindex(place, change)


def control_characters(place: Registry) -> None:
    reindex(place, lambda row: row["annotations"].update({"io.tfbuild.python": "3.13\x1b[2J"}))


def two_platforms(place: Registry) -> None:
    """An index in place of the image: the engine would choose in it."""
    rows = [{"mediaType": best.media_type, "digest": best.digest, "size": 1} for best in (best_of(place),)]
    index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": rows}
    content = json.dumps(index).encode()
    digest = place.put("elsewhere", content, manifests.INDEX)
    reindex(place, lambda row: row.update(digest=digest, size=len(content)))


def another_media_type(place: Registry) -> None:
    """The same image by a manifest of OCI's type: it has another digest, and no attestations."""
    document = best_of(place).json() | {"mediaType": manifests.IMAGES[0]}
    document["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    content = json.dumps(document).encode()
    digest = place.put("elsewhere", content, manifests.IMAGES[0])
    reindex(place, lambda row: row.update(digest=digest, size=len(content), mediaType=manifests.IMAGES[0]))


def two_configurations(place: Registry) -> None:
    """Docker's parser takes "Config" for "config", and the last of both; the attestations come along."""
    best = best_of(place)
    evil = json.dumps({"config": {"Entrypoint": ["/bin/evil"]}}).encode()
    config = {"mediaType": best.json()["config"]["mediaType"], "digest": place.upload(evil), "size": len(evil)}
    content = best.content[:-1] + f', "Config": {json.dumps(config)}}}'.encode()
    digest = place.put("elsewhere", content, best.media_type)
    reindex(place, lambda row: row.update(digest=digest, size=len(content)))


def many_referrers(place: Registry) -> None:
    """The list of what is attached is nearly as large as the registry takes, and the attestations are its last rows."""
    digest = best_of(place).digest
    rows = referrers.listed(place, digest)
    padding = [row | {"artifactType": "x", "annotations": {"x": 300_000 * "x"}} for row in 12 * rows[:1]]
    index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": [*padding, *rows]}
    place.put(referrers.fallback_tag(digest), json.dumps(index).encode(), manifests.INDEX)


def false_provenance(place: Registry) -> None:
    """A second provenance, which names another SBOM; the first one stays."""
    best = best_of(place)
    (content,) = referrers.documents(place, best, referrers.PROVENANCE)
    (bill,) = referrers.contents(place, best, referrers.SBOM)
    forged = content.replace(bill.removeprefix("sha256:").encode(), 64 * b"1").replace(b"2026-11-01", b"2026-11-09")
    attachment = referrers.Attachment(media_type=referrers.PROVENANCE, title="x", created="", content=forged)
    referrers.attach(place, attachment, best)


def yanked_and_offered(place: Registry) -> None:
    before = {tag: index for tag in INDEXES if (index := place.manifest(tag)) is not None}
    yanking.yank(place, BEST, "crashes in MatMul")
    for tag, index in before.items():
        place.put(tag, index.content, index.media_type)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the AVX-512 host gets ("" if refused with 24), by `pull` and by pull.sh, and what `pull` says."""

    by_pull: str
    by_shell: str
    says: str


UNREADABLE = f"not {BEST}: its row in the index cannot be read"
TABLE = {
    # Nothing of tfbuild's is left in the row, as if the image had been taken out of the index.
    other_case: Outcome(by_pull=SECOND, by_shell=SECOND, says=""),
    other_white_space: Outcome(by_pull=SECOND, by_shell="", says=UNREADABLE),
    # A Python that its identifier does not name.
    control_characters: Outcome(by_pull=SECOND, by_shell=SECOND, says=UNREADABLE),
    two_platforms: Outcome(by_pull="", by_shell="", says=f"{BEST} is refused: it is not an image"),
    another_media_type: Outcome(by_pull="", by_shell=BEST, says=f"{BEST} is refused: no provenance is attached"),
    two_configurations: Outcome(
        by_pull="", by_shell="", says=f"{BEST} is refused: a manifest has the key 'Config' twice"
    ),
    many_referrers: Outcome(by_pull=BEST, by_shell=BEST, says=""),
    false_provenance: Outcome(by_pull="", by_shell=BEST, says="the SBOM that its provenance names is not attached"),
    # pull.sh reads no attachments.
    yanked_and_offered: Outcome(by_pull=SECOND, by_shell=BEST, says=f"not {BEST}: it was yanked: crashes in MatMul"),
}


@pytest.mark.parametrize(("forge", "outcome"), TABLE.items())
def test_what_was_not_described_is_not_taken(
    forge: Callable[[Registry], None],
    outcome: Outcome,
    published: tuple[str, str],
    server: Server,
    invoke: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
) -> None:
    place = server.place(copy_of(published[0], server))
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    forge(place)
    arguments = (f"--registry={place.repository}", f"--cpuinfo={tmp_path / 'cpuinfo'}", "--dry-run", "--json")
    pulled = invoke("pull", *arguments, code=0 if outcome.by_pull else 24)
    assert json.loads(pulled.stdout)["id"] == (outcome.by_pull or None)
    assert outcome.says in pulled.stderr
    done = shell(place, tmp_path / "cpuinfo", code=0 if outcome.by_shell else 24, DRY_RUN="1")
    assert done.stdout.split()[1:] == ([outcome.by_shell] if outcome.by_shell else [])
    assert "\x1b" not in pulled.stderr + done.stderr


def test_what_the_engine_reads_decides_where_the_shell_reads_something_else(
    published: tuple[str, str], server: Server, engine: Engine, tmp_path: Path
) -> None:
    """The label is spelt with an escape, which pull.sh does not know, and a decoy elsewhere has what the index says."""
    place = server.place(copy_of(published[0], server))
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    best = best_of(place)
    config = place.config(best)
    decoy = config["config"]["Labels"] | {"io.tfbuild.version": "decoy"}
    config["config"]["Labels"]["io.tfbuild.features"] = "avx512fp16"
    config |= {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "x": decoy}
    text = json.dumps(config).replace(
        '"io.tfbuild.features": "avx512fp16"', '"io.tfbuild.\\u0066eatures": "avx512fp16"'
    )
    document = best.json()
    document["config"] |= {"digest": place.upload(text.encode()), "size": len(text)}
    content = json.dumps(document).encode()
    digest = place.put("elsewhere", content, best.media_type)
    reindex(place, lambda row: row.update(digest=digest, size=len(content)))
    reference = f"{place.repository}@{digest}"
    assert shell(place, tmp_path / "cpuinfo", DRY_RUN="1").stdout == f"{reference} {BEST}\n"
    try:
        done = shell(place, tmp_path / "cpuinfo", code=24)
        assert f"{BEST} is refused: it is not what its index says" in done.stderr
        assert f"docker image rm {reference}" in done.stderr
        assert not engine.exists(f"{place.repository}:{BEST}")
        assert engine.image(reference).labels["io.tfbuild.features"] == "avx512fp16"
    finally:
        if engine.exists(reference):
            engine.remove(reference)


def test_the_registry_takes_no_more_than_tfbuild_reads(server: Server, published: tuple[str, str]) -> None:
    """A list of attachments that is too large to be read cannot be pushed to this registry."""
    url = f"http://127.0.0.1:{server.port}/v2/{published[0]}/manifests/huge"
    answer = requests.put(url, data=b" " * (5 << 20), headers={"Content-Type": manifests.INDEX}, timeout=30)
    assert answer.status_code >= 400
