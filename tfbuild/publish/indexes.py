"""What is published of tfbuild's in a repository: images under fixed tags, gathered in an index per release and target.

A fixed tag is a build's identifier (2.20.0-mkl-py3.13-x86-64-v3) and is never moved to another image. A moving tag
(2.20-mkl, 2.20.0-mkl, latest-mkl) is an OCI index over fixed tags' images: its descriptors carry the labels by which a
host chooses, so that nothing is downloaded for the choice. The index of a release names all of its images, the latest
one of all releases: for each platform, Python and instruction set the newest release that has it, for no release has
them all. The slowest stand first, and the best of one speed before the others: plain `docker pull` takes the first of
its platform, and pull.sh the first of the highest speed that fits.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.version import Version

from tfbuild import facts, plan
from tfbuild.context import labels
from tfbuild.errors import RegistryRefused
from tfbuild.oci import client, referrers
from tfbuild.oci.client import Manifest, Registry
from tfbuild.publish import choose
from tfbuild.publish.choose import Published
from tfbuild.util.terminal import printable

LATEST = "latest"
# Labels of an image that its descriptor in an index repeats.
LABELS = ("id", "release", "target", "python", "platform", "instruction-set", "features")
# What the values of LABELS look like: anybody may have written them, and they are printed.
VALUE = re.compile(r"[\w.,+/-]*( [\w.,+/-]+)*", re.ASCII)
MOST_TIME = 64
# Two pushes at once may overwrite each other's index: each looks again, and mends it, so often.
MENDS = 5
Answer = TypeVar("Answer")
Note = Callable[[str], None]


def quietly(_: str) -> None:
    """A Note that nobody reads."""


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """An image as an index names it; `size`: bytes of its manifest."""

    image: Published
    media_type: str
    size: int


def moving_tags(release: str, target: str) -> tuple[str, str]:
    """("2.20-mkl", "2.20.0-mkl"): the indexes that an image of a release belongs to, besides the latest."""
    found = Version(release)
    return f"{found.major}.{found.minor}-{target}", f"{release}-{target}"


def images(registry: Registry, tags: Iterable[str], note: Note = quietly) -> list[tuple[Published, Manifest]]:
    """The images behind those of `tags` that are fixed; what is not tfbuild's, or not what it says, is left out.

    So is one that is damaged, which `note` is told.
    """
    damage: list[str] = []
    found = [pair for pair in _at_once(lambda tag: _fixed(registry, tag, damage.append), tags) if pair is not None]
    _tell(damage, note)
    return found


def _fixed(registry: Registry, tag: str, note: Note) -> tuple[Published, Manifest] | None:
    manifest = registry.manifest(tag)
    if manifest is None or manifest.media_type not in client.IMAGES:
        return None
    try:
        image = of_config(registry.config(manifest), manifest.digest)
    except client.Damaged as error:
        # One image that is lost must not keep all the others from being listed and offered.
        note(f"note: {registry.repository}:{tag} is left out: {error.reason}; {error.hint}")
        return None
    return (image, manifest) if image is not None and image.id == tag else None


def _tell(damage: Iterable[str], note: Note) -> None:
    for line in sorted(set(damage)):
        note(line)


def _at_once(ask: Callable[[str], Answer], names: Iterable[str]) -> list[Answer]:
    """What `ask` says of each name, in their order, some at a time."""
    with ThreadPoolExecutor(client.WORKERS) as pool:
        return list(pool.map(ask, names))


def of_config(config: dict[str, Any], digest: str) -> Published | None:
    """The image that a configuration describes by its labels; None where they are not tfbuild's, or not whole."""
    return of_labels(labels.of_configuration(config), config.get("created"), digest)


def of_labels(given: object, created: object, digest: str) -> Published | None:
    """Return the image that labels or annotations describe; None where they are not tfbuild's, or not whole."""
    told = labels.read_labels(given).own
    if not all(labels.is_version(told.get(name, "")) for name in ("release", "python")):
        return None
    if told.get("platform") not in plan.PLATFORMS or not all(told.get(name) for name in ("id", "target")):
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
        created=printable(str(created or ""), MOST_TIME),
    )


