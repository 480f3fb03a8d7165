"""What is published of tfbuild's in a repository: images under fixed tags, gathered in an index per release and target.

A fixed tag is a build's identifier (2.20.0-mkl-py3.13-x86-64-v3) and is never moved to another image. A moving tag
(2.20-mkl, 2.20.0-mkl, latest-mkl) is an OCI index over fixed tags' images: its descriptors carry the labels by which a
host chooses, so that nothing is downloaded for the choice. They stand in the order of choose.rank, the slowest first:
plain `docker pull` takes the first of its platform, and pull.sh the last one that fits.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from tfbuild import dockerfile, facts, plan
from tfbuild.errors import RegistryRefused
from tfbuild.registry import choose, client, referrers
from tfbuild.registry.choose import Published
from tfbuild.registry.client import Manifest, Registry

LATEST = "latest"
# Labels of an image that its descriptor in an index repeats.
LABELS = ("id", "release", "target", "python", "platform", "instruction-set", "features")
CREATED = "org.opencontainers.image.created"
# What the values of LABELS look like: anybody may have written them, and they are printed.
VALUE = re.compile(r"[\w.,+/-]*( [\w.,+/-]+)*", re.ASCII)
# Two pushes at once may overwrite each other's index: each looks again, and mends it, so often.
MENDS = 5


def moving_tags(release: str, target: str) -> tuple[str, str]:
    """("2.20-mkl", "2.20.0-mkl"): the indexes that an image of a release belongs to, besides the latest."""
    found = Version(release)
    return f"{found.major}.{found.minor}-{target}", f"{release}-{target}"


def images(registry: Registry, tags: Iterable[str]) -> list[tuple[Published, Manifest]]:
    """The images behind those of `tags` that are fixed; what is not tfbuild's, or not what it says, is left out."""
    found = []
    for tag in tags:
        manifest = registry.manifest(tag)
        if manifest is None or manifest.media_type not in client.IMAGES:
            continue
        image = of_config(registry.config(manifest), manifest.digest)
        if image is not None and image.id == tag:
            found.append((image, manifest))
    return found


def of_config(config: dict[str, Any], digest: str) -> Published | None:
    """The image that a configuration describes by its labels; None where they are not tfbuild's, or not whole."""
    inner = config.get("config")
    return _of_labels(inner.get("Labels") if isinstance(inner, dict) else None, config.get("created"), digest)


def _of_labels(labels: object, created: object, digest: str) -> Published | None:
    known = labels if isinstance(labels, dict) else {}
    told = {name: str(known[f"io.tfbuild.{name}"]) for name in LABELS if f"io.tfbuild.{name}" in known}
    return of_annotations({**told, "created": client.printable(str(created or ""))}, digest)


def of_annotations(told: dict[str, str], digest: str) -> Published | None:
    try:
        Version(told["release"])
    except (KeyError, InvalidVersion):
        return None
    if told.get("platform") not in plan.PLATFORMS or not all(told.get(name) for name in ("id", "target", "python")):
        return None
    # Without a list of features an image would fit every host: only x86-64-v1 has an empty one.
    if "features" not in told or not all(VALUE.fullmatch(told.get(name, "")) for name in LABELS):
        return None
    if not client.TAG.fullmatch(told["id"]) or not client.DIGEST.fullmatch(digest):
        return None
    return Published(
        id=told["id"],
        digest=digest,
        release=told["release"],
        target=told["target"],
        python=told["python"],
        platform=told["platform"],
        instruction_set=told.get("instruction-set", ""),
        features=frozenset(told.get("features", "").split()),
        created=told.get("created", ""),
    )


def index(found: Sequence[tuple[Published, Manifest]]) -> bytes:
    """The OCI index over these images, the same bytes for the same images."""
    order = sorted(found, key=lambda pair: (pair[0].platform, choose.rank(pair[0])))
    document = {
        "schemaVersion": 2,
        "mediaType": client.INDEX,
        "manifests": [_descriptor(image, manifest) for image, manifest in order],
        "annotations": {"io.tfbuild.schema": dockerfile.SCHEMA},
    }
    return json.dumps(document, indent=2).encode()


