"""What the indexes of a repository say about an image, compared with its labels.

It tells an image that an index lacks, because its push did not finish or another push overwrote the index, from one
that an index describes wrongly, because somebody changed it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from packaging.version import Version

from tfbuild.context import labels
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import indexes
from tfbuild.publish.choose import Published
from tfbuild.publish.indexes import ANY, LATEST, IndexEntry, IndexRow, Note


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """`lacking`: the indexes that should offer an image exactly as its labels describe it, and do not.

    `named`: whether any of them offers an image with the same identifier, even if it is another one. `described`: the
    indexes that describe it in other words than its labels. `replaced`: those that offer another image with its
    identifier. `moved`: the moving tags that are no indexes. `edited`: the indexes that this version of tfbuild would
    write otherwise: with another order, variant, speed or size.
    """

    lacking: tuple[str, ...]
    named: bool
    described: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


def compare(registry: Registry, image: Published, manifest: Manifest) -> IndexState:
    """Compare an image with the indexes that may name it. `manifest`: its own."""
    tags = indexes.indexes(image)
    moved: list[str] = []
    contents = read_indexes(registry, tags, moved.append)
    every = {tag: indexes.index_rows(index) for tag, index in contents.items()}
    entry = IndexEntry(image=image, media_type=manifest.media_type, size=len(manifest.content))
    own = {tag: [row for row in rows if row.digest == image.digest] for tag, rows in every.items()}
    return IndexState(
        lacking=tuple(tag for tag in tags if not _offers(tag, every.get(tag, []), image)),
        named=any(row.id == image.id for rows in every.values() for row in rows),
        described=tuple(tag for tag, rows in own.items() if any(row.image != image for row in rows)),
        replaced=tuple(
            tag for tag, rows in every.items() if any(row.id == image.id and row.digest != image.digest for row in rows)
        ),
        moved=tuple(moved),
        edited=tuple(
            tag
            for tag, rows in own.items()
            if _edited(contents[tag]) or any(row.image == image and row.entry != entry for row in rows)
        ),
    )


def _edited(index: Manifest) -> bool:
    """Return whether an index has other bytes than this version of tfbuild gives one of the same images."""
    entries = [row.entry for row in indexes.index_rows(index)]
    known = [entry for entry in entries if entry is not None]
    return len(known) < len(entries) or indexes.index(known, indexes.number_of(index)) != index.content


def read_indexes(registry: Registry, tags: Iterable[str], moved: Note = indexes.quietly) -> dict[str, Manifest]:
    """Return the indexes, by tag; without those that do not exist.

    A tag that is no longer an index is reported to `moved`.
    """
    names = list(tags)
    every: dict[str, Manifest] = {}
    for tag, index in zip(names, indexes.parallel(partial(indexes.moving_tag, registry), names), strict=True):
        if index is not None and indexes.is_index(index):
            every[tag] = index
        elif index is not None:
            moved(tag)
    return every


def of_its_release(registry: Registry, identifier: str) -> list[Published]:
    """Return the images in the indexes to which an image with this identifier would belong."""
    release, _, rest = identifier.partition("-")
    if not labels.is_version(release):
        return []
    every = read_indexes(registry, indexes.index_tags(release, rest.partition("-")[0]))
    return [row.image for index in every.values() for row in indexes.index_rows(index) if row.image is not None]


def _offers(tag: str, rows: Iterable[IndexRow], image: Published) -> bool:
    named = [row.image for row in rows if row.image is not None]
    newer = [other for other in named if Version(other.release) > Version(image.release)]
    if newer and tag.startswith(f"{LATEST}-"):
        return True
    if tag.startswith(f"{ANY}-") and indexes.kind(image.id) in {indexes.kind(other.id) for other in newer}:
        return True
    return image in named