def index(found: Iterable[IndexEntry]) -> bytes:
    """The OCI index over these images, the same bytes for the same images."""
    best_first = sorted(found, key=lambda row: choose.rank(row.image), reverse=True)
    order = sorted(best_first, key=lambda row: (row.image.platform, choose.speed(row.image)))
    document = {
        "schemaVersion": 2,
        "mediaType": client.INDEX,
        "manifests": [_descriptor(row) for row in order],
        "annotations": labels.prefixed({"schema": labels.SCHEMA}),
    }
    return json.dumps(document, indent=2).encode()


def _descriptor(row: IndexEntry) -> dict[str, object]:
    image = row.image
    system, _, architecture = image.platform.partition("/")
    told = {
        "id": image.id,
        "release": image.release,
        "target": image.target,
        "python": image.python,
        "platform": image.platform,
        "instruction-set": image.instruction_set,
        "features": " ".join(sorted(image.features)),
        "speed": _speed(image),
        "cpuinfo": " ".join(sorted(_in_cpuinfo(name) for name in image.features)),
    }
    return {
        "mediaType": row.media_type,
        "digest": image.digest,
        "size": row.size,
        "platform": {"os": system, "architecture": architecture},
        "annotations": labels.prefixed(told) | {referrers.CREATED: image.created},
    }


def _speed(image: Published) -> str:
    """choose.speed as a text, for pull.sh: the larger text is the larger speed."""
    telling, count = choose.speed(image)
    return f"{''.join('01'[has] for has in telling)}{count:04}"


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
    created = notes.get(referrers.CREATED) if isinstance(notes, dict) else None
    return of_labels(notes, created, str(row.get("digest", "")))


def _rows(index: Manifest | None) -> dict[str, IndexEntry]:
    """What an index of this tfbuild's making says, by digest; what it would write otherwise now is left out."""
    rows = index.json().get("manifests") if index is not None and index.media_type in client.LISTS else None
    found = [(raw, _row(raw)) for raw in rows if isinstance(raw, dict)] if isinstance(rows, list) else []
    return {row.image.digest: row for raw, row in found if row is not None and _descriptor(row) == raw}


def _row(raw: dict[str, Any]) -> IndexEntry | None:
    image, size = _of_descriptor(raw), raw.get("size")
    if image is None or raw.get("mediaType") not in client.IMAGES or not isinstance(size, int):
        return None
    return IndexEntry(image=image, media_type=str(raw["mediaType"]), size=size)


def gather(registry: Registry, image: Published, note: Note = quietly) -> list[str]:
    """Puts the indexes that may name `image` in order, by the fixed tags that are there now; those that do offer it.

    An image without SBOM and provenance is in none: its push is not over, or came to no end. Where it is in none of its
    release's for that, or because its fixed tag stands for another one, RegistryRefused says so. What is damaged is
    left out, and `note` is told.
    An index follows from the fixed tags, so that whoever is last heals what two pushes at once lost. What an index says
    of another image under the same digest is believed, for it was read from that image, and whoever pulls it compares:
    else each push would read all images again.
    """
    tags = indexes(image)
    damage: list[str] = []
    for _ in range(MENDS):
        there = {tag: registry.manifest(tag) for tag in tags}
        known = {digest: row for index in there.values() for digest, row in _rows(index).items()}
        known.pop(image.digest, None)
        view = View(registry, image.target, known, damage.append)
        rows = {tag: view.rows(tag.removesuffix(f"-{image.target}")) for tag in tags}
        wanted = {tag: index(found) for tag, found in rows.items()}
        late = [tag for tag in tags if (found := there[tag]) is None or found.content != wanted[tag]]
        if not late:
            _tell(damage, note)
            return _offering(registry, image, rows)
        for tag in late:
            registry.put(tag, wanted[tag], client.INDEX)
    raise RegistryRefused(
        f"{registry.repository}:{', '.join(late)} keeps changing", hint="push again when the others are done"
    )


def _offering(registry: Registry, image: Published, rows: Mapping[str, list[IndexEntry]]) -> list[str]:
    found = [tag for tag, named in rows.items() if any(row.image.digest == image.digest for row in named)]
    if not found:
        raise RegistryRefused(
            f"no index of {registry.repository} offers {image.digest}: {image.id} is another image there, "
            "or its SBOM and its provenance are gone",
            hint="did somebody else push it just now? else push it again",
        )
    return found


