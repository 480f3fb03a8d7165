"""What the tags and the indexes of a repository say: fixed tags, and an index of them per release and target.

A fixed tag is a build's identifier (2.20.0-mkl-py3.13-x86-64-v3). A moving tag (2.20-mkl, 2.20.0-mkl, latest-mkl) is an
OCI index of images with fixed tags: those of the minor release, of the release, and of the newest release. Its
descriptors repeat the labels by which a host chooses, so that nothing is downloaded for the choice. Images come in the
order of their levels, those of one level best first: plain `docker pull` takes the first one of its platform, or of the
highest variant that the host runs (Docker 23 and newer), and pull.sh the first one of the highest speed that fits. The
slowest come first and have no `platform.variant`, because Docker 20.10 passes over all but v1 (of amd64).
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from packaging.version import Version

from tfbuild import facts, plan
from tfbuild.context import labels
from tfbuild.errors import RegistryRefused, Yanked
from tfbuild.oci import client, manifests, references
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.transport import parallel
from tfbuild.publish import choose
from tfbuild.publish.choose import Published
from tfbuild.util.terminal import printable

LATEST = "latest"
# The values of choose.LABELS. They are checked because anybody may have written them, and because they are printed.
LABEL_VALUE = re.compile(r"[\w.,+/-]*( [\w.,+/-]+)*", re.ASCII)
MOST_TIME = 64
MOST_ROWS = 5000


def index_tags(release: str, target: str) -> tuple[str, ...]:
    """Return the tags of the indexes that may name an image of a release: 2.20-mkl, 2.20.0-mkl, latest-mkl.

    A candidate or a nightly is only in its own.
    """
    version, own = Version(release), f"{release}-{target}"
    if version.is_prerelease:
        return (own,)
    return f"{version.major}.{version.minor}-{target}", own, f"{LATEST}-{target}"


def release_of(tag: str) -> Version | None:
    """Return the release of a fixed tag; None if it begins with none."""
    release = tag.partition("-")[0]
    return Version(release) if plan.is_version(release) else None


# --- writing ----------------------------------------------------------------------------------------------------------


def index_content(images: Iterable[Published]) -> bytes:
    """Return the OCI index of these images; the same bytes for the same images."""
    best_first = sorted(images, key=choose.rank, reverse=True)
    slowest = {image.platform: choose.speed(image) for image in best_first}

    def row_order(image: Published) -> tuple[str, int, str]:
        """Return the sort key of an index's rows: platform, level and the level's variant."""
        is_slowest = choose.speed(image) == slowest[image.platform]
        return image.platform, *((0, "") if is_slowest else _level(image))

    document = {
        "schemaVersion": 2,
        "mediaType": manifests.INDEX,
        "manifests": [_descriptor(image, row_order(image)[-1]) for image in sorted(best_first, key=row_order)],
        "annotations": labels.prefixed({"schema": labels.SCHEMA}),
    }
    return json.dumps(document, indent=2).encode()


def _level(image: Published) -> tuple[int, str]:
    """Return the number and the `platform.variant` of the smallest level that has all of an image's features."""
    levels = facts.levels(plan.PLATFORMS[image.platform])
    numbered = ((number, level.variant) for number, level in enumerate(levels, 1) if image.features <= level.features)
    return next(numbered, (len(levels) + 1, ""))


def _descriptor(image: Published, variant: str) -> dict[str, object]:
    system, _, architecture = image.platform.partition("/")
    annotations = image.labels | {"speed": speed_text(image), "cpuinfo": cpuinfo(image.features)}
    return {
        "mediaType": image.media_type,
        "digest": image.digest,
        "size": image.size,
        "platform": {"os": system, "architecture": architecture} | ({"variant": variant} if variant else {}),
        "annotations": labels.prefixed(annotations) | {client.CREATED: image.created},
    }


def speed_text(image: Published) -> str:
    """Return choose.speed as text, for pull.sh: a larger text is a larger speed."""
    vectors, count = choose.speed(image)
    return f"{''.join('01'[has] for has in vectors)}{count:04}"


def cpuinfo(features: Iterable[str]) -> str:
    """Return the kernel's names of features, the only ones that pull.sh knows: "avx2 avx512_vnni".

    A feature that no kernel prints keeps its own name, and fits no host.
    """
    names = {row.name: row.cpuinfo for row in facts.features()}
    return " ".join(sorted(names.get(feature) or feature for feature in features))


# --- reading, which anybody may have written --------------------------------------------------------------------------


