"""The images that tfbuild published in a repository: fixed tags, and an index of them per release and target.

A fixed tag is a build's identifier (2.20.0-mkl-py3.13-x86-64-v3) and never moves to another image. A moving tag
(2.20-mkl, 2.20.0-mkl, latest-mkl, any-mkl) is an OCI index of images with fixed tags. Its descriptors repeat the labels
by which a host chooses, so that nothing is downloaded for the choice. The index of a release names all of its images,
and the latest index those of the newest release. The index `any` names, for each platform, Python and instruction set,
the image of the newest release that has it: all images of the newest release are among them, so that one index tells
`pull` and pull.sh both the newest release and the larger sets of older ones. Images come in the order of their levels,
those of one level best first: plain `docker pull` takes the first one of its platform, or of the highest variant that
the host runs (Docker 23 and newer), and pull.sh the first one of the highest speed that fits. The slowest come first
and have no `platform.variant`, because Docker 20.10 passes over all but v1 (of amd64).
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.version import Version

from tfbuild import facts, plan
from tfbuild.context import labels
from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import manifests, references, referrers, transport
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import choose, withdrawals
from tfbuild.publish.choose import Published
from tfbuild.util.terminal import printable

LATEST = "latest"
ANY = "any"
# Labels of an image that are repeated in its descriptor in an index.
LABELS = ("id", "release", "target", "python", "platform", "instruction-set", "features")
# The values of LABELS. They are checked because anybody may have written them, and they are printed.
VALUE = re.compile(r"[\w.,+/-]*( [\w.,+/-]+)*", re.ASCII)
MOST_TIME = 64
# The annotation with an index's number. It is the time if that is larger, so that one whose index was lost grows too.
NUMBER = "number"
WHOLE = re.compile(r"[0-9]{1,40}", re.ASCII)
# Two pushes at once may overwrite each other's index. Each reads it again and repairs it, up to this many times.
MENDS = 5
UNREADABLE = Manifest(digest="", media_type="", content=b"{}")
Result = TypeVar("Result")
Note = Callable[[str], None]


def quietly(_: str) -> None:
    """A Note that is discarded."""


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """An image as an index names it; `size`: bytes of its manifest."""

    image: Published
    media_type: str
    size: int


def moving_tags(release: str, target: str) -> tuple[str, str]:
    """("2.20-mkl", "2.20.0-mkl"): the indexes that an image of a release belongs to, besides `any` and `latest`."""
    version = Version(release)
    return f"{version.major}.{version.minor}-{target}", f"{release}-{target}"


def images(registry: Registry, tags: Iterable[str], note: Note = quietly) -> list[tuple[Published, Manifest]]:
    """The images under the fixed tags among `tags`, without images that are not tfbuild's or whose labels do not match.

    Damaged images are also left out, and reported to `note`. Raises RegistryRefused if all are damaged.
    """
    damage: list[str] = []
    pairs = parallel(lambda tag: _read_fixed(registry, tag, damage.append), tags)
    _report(damage, note)
    readable = [pair for pair in pairs if pair is not None]
    if damage and not readable:
        raise RegistryRefused(f"no image in {registry.repository} can be read", hint="the notes above say why")
    return readable


def read_image(registry: Registry, manifest: Manifest | None) -> Published | None:
    """Return the image that a manifest describes, by its labels; None if tfbuild did not make it. Raises Damaged."""
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        return None
    return of_config(registry.config(manifest), manifest.digest)


def _read_fixed(registry: Registry, tag: str, note: Note) -> tuple[Published, Manifest] | None:
    try:
        manifest = registry.manifest(tag)
        image = read_image(registry, manifest)
    except manifests.Damaged as error:
        # One damaged image must not hide all the others.
        note(f"note: {registry.repository}:{tag} is left out: {error.reason}; {error.hint}")
        return None
    return (image, manifest) if manifest is not None and image is not None and image.id == tag else None


def _report(damage: Iterable[str], note: Note) -> None:
    for line in sorted(set(damage)):
        note(line)


def parallel(read: Callable[[str], Result], names: Iterable[str]) -> list[Result]:
    """The results of `read` for each name, in the order of names, from several requests at once."""
    with ThreadPoolExecutor(transport.WORKERS) as pool:
        return list(pool.map(read, names))


def of_config(config: dict[str, Any], digest: str) -> Published | None:
    """The image that a configuration's labels describe; None where they are incomplete, or contradict it."""
    image = of_labels(labels.configured_labels(config), config.get("created"), digest)
    platform = f"{config.get('os')}/{config.get('architecture')}"
    return image if image is not None and image.platform == platform else None


