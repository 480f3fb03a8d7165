"""The images and indexes in a repository: read from their tags, compared, and updated by pushes.

Indexes are computed from the fixed tags, so the last of several pushes repairs what the others overwrote.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from tfbuild.errors import RegistryRefused
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.transport import parallel
from tfbuild.publish import attachments, indexes
from tfbuild.publish.choose import Published
from tfbuild.publish.indexes import ANY, LATEST, IndexEntry, IndexRow, Note

UNREADABLE = Manifest(digest="", media_type="", content=b"{}")


# --- reading ----------------------------------------------------------------------------------------------------------


def images(registry: Registry, tags: Iterable[str], note: Note = indexes.quietly) -> list[tuple[Published, Manifest]]:
    """Return the images under the fixed tags among `tags`, without others' images and those under another's tag.

    Damaged images are also left out, and reported to `note`. Raises RegistryRefused if all are damaged.
    """
    damage: list[str] = []
    pairs = [pair for pair in parallel(lambda tag: _read_fixed(registry, tag, damage.append), tags) if pair is not None]
    for line in sorted(set(damage)):
        note(line)
    if damage and not pairs:
        raise RegistryRefused(f"no image in {registry.repository} can be read", hint="the notes above say why")
    return pairs


def read_image(registry: Registry, manifest: Manifest | None) -> Published | None:
    """Return the image that a manifest describes, by its labels; None if tfbuild did not make it. Raises Damaged."""
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        return None
    return indexes.of_config(registry.config(manifest), manifest.digest)


def _read_fixed(registry: Registry, tag: str, note: Note) -> tuple[Published, Manifest] | None:
    try:
        manifest = registry.manifest(tag)
        image = read_image(registry, manifest)
    except manifests.Damaged as error:
        # One damaged image must not hide all the others.
        note(f"{registry.repository}:{tag} is left out: {error.reason}; {error.hint}")
        return None
    return (image, manifest) if manifest is not None and image is not None and image.id == tag else None


def read_indexes(registry: Registry, tags: Iterable[str], moved: Note = indexes.quietly) -> dict[str, Manifest]:
    """Return the indexes, by tag; without those that do not exist.

    A tag that is no longer an index is reported to `moved`.
    """
    names = list(tags)
    contents = dict(zip(names, parallel(lambda tag: _moving_tag(registry, tag), names), strict=True))
    every = {tag: index for tag, index in contents.items() if index is not None}
    for tag, index in every.items():
        if not indexes.is_index(index):
            moved(tag)
    return {tag: index for tag, index in every.items() if indexes.is_index(index)}


def _moving_tag(registry: Registry, tag: str) -> Manifest | None:
    """Return what a moving tag names; None if it does not exist. What nobody can read, an update writes again."""
    try:
        return registry.manifest(tag)
    except manifests.Forged:
        return UNREADABLE


def indexed_images(registry: Registry, identifier: str) -> list[Published]:
    """Return the images in the indexes to which an image with this identifier would belong."""
    if indexes.release_of(identifier) is None:
        return []
    release, _, rest = identifier.partition("-")
    every = read_indexes(registry, indexes.index_tags(release, rest.partition("-")[0]))
    return [row.image for index in every.values() for row in indexes.index_rows(index) if row.image is not None]


# --- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What the indexes that may name an image say of it, compared with its labels.

    `lacking`: those that should offer it exactly as its labels describe it, and do not: its push did not finish, or
    another push overwrote them. `named`: whether any of them offers an image with its identifier, even another one.
    `contradicting`: those that describe it otherwise than its labels. `replaced`: those that offer another image with
    its identifier. `moved`: the moving tags that are not indexes. `contents`: the indexes, by tag.
    """

    lacking: tuple[str, ...]
    named: bool
    contradicting: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    contents: Mapping[str, Manifest] = field(default_factory=dict, compare=False)