def of_config(config: dict[str, Any], digest: str) -> Published | None:
    """Return the image that a configuration's labels describe; None where they are incomplete, or contradict it."""
    image = of_labels(labels.configured_labels(config), config.get("created"), digest)
    platform = f"{config.get('os')}/{config.get('architecture')}"
    return image if image is not None and image.platform == platform else None


def of_labels(raw: object, created: object, digest: str) -> Published | None:
    """Return the image that labels or annotations describe; None if they are not tfbuild's, or incomplete."""
    own = labels.read_labels(raw).own
    if not all(plan.is_version(own.get(name, "")) for name in ("release", "python")):
        return None
    if own.get("platform") not in plan.PLATFORMS or not all(own.get(name) for name in ("id", "target")):
        return None
    named_set = f"{own['instruction-set']}-" if own.get("instruction-set") else ""
    # An image without a list of features would fit every host: only that of x86-64-v1 is empty.
    if "features" not in own or not all(LABEL_VALUE.fullmatch(own.get(name, "")) for name in choose.LABELS):
        return None
    if not references.TAG.fullmatch(own["id"]) or not references.DIGEST.fullmatch(digest):
        return None
    if not f"{own['id']}-".startswith(f"{own['release']}-{own['target']}-py{own['python']}-{named_set}"):
        return None
    return Published(
        id=own["id"],
        digest=digest,
        release=own["release"],
        target=own["target"],
        python=own["python"],
        platform=own["platform"],
        instruction_set=own.get("instruction-set", ""),
        features=frozenset(own.get("features", "").split()),
        created=printable(str(created or ""), MOST_TIME),
    )


def read_index(index: Manifest | None) -> list[Published]:
    """Return the images that an index names; [] if there is none. Rows that nobody can read are passed over.

    Raises Malformed if it is not an index, or has too many rows.
    """
    if index is None:
        return []
    document = index.json()
    rows = manifests.descriptors(document)
    if index.media_type not in manifests.LISTS or not isinstance(document.get("manifests"), list):
        raise manifests.Malformed(
            f"{index.digest} is not an index of images: somebody moved its tag",
            hint="tell whoever publishes it; the next push writes the index again",
        )
    if len(rows) > MOST_ROWS:
        raise manifests.Malformed(
            f"{index.digest} has {len(rows)} rows", hint=f"an index of tfbuild has {MOST_ROWS} at most"
        )
    return [image for row in rows if (image := _image(row)) is not None]


def _image(row: dict[str, Any]) -> Published | None:
    annotations, size = row.get("annotations"), row.get("size")
    if not isinstance(annotations, dict) or not isinstance(size, int) or row.get("mediaType") not in manifests.IMAGES:
        return None
    image = of_labels(annotations, annotations.get(client.CREATED), str(row.get("digest", "")))
    return replace(image, media_type=str(row["mediaType"]), size=size) if image is not None else None


# --- yanked images: an artifact under ID.yanked says why, and no index names ID any more ------------------------------


# GitLab's registry refuses types that it does not know (ocx-sh/ocx issue 480), ECR what is no media type.
YANK_TYPE = "application/json"
YANK_REASON = f"{labels.PREFIX}yanked"
MOST_REASON = 200
YANKED = ".yanked"


def yank_tag(identifier: str) -> str:
    """Return the tag that takes an image out of the indexes."""
    return f"{identifier}{YANKED}"


def record_yank(registry: Registry, identifier: str, reason: str) -> None:
    """Write why an image is yanked."""
    registry.upload(client.EMPTY_CONFIG)
    # With the identifier: equal bytes would be one manifest, and to delete it would offer all of its images again.
    about = {YANK_REASON: reason, f"{labels.PREFIX}id": identifier}
    content = json.dumps(client.artifact(YANK_TYPE, [client.EMPTY], about), indent=2).encode()
    registry.put(yank_tag(identifier), content, manifests.IMAGES[0])


def refuse_yanked(registry: Registry, identifier: str) -> None:
    """Raise Yanked, with the reason, if an image was yanked."""
    manifest = registry.manifest(yank_tag(identifier))
    if manifest is None:
        return
    annotations = manifest.json().get("annotations")
    text = annotations.get(YANK_REASON) if isinstance(annotations, dict) else ""
    raise Yanked(
        f"{identifier} was yanked: {printable(str(text or 'without a reason'), MOST_REASON)}",
        hint=f"to offer it again, delete the tag {yank_tag(identifier)} in the registry; push it with --indexes",
    )


# --- the indexes of a repository, computed from its fixed tags --------------------------------------------------------