def of_labels(raw: object, created: object, digest: str) -> Published | None:
    """Return the image that labels or annotations describe; None if they are not tfbuild's, or incomplete."""
    own = labels.read_labels(raw).own
    if not all(labels.is_version(own.get(name, "")) for name in ("release", "python")):
        return None
    if own.get("platform") not in plan.PLATFORMS or not all(own.get(name) for name in ("id", "target")):
        return None
    # An image without a list of features would fit every host: only that of x86-64-v1 is empty.
    if "features" not in own or not all(VALUE.fullmatch(own.get(name, "")) for name in LABELS):
        return None
    if not references.TAG.fullmatch(own["id"]) or not references.DIGEST.fullmatch(digest):
        return None
    if not own["id"].startswith(f"{own['release']}-{own['target']}-py{own['python']}-"):
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


def index(entries: Iterable[IndexEntry], number: int) -> bytes:
    """The OCI index of these images; the same bytes for the same images and number."""
    best_first = sorted(entries, key=lambda row: choose.rank(row.image), reverse=True)
    slowest = {row.image.platform: choose.speed(row.image) for row in best_first}

    def level(row: IndexEntry) -> int:
        return 0 if choose.speed(row.image) == slowest[row.image.platform] else _level(row.image)

    document = {
        "schemaVersion": 2,
        "mediaType": manifests.INDEX,
        "manifests": [
            _descriptor(row, variant_of(row.image) if level(row) else "")
            for row in sorted(best_first, key=lambda row: (row.image.platform, level(row)))
        ],
        "annotations": labels.prefixed({"schema": labels.SCHEMA, NUMBER: str(number)}),
    }
    return json.dumps(document, indent=2).encode()


def number_of(index: Manifest | None) -> int:
    """Return the number of an index, which grows each time it is written; 0 if it has none."""
    if index is None or not is_index(index):
        return 0
    text = labels.read_labels(index.json().get("annotations")).get(NUMBER)
    return int(text) if WHOLE.fullmatch(text) else 0


def variant_of(image: Published) -> str:
    """Return the `platform.variant` of the smallest level that contains an image's set; "" if none does."""
    levels = facts.levels(plan.PLATFORMS[image.platform])
    return dict(enumerate((level.variant for level in levels), 1)).get(_level(image), "")


def _level(image: Published) -> int:
    """Return the number, from 1 on, of the smallest level that contains an image's set; above all if none does."""
    levels = facts.levels(plan.PLATFORMS[image.platform])
    return next((number for number, level in enumerate(levels, 1) if image.features <= level.features), len(levels) + 1)


def _descriptor(row: IndexEntry, variant: str) -> dict[str, object]:
    image = row.image
    system, _, architecture = image.platform.partition("/")
    annotations = {
        "id": image.id,
        "release": image.release,
        "target": image.target,
        "python": image.python,
        "platform": image.platform,
        "instruction-set": image.instruction_set,
        "features": " ".join(sorted(image.features)),
        "speed": speed_text(image),
        "cpuinfo": " ".join(sorted(in_cpuinfo(name) for name in image.features)),
    }
    return {
        "mediaType": row.media_type,
        "digest": image.digest,
        "size": row.size,
        "platform": {"os": system, "architecture": architecture} | ({"variant": variant} if variant else {}),
        "annotations": labels.prefixed(annotations) | {referrers.CREATED: image.created},
    }


def speed_text(image: Published) -> str:
    """choose.speed as text, for pull.sh: a larger text is a larger speed."""
    vectors, count = choose.speed(image)
    return f"{''.join('01'[has] for has in vectors)}{count:04}"


def in_cpuinfo(feature: str) -> str:
    """The kernel's name, the only one pull.sh knows; a feature that no kernel prints keeps its own, and never fits."""
    return next((row.cpuinfo for row in facts.features() if row.name == feature), "") or feature


@dataclass(frozen=True, kw_only=True)
class IndexRow:
    """What one row of an index says; anybody may have written it.

    `digest` and `id` as they stand there; `image`: None if the row does not describe one. `entry`: None if this version
    of tfbuild would write the row differently.
    """

    digest: str
    id: str
    image: Published | None
    entry: IndexEntry | None