def indexes(image: Published) -> tuple[str, ...]:
    """The tags of the indexes that may have to name an image."""
    return (*moving_tags(image.release, image.target), f"{LATEST}-{image.target}")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`lacking`: the indexes that should offer an image just as its labels say, and do not.

    `named`: whether any of them offers an image of its identifier, be it another one.
    """

    lacking: tuple[str, ...]
    named: bool


def standing(registry: Registry, image: Published) -> Standing:
    there = {tag: index for tag in indexes(image) if (index := registry.manifest(tag)) is not None}
    named = {tag: read_index(index) for tag, index in there.items()}
    return Standing(
        lacking=tuple(tag for tag in indexes(image) if not _offers(tag, named.get(tag, []), image)),
        named=any(one.id == image.id for rows in named.values() for one in rows),
    )


def offered(registry: Registry, images: Iterable[Published]) -> set[Published]:
    """Those of `images` that an index names just as their labels say, so that `pull` may choose them."""
    tags = sorted({tag for image in images for tag in indexes(image)})
    there = _at_once(registry.manifest, tags)
    indexed = [index for index in there if index is not None and index.media_type in client.LISTS]
    named = {one for index in indexed for one in read_index(index)}
    return {image for image in images if image in named}


def _offers(tag: str, named: Iterable[Published], image: Published) -> bool:
    if tag.startswith(f"{LATEST}-") and any(_replaces(one, image) for one in named):
        return True
    return image in named


def _replaces(one: Published, image: Published) -> bool:
    return _kind(one.id) == _kind(image.id) and Version(one.release) > Version(image.release)


def _kind(tag: str) -> str:
    """What a fixed tag says behind its release: target, Python, instruction set (by its hash where no name has it)."""
    return tag.partition("-")[2]


class View:
    """The whole images of one target, as they stand behind their fixed tags now; each tag is asked for once.

    `known`: rows by digest that need not be read again; `note` is told what is damaged.
    """

    def __init__(self, registry: Registry, target: str, known: Mapping[str, IndexEntry], note: Note = quietly) -> None:
        self._registry, self._target, self._known, self._note = registry, target, known, note
        self._tags = [name for name in registry.tags() if f"-{target}-" in name]
        self._seen: dict[str, IndexEntry | None] = {}

    def rows(self, kind: str) -> list[IndexEntry]:
        """Those of a release ("2.20": of all its patches), or for "latest" the newest one of each kind."""
        if kind == LATEST:
            return self._newest()
        return self._whole([name for name in self._tags if name.startswith((f"{kind}-", f"{kind}."))])

    def _newest(self) -> list[IndexEntry]:
        """One that is not whole, for its push goes on or came to no end, leaves its place to the release before."""
        released = [(release, name) for name in self._tags if (release := _release(name)) is not None]
        queues: dict[str, list[str]] = {}
        for _, name in sorted(released):
            queues.setdefault(_kind(name), []).append(name)
        found: list[IndexEntry] = []
        while queues:
            rows = self._whole([names.pop() for names in queues.values()])
            ended = {_kind(row.image.id) for row in rows}
            queues = {kind: names for kind, names in queues.items() if names and kind not in ended}
            found += rows
        return found

    def _whole(self, names: list[str]) -> list[IndexEntry]:
        new = [name for name in names if name not in self._seen]
        self._seen.update(zip(new, _at_once(self._read, new), strict=True))
        return [row for name in names if (row := self._seen[name]) is not None]

    def _read(self, tag: str) -> IndexEntry | None:
        """The image behind a fixed tag, if its push came to its end."""
        row = self._known.get(self._registry.digest(tag))
        if row is not None and row.image.id == tag:
            return row
        found = _fixed(self._registry, tag, self._note)
        if found is None or found[0].target != self._target or not referrers.complete(self._registry, found[0].digest):
            return None
        image, manifest = found
        return IndexEntry(image=image, media_type=manifest.media_type, size=len(manifest.content))


def _release(tag: str) -> Version | None:
    release = tag.partition("-")[0]
    return Version(release) if labels.is_version(release) else None