def compare(registry: Registry, image: Published) -> IndexState:
    """Compare an image with the indexes that may name it."""
    tags = indexes.tags_of(image)
    moved: list[str] = []
    contents = read_indexes(registry, tags, moved.append)
    every = {tag: indexes.index_rows(index) for tag, index in contents.items()}

    def where(wrong: Callable[[IndexRow], bool]) -> tuple[str, ...]:
        return tuple(tag for tag, rows in every.items() if any(map(wrong, rows)))

    return IndexState(
        lacking=tuple(tag for tag in tags if not _offers(tag, every.get(tag, []), image)),
        named=any(row.id == image.id for rows in every.values() for row in rows),
        contradicting=where(lambda row: row.digest == image.digest and row.image != image),
        replaced=where(lambda row: row.id == image.id and row.digest != image.digest),
        moved=tuple(moved),
        contents=contents,
    )


def edited(
    registry: Registry, image: Published, contents: Mapping[str, Manifest], demand: referrers.Demand | None = None
) -> tuple[str, ...]:
    """Return the tags of those indexes that may name an image which an update would write or sign again.

    They have other images, another order, variant, speed or size, or no signature that `demand` accepts.
    """
    wanted = _wanted(registry, image, contents)
    return tuple(
        tag
        for tag, index in contents.items()
        if not _is_written(index, wanted[tag]) or not referrers.accepted(registry, index.digest, demand)
    )


def _offers(tag: str, rows: Iterable[IndexRow], image: Published) -> bool:
    """Return whether an index offers an image, or a newer one in its place."""
    named = [row.image for row in rows if row.image is not None]
    newer = [other for other in named if Version(other.release) > Version(image.release)]
    if newer and tag.startswith(f"{LATEST}-"):
        return True
    if tag.startswith(f"{ANY}-") and indexes.kind(image.id) in {indexes.kind(other.id) for other in newer}:
        return True
    return image in named


# --- updating ---------------------------------------------------------------------------------------------------------


def gather(
    registry: Registry,
    image: Published,
    note: Note = indexes.quietly,
    sign: referrers.Sign | None = None,
    demand: referrers.Demand | None = None,
) -> list[str]:
    """Update the indexes that may name `image`, and return those that offer it.

    Raises RegistryRefused if none does, because its fixed tag names another image, or its attestations are gone.
    """
    rows = update(registry, image, note, sign, demand)
    tags = [tag for tag, entries in rows.items() if any(entry.image.digest == image.digest for entry in entries)]
    if not tags:
        raise RegistryRefused(
            f"no index of {registry.repository} offers {image.digest}: {image.id} is another image there, "
            "or its SBOM and its provenance are gone",
            hint="push it again, unless somebody else has just pushed it",
        )
    return tags


def update(
    registry: Registry,
    image: Published,
    note: Note = indexes.quietly,
    sign: referrers.Sign | None = None,
    demand: referrers.Demand | None = None,
) -> dict[str, list[IndexEntry]]:
    """Update the indexes that may name `image` from the current fixed tags, sign them, and return their entries.

    Damaged images are left out, and reported to `note`. A signature that `demand` refuses counts as none.
    """
    damage: list[str] = []
    for _ in range(referrers.MENDS):
        current = {tag: _moving_tag(registry, tag) for tag in indexes.tags_of(image)}
        rows = _wanted(registry, image, current, damage.append)
        stale = [tag for tag, index in current.items() if not _is_written(index, rows[tag])]
        if not stale:
            for line in sorted(set(damage)):
                note(line)
            _sign(registry, current.values(), sign, demand)
            return rows
        for tag in stale:
            number = max(indexes.number_of(current[tag]) + 1, int(time.time()))
            registry.put(tag, indexes.index_content(rows[tag], number), manifests.INDEX)
    raise RegistryRefused(
        f"{registry.repository}:{', '.join(stale)} keeps changing", hint="push again when other pushes are done"
    )


def _wanted(
    registry: Registry, image: Published, current: Mapping[str, Manifest | None], note: Note = indexes.quietly
) -> dict[str, list[IndexEntry]]:
    """Return the entries that the indexes which may name `image` should have, by the current fixed tags.

    Images without SBOM and provenance are not among them, because their push did not finish, nor are yanked ones.

    What an index says about another image with the same digest is trusted: it was read from that image, and a pull
    compares it. Otherwise each push would read all images again.
    """
    entries = [row.entry for index in current.values() for row in indexes.index_rows(index)]
    known = {row.image.digest: row for row in entries if row is not None and row.image.digest != image.digest}
    view = View(registry, image.target, known, note)
    return {tag: view.rows(tag.removesuffix(f"-{image.target}")) for tag in current}