def index_rows(index: Manifest | None) -> list[IndexRow]:
    """What each row of an index says; [] if there is no index."""
    if index is None or not is_index(index):
        return []
    return [_index_row(raw) for raw in manifests.descriptors(index.json())]


def _index_row(raw: dict[str, Any]) -> IndexRow:
    annotations = raw.get("annotations")
    written = annotations if isinstance(annotations, dict) else {}
    digest, size = str(raw.get("digest", "")), raw.get("size")
    image = of_labels(written, written.get(referrers.CREATED), digest)
    entry = None
    if image is not None and raw.get("mediaType") in manifests.IMAGES and isinstance(size, int):
        row = IndexEntry(image=image, media_type=str(raw["mediaType"]), size=size)
        entry = row if raw in (_descriptor(row, ""), _descriptor(row, variant_of(image))) else None
    return IndexRow(digest=digest, id=labels.read_labels(written).id, image=image, entry=entry)


def read_index(manifest: Manifest) -> list[Published]:
    """The images that an index names. Raises VerificationFailed if it is an image, RegistryRefused if it is neither."""
    if manifest.media_type in manifests.IMAGES:
        raise VerificationFailed(
            f"{manifest.digest} is an image and not an index of images: somebody moved its tag",
            hint="tell whoever publishes it; the next push writes the index again",
        )
    if not is_index(manifest):
        raise RegistryRefused(f"{manifest.digest} is not an index of images", hint="check that tfbuild pushed it")
    return [row.image for row in index_rows(manifest) if row.image is not None]


def is_index(manifest: Manifest) -> bool:
    """Return whether a tag's content is an index, as that of a moving tag should be."""
    return manifest.media_type in manifests.LISTS and isinstance(manifest.json().get("manifests"), list)


def moving_tag(registry: Registry, tag: str) -> Manifest | None:
    """What a moving tag names; None if it does not exist. What nobody can read, an update writes again."""
    try:
        return registry.manifest(tag)
    except manifests.Forged:
        return UNREADABLE


def _known(index: Manifest | None) -> dict[str, IndexEntry]:
    """The entries of an index by digest, without those that this version of tfbuild would write differently."""
    return {row.digest: row.entry for row in index_rows(index) if row.entry is not None}


def gather(registry: Registry, image: Published, note: Note = quietly, sign: referrers.Sign | None = None) -> list[str]:
    """Update the indexes that may name `image`, and return those that offer it.

    Raises RegistryRefused if none does, because its fixed tag names another image, or its attestations are gone.
    """
    return _offering(registry, image, update(registry, image, note, sign))


def update(
    registry: Registry, image: Published, note: Note = quietly, sign: referrers.Sign | None = None
) -> dict[str, list[IndexEntry]]:
    """Update the indexes that may name `image` from the current fixed tags, sign them, and return their entries.

    Images without SBOM and provenance are not in any index, because their push did not finish, nor are withdrawn ones.
    Damaged images are left out, and reported to `note`.

    Indexes are computed from the fixed tags, so the last of several pushes repairs what the others overwrote. What an
    index says about another image with the same digest is trusted: it was read from that image, and a pull compares it.
    Otherwise each push would read all images again.
    """
    tags = indexes(image)
    damage: list[str] = []
    for _ in range(MENDS):
        current = {tag: moving_tag(registry, tag) for tag in tags}
        known = {digest: row for index in current.values() for digest, row in _known(index).items()}
        known.pop(image.digest, None)
        view = View(registry, image.target, known, damage.append)
        rows = {tag: view.rows(tag.removesuffix(f"-{image.target}")) for tag in tags}
        numbers = {tag: number_of(old) for tag, old in current.items()}
        # An index that does not exist yet is not created for nothing.
        stale = [
            tag
            for tag in tags
            if (old.content != index(rows[tag], numbers[tag]) if (old := current[tag]) else rows[tag])
        ]
        if not stale:
            _report(damage, note)
            _sign(registry, current.values(), sign)
            return rows
        for tag in stale:
            registry.put(tag, index(rows[tag], max(numbers[tag] + 1, int(time.time()))), manifests.INDEX)
    raise RegistryRefused(
        f"{registry.repository}:{', '.join(stale)} keeps changing", hint="push again when other pushes are done"
    )