def await_tag(registry: Registry, tag: str) -> None:
    """Wait until the list of tags, of which the indexes are made, has a new one; GHCR may show that late, too."""
    for seconds in client.LATE:
        time.sleep(seconds)
        if tag in registry.tags():
            return


# A push writes the indexes, lists the tags once more, and repeats if they give others: so the last of several pushes at
# once repairs what the others overwrote. It waits in between (client.LATE): GHCR may still show the former indexes.
Note = Callable[[str], object]


def update(registry: Registry, release: str, target: str, note: Note) -> dict[str, list[Published]]:
    """Write the indexes that may name an image of a release, and return their images by tag.

    Damaged images are left out, and reported to `note`. Raises RegistryRefused if others keep changing them.
    """
    damage: set[str] = set()
    for writes, seconds in enumerate((0, *client.LATE)):
        time.sleep(seconds)
        wanted, stale = state(registry, release, target, damage.add)
        if not stale:
            for line in sorted(damage):
                note(line)
            return wanted
        for tag in stale if writes < len(client.LATE) else ():
            registry.put(tag, index_content(wanted[tag]), manifests.INDEX)
    raise RegistryRefused(
        f"{registry.repository}:{', '.join(stale)} keeps changing", hint="push again when other pushes are done"
    )


def state(registry: Registry, release: str, target: str, note: Note) -> tuple[dict[str, list[Published]], list[str]]:
    """Return the images that the indexes of a release should have, and which indexes differ; changes nothing."""
    current = {tag: _index(registry, tag) for tag in index_tags(release, target)}
    wanted = _wanted(registry, target, {tag: images for tag, (_, images) in current.items()}, note)
    # Without any images, an index need not exist.
    due = {tag: content for tag, (content, _) in current.items() if content or wanted[tag]}
    return wanted, [tag for tag, content in due.items() if content != index_content(wanted[tag])]


def _index(registry: Registry, tag: str) -> tuple[bytes, list[Published]]:
    """Return a moving tag's index, b"" if there is none, and its images; an unreadable index counts as empty."""
    try:
        index = registry.manifest(tag)
        return index.content if index is not None else b"", read_index(index)
    except manifests.Damaged:
        return b"{}", []


def _wanted(
    registry: Registry, target: str, current: Mapping[str, Iterable[Published]], note: Note
) -> dict[str, list[Published]]:
    """Return the images that these indexes should have, by the current fixed tags.

    Images without SBOM and provenance are not among them, because their push did not finish, nor are yanked ones. What
    an index says of a digest is trusted: it was read from that image, and a pull compares it.
    """
    known = {image.digest: image for images in current.values() for image in images}
    every = set(registry.tags())
    offered = sorted(name for name in every if not name.endswith(YANKED) and yank_tag(name) not in every)
    names = [name for name in offered if f"-{target}-" in name]
    released = {name: release for name in names if (release := release_of(name)) is not None}

    @cache
    def row(name: str) -> Published | None:
        return _row(registry, name, target, known, note)

    def rows(names: Iterable[str]) -> list[Published]:
        return [image for image in parallel(row, names) if image is not None]

    def latest() -> list[Published]:
        """Return the images of the newest release of which any image was pushed completely."""
        final = {release for release in released.values() if not release.is_prerelease}
        every = (rows(name for name in released if released[name] == newest) for newest in sorted(final, reverse=True))
        return next(filter(None, every), [])

    def of(series: str) -> list[Published]:
        if series == LATEST:
            return latest()
        return rows(name for name in released if choose.is_of(name.partition("-")[0], series))

    return {tag: of(tag.removesuffix(f"-{target}")) for tag in current}


def _row(registry: Registry, name: str, target: str, known: Mapping[str, Published], note: Note) -> Published | None:
    """Return the image under a fixed tag, if its push finished."""
    try:
        image = known.get(registry.digest(name))
        if image is not None and image.id == name:
            return image
        image = read_fixed(registry, name)
        finished = image is not None and image.target == target and client.complete(registry, image.digest)
        return image if finished else None
    except manifests.Damaged as error:
        # One damaged image must not hide all the others.
        note(f"{registry.repository}:{name} is left out: {error.reason}; {error.hint}")
        return None


def read_fixed(registry: Registry, name: str) -> Published | None:
    """Return the image under a fixed tag, by its labels; None if tfbuild did not make it. Raises Damaged."""
    manifest = registry.manifest(name)
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        return None
    image = of_config(registry.config(manifest), manifest.digest)
    if image is None or image.id != name:
        return None
    return replace(image, media_type=manifest.media_type, size=len(manifest.content))