def _is_written(index: Manifest | None, entries: Sequence[IndexEntry]) -> bool:
    """Return whether an index has the bytes that this tfbuild gives these entries; without any, it need not exist."""
    if index is None:
        return not entries
    return index.content == indexes.index_content(entries, indexes.number_of(index))


def _sign(
    registry: Registry,
    written: Iterable[Manifest | None],
    sign: referrers.Sign | None,
    demand: referrers.Demand | None,
) -> None:
    """Sign the indexes to which no signature is attached, or none that `demand` accepts."""
    if sign is None:
        return
    for digest in sorted({index.digest for index in written if index is not None}):
        attached = referrers.listed(registry, digest)
        if not referrers.signed(registry, digest, attached) or not referrers.accepted(registry, digest, demand):
            sign(f"{registry.repository}@{digest}")


class View:
    """The completely pushed images of one target under their current fixed tags; each tag is read only once.

    `known`: entries by digest that need not be read again; damaged images are reported to `note`.
    """

    def __init__(self, registry: Registry, target: str, known: Mapping[str, IndexEntry], note: Note) -> None:
        self._registry, self._target, self._known, self._note = registry, target, known, note
        self._tags = [name for name in registry.tags() if f"-{target}-" in name]
        self._seen: dict[str, IndexEntry | None] = {}

    def rows(self, kind: str) -> list[IndexEntry]:
        """Return the entries of a release ("2.20": of all its patches), of the newest one ("latest"), or "any"."""
        if kind == LATEST:
            return self._latest()
        if kind == ANY:
            return self._newest_of_each_kind()
        patches = (name for _, name in self._released() if name.startswith(f"{kind}."))
        return self._complete([*(name for name in self._tags if name.startswith(f"{kind}-")), *patches])

    def _released(self) -> list[tuple[Version, str]]:
        """Return the fixed tags of final releases, the oldest first."""
        releases = ((indexes.release_of(name), name) for name in self._tags)
        return sorted((release, name) for release, name in releases if release and not release.is_prerelease)

    def _latest(self) -> list[IndexEntry]:
        """Return the entries of the newest release of which any image was pushed completely."""
        released = self._released()
        for newest in sorted({release for release, _ in released}, reverse=True):
            if rows := self._complete([name for release, name in released if release == newest]):
                return rows
        return []

    def _newest_of_each_kind(self) -> list[IndexEntry]:
        """Return the newest entry of each kind; that of the release before, if a push did not finish."""
        queues: dict[str, list[str]] = {}
        for _, name in self._released():
            queues.setdefault(indexes.kind(name), []).append(name)
        entries: list[IndexEntry] = []
        while queues:
            rows = self._complete([names.pop() for names in queues.values()])
            done = {indexes.kind(row.image.id) for row in rows}
            queues = {own: names for own, names in queues.items() if names and own not in done}
            entries += rows
        return entries

    def _complete(self, names: list[str]) -> list[IndexEntry]:
        new = [name for name in names if name not in self._seen]
        self._seen.update(zip(new, parallel(self._read, new), strict=True))
        return [row for name in names if (row := self._seen[name]) is not None]

    def _read(self, tag: str) -> IndexEntry | None:
        """Return the image under a fixed tag, if its push finished."""
        row = self._known.get(self._registry.digest(tag))
        if row is not None and row.image.id == tag:
            return row
        pair = _read_fixed(self._registry, tag, self._note)
        if pair is None or pair[0].target != self._target:
            return None
        image, manifest = pair
        rows = referrers.listed(self._registry, image.digest)
        if not referrers.complete(rows) or attachments.yank_reason(self._registry, manifest, rows):
            return None
        return IndexEntry(image=image, media_type=manifest.media_type, size=len(manifest.content))