def _sign(registry: Registry, written: Iterable[Manifest | None], sign: referrers.Sign | None) -> None:
    """Sign the indexes to which no signature is attached."""
    for digest in sorted({index.digest for index in written if index is not None}) if sign else ():
        if sign and not referrers.signed(registry, digest, referrers.types(referrers.listed(registry, digest))):
            sign(f"{registry.repository}@{digest}")


def _offering(registry: Registry, image: Published, rows: Mapping[str, list[IndexEntry]]) -> list[str]:
    tags = [tag for tag, entries in rows.items() if any(entry.image.digest == image.digest for entry in entries)]
    if not tags:
        raise RegistryRefused(
            f"no index of {registry.repository} offers {image.digest}: {image.id} is another image there, "
            "or its SBOM and its provenance are gone",
            hint="push it again, unless somebody else has just pushed it",
        )
    return tags


def indexes(image: Published) -> tuple[str, ...]:
    """The tags of the indexes that may name an image."""
    return index_tags(image.release, image.target)


def index_tags(release: str, target: str) -> tuple[str, ...]:
    """The tags of the indexes that may name an image of a release; a candidate or nightly is only in its own."""
    if Version(release).is_prerelease:
        return (f"{release}-{target}",)
    return (*moving_tags(release, target), f"{ANY}-{target}", f"{LATEST}-{target}")


def kind(tag: str) -> str:
    """Return a fixed tag without its release: target, Python, instruction set (its name, or its hash)."""
    return tag.partition("-")[2]


class View:
    """The completely pushed images of one target under their current fixed tags; each tag is read only once.

    `known`: entries by digest that need not be read again; damaged images are reported to `note`.
    """

    def __init__(self, registry: Registry, target: str, known: Mapping[str, IndexEntry], note: Note = quietly) -> None:
        self._registry, self._target, self._known, self._note = registry, target, known, note
        self._tags = [name for name in registry.tags() if f"-{target}-" in name]
        self._seen: dict[str, IndexEntry | None] = {}

    def rows(self, kind: str) -> list[IndexEntry]:
        """The entries of a release ("2.20": of all its patches), of the newest one ("latest"), or "any"."""
        if kind == LATEST:
            return self._latest()
        if kind == ANY:
            return self._newest_of_each_kind()
        patches = (name for _, name in self._released() if name.startswith(f"{kind}."))
        return self._complete([*(name for name in self._tags if name.startswith(f"{kind}-")), *patches])

    def _released(self) -> list[tuple[Version, str]]:
        """The fixed tags of final releases, the oldest first."""
        releases = ((release_of(name), name) for name in self._tags)
        return sorted((release, name) for release, name in releases if release and not release.is_prerelease)

    def _latest(self) -> list[IndexEntry]:
        """The entries of the newest release of which any image was pushed completely."""
        released = self._released()
        for newest in sorted({release for release, _ in released}, reverse=True):
            if rows := self._complete([name for release, name in released if release == newest]):
                return rows
        return []

    def _newest_of_each_kind(self) -> list[IndexEntry]:
        """The newest entry of each kind; one whose push did not finish is replaced by that of the release before."""
        queues: dict[str, list[str]] = {}
        for _, name in self._released():
            queues.setdefault(kind(name), []).append(name)
        entries: list[IndexEntry] = []
        while queues:
            rows = self._complete([names.pop() for names in queues.values()])
            done = {kind(row.image.id) for row in rows}
            queues = {own: names for own, names in queues.items() if names and own not in done}
            entries += rows
        return entries

    def _complete(self, names: list[str]) -> list[IndexEntry]:
        new = [name for name in names if name not in self._seen]
        self._seen.update(zip(new, parallel(self._read, new), strict=True))
        return [row for name in names if (row := self._seen[name]) is not None]

    def _read(self, tag: str) -> IndexEntry | None:
        """The image under a fixed tag, if its push finished."""
        row = self._known.get(self._registry.digest(tag))
        if row is not None and row.image.id == tag:
            return row
        pair = _read_fixed(self._registry, tag, self._note)
        if pair is None or pair[0].target != self._target:
            return None
        image, manifest = pair
        rows = referrers.listed(self._registry, image.digest)
        if not referrers.complete(rows) or withdrawals.withdrawal(self._registry, manifest, rows):
            return None
        return IndexEntry(image=image, media_type=manifest.media_type, size=len(manifest.content))


def release_of(tag: str) -> Version | None:
    """Return the release of a fixed tag; None if it begins with none."""
    release = tag.partition("-")[0]
    return Version(release) if labels.is_version(release) else None
