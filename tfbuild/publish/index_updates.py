"""The indexes of a repository, computed from its fixed tags.

A push lists the tags, writes the indexes that they give, lists the tags once more, and repeats if the result differs:
so the last of several pushes at once repairs what the others overwrote.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from packaging.version import Version

from tfbuild.errors import RegistryRefused
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.transport import parallel
from tfbuild.publish import indexes, yanking
from tfbuild.publish.choose import Published
from tfbuild.publish.indexes import LATEST, IndexEntry

ROUNDS = 5
Note = Callable[[str], object]


def update(registry: Registry, release: str, target: str, note: Note) -> dict[str, list[IndexEntry]]:
    """Write the indexes that may name an image of a release, and return their entries by tag.

    Damaged images are left out, and reported to `note`. Raises RegistryRefused if others keep changing them.
    """
    damage: set[str] = set()
    for left in reversed(range(ROUNDS + 1)):
        current = {tag: _index(registry, tag) for tag in indexes.index_tags(release, target)}
        wanted = _wanted(registry, target, current, damage.add)
        contents = {tag: indexes.index_content(rows) for tag, rows in wanted.items()}
        stale = [tag for tag, index in current.items() if _written(index, wanted[tag]) != contents[tag]]
        if not stale:
            for line in sorted(damage):
                note(line)
            return wanted
        for tag in stale if left else ():
            registry.put(tag, contents[tag], manifests.INDEX)
    raise RegistryRefused(
        f"{registry.repository}:{', '.join(stale)} keeps changing", hint="push again when other pushes are done"
    )


def lacking(registry: Registry, image: Published) -> list[str]:
    """Return the indexes that may name an image and are not as they would be written now; nothing is changed."""
    current = {tag: _index(registry, tag) for tag in indexes.index_tags(image.release, image.target)}
    wanted = _wanted(registry, image.target, current, lambda _: None)
    return [tag for tag, index in current.items() if _written(index, wanted[tag]) != indexes.index_content(wanted[tag])]


def _written(index: Manifest | None, rows: list[IndexEntry]) -> bytes:
    """Return what is in the registry; without any rows, an index need not exist."""
    return index.content if index is not None else b"" if rows else indexes.index_content(())


def _index(registry: Registry, tag: str) -> Manifest | None:
    """Return what a moving tag names. What nobody can read is written again."""
    try:
        return registry.manifest(tag)
    except manifests.Damaged:
        return Manifest(digest="", media_type="", content=b"{}")


def _wanted(
    registry: Registry, target: str, current: Mapping[str, Manifest | None], note: Note
) -> dict[str, list[IndexEntry]]:
    """Return the entries that these indexes should have, by the current fixed tags.

    Images without SBOM and provenance are not among them, because their push did not finish, nor are yanked ones. What
    an index says of a digest is trusted: it was read from that image, and a pull compares it.
    """
    known = {entry.image.digest: entry for index in current.values() for entry in _readable(index)}
    every = set(registry.tags())
    names = [name for name in sorted(every) if f"-{target}-" in name and yanking.tag(name) not in every]
    released = {name: release for name in names if (release := indexes.release_of(name)) is not None}

    @cache
    def row(name: str) -> IndexEntry | None:
        return _row(registry, name, target, known, note)

    def rows(names: Iterable[str]) -> list[IndexEntry]:
        return [entry for entry in parallel(row, names) if entry is not None]

    def latest() -> list[IndexEntry]:
        """Return the entries of the newest release of which any image was pushed completely."""
        final = {release for release in released.values() if not release.is_prerelease}
        every = (rows(name for name in released if released[name] == newest) for newest in sorted(final, reverse=True))
        return next(filter(None, every), [])

    def of(series: str) -> list[IndexEntry]:
        if series == LATEST:
            return latest()
        return rows(name for name, release in released.items() if _belongs(name, release, series))

    return {tag: of(tag.removesuffix(f"-{target}")) for tag in current}


def _belongs(name: str, release: Version, series: str) -> bool:
    """Return whether a fixed tag is of a release ("2.20.0"), or of the final ones of a minor release ("2.20")."""
    return name.startswith(f"{series}-") or (name.startswith(f"{series}.") and not release.is_prerelease)


def _readable(index: Manifest | None) -> list[IndexEntry]:
    try:
        return indexes.read_index(index)
    except manifests.Damaged:
        return []


def _row(registry: Registry, name: str, target: str, known: Mapping[str, IndexEntry], note: Note) -> IndexEntry | None:
    """Return the image under a fixed tag, if its push finished."""
    try:
        entry = known.get(registry.digest(name))
        if entry is not None and entry.image.id == name:
            return entry
        entry = read_fixed(registry, name)
        finished = (
            entry is not None and entry.image.target == target and referrers.complete(registry, entry.image.digest)
        )
        return entry if finished else None
    except manifests.Damaged as error:
        # One damaged image must not hide all the others.
        note(f"{registry.repository}:{name} is left out: {error.reason}; {error.hint}")
        return None


def read_fixed(registry: Registry, name: str) -> IndexEntry | None:
    """Return the image under a fixed tag, by its labels; None if tfbuild did not make it. Raises Damaged."""
    manifest = registry.manifest(name)
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        return None
    image = indexes.of_config(registry.config(manifest), manifest.digest)
    if image is None or image.id != name:
        return None
    return IndexEntry(image=image, media_type=manifest.media_type, size=len(manifest.content))