def _descriptor(image: Published, manifest: Manifest) -> dict[str, object]:
    system, _, architecture = image.platform.partition("/")
    told = {
        "id": image.id,
        "release": image.release,
        "target": image.target,
        "python": image.python,
        "platform": image.platform,
        "instruction-set": image.instruction_set,
        "features": " ".join(sorted(image.features)),
        "cpuinfo": " ".join(sorted(_in_cpuinfo(name) for name in image.features)),
    }
    return {
        "mediaType": manifest.media_type,
        "digest": manifest.digest,
        "size": len(manifest.content),
        "platform": {"os": system, "architecture": architecture},
        "annotations": {f"io.tfbuild.{name}": value for name, value in told.items()} | {CREATED: image.created},
    }


def _in_cpuinfo(feature: str) -> str:
    """The kernel's name, for pull.sh, which knows no other; what no kernel prints keeps its own, and fits nowhere."""
    return next((row.cpuinfo for row in facts.features() if row.name == feature), "") or feature


def read_index(manifest: Manifest) -> list[Published]:
    """The images that an index names; RegistryRefused where it is none of tfbuild's."""
    rows = manifest.json().get("manifests")
    if manifest.media_type not in client.LISTS or not isinstance(rows, list):
        raise RegistryRefused(f"{manifest.digest} is no index of images", hint="was it pushed by tfbuild?")
    found = [_of_descriptor(row) for row in rows if isinstance(row, dict)]
    return [image for image in found if image is not None]


def _of_descriptor(row: dict[str, Any]) -> Published | None:
    notes = row.get("annotations")
    created = notes.get(CREATED) if isinstance(notes, dict) else None
    return _of_labels(notes, created, str(row.get("digest", "")))


def gather(registry: Registry, image: Published) -> list[str]:
    """Puts the indexes that `image` belongs to in order, by the fixed tags that are there now; the tags that were set.

    An image without SBOM and provenance is in none: its push is not over, or came to no end.
    An index follows from the fixed tags alone, so that whoever is last heals what two pushes at once lost.
    """
    done = []
    for tag in (*moving_tags(image.release, image.target), f"{LATEST}-{image.target}"):
        for _ in range(MENDS):
            wanted = _wanted(registry, tag, image.target)
            there = registry.manifest(tag)
            if there is not None and there.content == wanted:
                break
            registry.put(tag, wanted, client.INDEX)
        else:
            raise RegistryRefused(
                f"{registry.repository}:{tag} keeps changing", hint="push again when the others are done"
            )
        done.append(tag)
    return done


def _wanted(registry: Registry, tag: str, target: str) -> bytes:
    """The index that `tag` should be: over a release's images, or for "latest" over the newest release's."""
    kind = tag.removesuffix(f"-{target}")
    fixed = [name for name in registry.tags() if f"-{target}-" in name]
    if kind != LATEST:
        return index(_whole(registry, fixed, kind, target))
    # A release of which nothing is whole yet, for its first push goes on or came to no end, is not the newest.
    newest = sorted({release for name in fixed if (release := _release(name))}, reverse=True)
    return index(next((found for release in newest if (found := _whole(registry, fixed, str(release), target))), []))


def _whole(registry: Registry, fixed: Iterable[str], kind: str, target: str) -> list[tuple[Published, Manifest]]:
    """The images of a release ("2.20": of all its patches) whose push came to its end."""
    mine = [name for name in fixed if name.startswith((f"{kind}-", f"{kind}."))]
    found = [pair for pair in images(registry, mine) if pair[0].target == target]
    return [pair for pair in found if referrers.complete(registry, pair[0].digest)]


def _release(tag: str) -> Version | None:
    try:
        return Version(tag.partition("-")[0])
    except InvalidVersion:
        return None
