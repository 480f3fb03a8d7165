"""Images in a fake registry, with the labels of real plans."""

import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.commandline import ROOT
from tests.oci.fake_registry import FakeRegistry, connect
from tfbuild import plan
from tfbuild.context.labels import labels_of
from tfbuild.oci import client, manifests
from tfbuild.oci.manifests import digest_of
from tfbuild.plan import Request
from tfbuild.publish import indexes
from tfbuild.publish.choose import Published

INDEXES = ["2.20-mkl", "2.20.0-mkl", "latest-mkl"]


@cache
def labels_of_plan(release: str, cpu: str, platform: str = "linux/amd64") -> dict[str, str]:
    build = plan.select(Request(target="mkl", release=release, cpu=cpu, platform=platform), None)
    return labels_of(build)


def image(
    fake: type[FakeRegistry],
    release: str,
    labels: dict[str, str] | None = None,
    *,
    whole: bool = True,
    cpu: str = "avx",
    platform: str = "linux/amd64",
    machine: str = "",
    layers: Sequence[bytes] = (),
) -> str:
    """Put an image there as a push does; without `whole`, as a push that was stopped before attaching its SBOM.

    `machine`: an architecture that its labels contradict.
    """
    all_labels = labels_of_plan(release, cpu, platform) | (labels or {})
    system, _, architecture = all_labels["io.tfbuild.platform"].partition("/")
    about = {"created": "2026-11-01T00:00:00Z", "os": system, "architecture": machine or architecture}
    config = json.dumps({**about, "config": {"Labels": all_labels}}).encode()
    digest = digest_of(config)
    fake.content[f"blobs/{digest}"] = ("application/octet-stream", config)
    rows = [{"digest": digest_of(layer), "size": len(layer)} for layer in layers]
    for layer in layers:
        fake.content[f"blobs/{digest_of(layer)}"] = ("application/octet-stream", layer)
    document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": {"digest": digest}, "layers": rows}
    content = json.dumps(document).encode()
    for name in (all_labels["io.tfbuild.id"], digest_of(content)):
        fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], content)
    attach(fake, digest_of(content), *((client.SBOM, client.PROVENANCE) if whole else ()))
    return all_labels["io.tfbuild.id"]


def attach(fake: type[FakeRegistry], digest: str, *kinds: str) -> None:
    """Make these types all that is attached to an image."""
    rows = [{"artifactType": kind, "digest": digest_of(kind.encode())} for kind in kinds]
    fake.content[f"referrers/{digest}"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())


def digest(fake: type[FakeRegistry], name: str) -> str:
    return digest_of(fake.content[f"manifests/{name}"][1])


def offered(fake: type[FakeRegistry], tag: str) -> list[str]:
    index = connect(fake).manifest(tag)
    assert index is not None
    return [image.id for image in indexes.read_index(index)]


def published(fake: type[FakeRegistry], name: str) -> Published:
    found = indexes.read_fixed(connect(fake), name)
    assert found is not None
    return found


def gather(fake: type[FakeRegistry], name: str) -> list[str]:
    """Compute the indexes of an image, and return those that offer it."""
    own = published(fake, name)
    rows = indexes.update(connect(fake), own.release, own.target, lambda _: None)
    return [tag for tag, images in rows.items() if own in images]


def pull_script(
    folder: Path, repository: str, *arguments: str, cpuinfo: str = "flags\t\t: fpu sse2 avx\n", **more: str
) -> "subprocess.CompletedProcess[str]":
    """What pull.sh would pull on a CPU. `folder`: for scratch files; `more`: variables."""
    (folder / "cpuinfo").write_text(cpuinfo)
    env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(folder / "cpuinfo"), "DRY_RUN": "1"}
    return subprocess.run(
        ["dash", ROOT / "pull.sh", repository, *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**env, "DOCKER_CONFIG": str(folder), **more},
    )  # fmt: skip
