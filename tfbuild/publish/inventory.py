"""The images here and in a registry, which of them this host can run, and which may be removed.

Labels are inherited: an image that anybody builds FROM one of tfbuild's has them too. So only images that meet two more
conditions may be removed. The name is one that tfbuild gives (or a registry's moving tag), in any repository; and the
last step of the image's history is the LABEL that ends tfbuild's Dockerfile, with the labels that the image has now.
Any instruction, `docker commit` and an import leave another last step. Three kinds of images cannot be told from
tfbuild's: one whose Dockerfile has only a FROM, one whose Dockerfile ends by repeating all of these labels, and one
that a tool changed without adding to the history.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from tfbuild.context import labels
from tfbuild.context.labels import GIVEN_IDENTIFIER, REPOSITORY, UNVERIFIED
from tfbuild.cpu import Cpu, isa
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage, UsageError
from tfbuild.oci import references, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Damaged, Manifest
from tfbuild.oci.transport import parallel
from tfbuild.plan import MACHINES
from tfbuild.publish import attachments, choose, index_updates, indexes
from tfbuild.publish.choose import Published
from tfbuild.publish.indexes import IndexRow
from tfbuild.util.quantities import counted
from tfbuild.verify import report as reporting

HERE = "here"
# Labels in the last step of the images that tfbuild built.
REPEATED = (*indexes.LABELS, "context")
# An image that lost its name to a newer build of the same identifier.
UNNAMED = "(unnamed)"
# Suffixes in the name of an image that failed its verification, or is not verified yet.
UNPROVEN = ("-failed", UNVERIFIED)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An image. `place`: "here" or a repository; `size` in bytes, compressed for an image in a registry.

    `verified`: None if its report is not here (a registry has only verified images, and reports are where they were
    made); False also for a name that says so.
    `offered`: whether an index of the registry names it, so that `pull` may choose it; None for a local image.
    `altered`: what was changed after the push, or "". `yanked`: the reason why it is not offered any more, or "".
    `signed`: whether a signature is attached in the registry, which nobody checked; None for a local image.
    `digests`: of its manifests, by which registries know it; `outdated`: why it should be pulled again, or "".
    `ours`: whether tfbuild built it and gave it this name, so that `prune` may remove it.
    `runs`: whether this host has all of its features; `lacks`: those that it does not have.
    """

    place: str
    name: str
    id: str
    digest: str
    instruction_set: str
    platform: str
    size: int
    created: str
    verified: bool | None
    lacks: tuple[str, ...]
    offered: bool | None = None
    altered: str = ""
    yanked: str = ""
    signed: bool | None = None
    ours: bool = False
    digests: frozenset[str] = frozenset()
    outdated: str = ""

    @property
    def runs(self) -> bool:
        return not self.lacks

    @property
    def tag(self) -> str:
        """The tag in its name; for a name by digest, that of its identifier."""
        return self.id if "@" in self.name else references.split_tag(self.name)[1]

    def to_json(self) -> dict[str, object]:
        return {
            "place": self.place,
            "name": self.name,
            "id": self.id,
            "digest": self.digest,
            "instruction_set": self.instruction_set,
            "platform": self.platform,
            "size": self.size,
            "created": self.created,
            "verified": self.verified,
            "offered": self.offered,
            "altered": self.altered or None,
            "yanked": self.yanked or None,
            "signature_attached": self.signed,
            "outdated": self.outdated or None,
            "runs_here": self.runs,
            "lacks": list(self.lacks),
        }


def local(engine: Engine, reports: Path, host: Cpu | None) -> list[Entry]:
    """Return the engine's images with tfbuild's labels, sorted by name; unnamed ones come last."""
    entries = []
    for image in engine.labelled(labels.ID):
        published = indexes.of_labels(image.labels, image.created, image.id)
        if published is None:
            continue
        report = reporting.stored(reports, published.id)
        known = report is not None and report.image.id == image.id
        passed = report.passed if report is not None and known else None
        own = [tag for tag in image.tags if tag.startswith(f"{REPOSITORY}:") or _is_arriving(tag)]
        names = own or list(image.tags) or list(image.repo_digests) or [UNNAMED]
        try:
            built_here = _built_by_tfbuild(image.labels, engine.history(image.id))
        except UnknownImage:  # somebody has just removed it
            continue
        entries += [
            replace(
                _entry(published, HERE, name, size=image.size, host=host),
                # Its name may say so where no report does.
                verified=False if passed is None and name.endswith(UNPROVEN) else passed,
                ours=built_here and _name_given(name, published),
                digests=image.digests,
            )
            for name in names
        ]
    return sorted(
        entries, key=lambda entry: (entry.name == UNNAMED, entry.name, choose.moment(entry.created) or choose.NEVER)
    )


def _built_by_tfbuild(image_labels: Mapping[str, str], history: Sequence[str]) -> bool:
    """Return whether the last step in an image's history is the one that set its current labels."""
    last = history[0] if history else ""
    own = labels.read_labels(image_labels).own
    repeated = labels.prefixed({name: own[name] for name in REPEATED if name in own})
    complete = len(repeated) == len(REPEATED) and last.startswith("LABEL ")
    return complete and all(f" {name}={value} " in f"{last} " for name, value in repeated.items())


def _name_given(name: str, image: Published) -> bool:
    """Return whether tfbuild gave a name: an identifier (perhaps with a suffix), a moving or arriving tag, a digest,
    or none."""
    if name == UNNAMED or "@" in name or _is_arriving(name):
        return True
    given = {*(f"{image.id}{suffix}" for suffix in ("", *UNPROVEN)), *indexes.tags_of(image)}
    return references.split_tag(name)[1] in given


def _is_arriving(name: str) -> bool:
    """Return whether a push gave a name, which it removes at its end unless it is killed."""
    return bool(references.ARRIVING_TAG.fullmatch(references.split_tag(name)[1]))


def remote(registry: Registry, host: Cpu | None, note: indexes.Note = indexes.quietly) -> list[Entry]:
    """Return the images under a repository's fixed tags, sorted by name; damaged ones are reported to `note`."""
    place = str(registry.repository)
    tags = registry.tags()
    pairs = index_updates.images(registry, tags, note)
    moving = index_updates.read_indexes(
        registry,
        sorted({tag for image, _ in pairs for tag in indexes.tags_of(image)}),
        lambda tag: note(f"{place}:{tag} was moved and is not an index any more; the next push writes it again"),
    )
    rows = [row for index in moving.values() for row in indexes.index_rows(index)]
    known = {image.id for image, _ in pairs}
    suspects = [tag for tag in tags if tag not in known and GIVEN_IDENTIFIER.fullmatch(tag)]
    moved = [entry for tag in suspects if (entry := _moved(registry, tag, host)) is not None]
    for missing in sorted({row.image.id for row in rows if row.image} - known - {entry.id for entry in moved}):
        note(
            f"an index of {place} offers {missing}, which is missing or incomplete: push it again, or yank it; the "
            "next push of another image removes it from the index"
        )

    def read(pair: tuple[Published, Manifest]) -> Entry:
        image, manifest = pair
        attached = referrers.listed(registry, manifest.digest)
        altered = _alteration(image, rows, complete=referrers.complete(attached))
        return replace(
            _entry(image, place, f"{place}:{image.id}", size=manifest.size, host=host),
            offered=any(row.image == image for row in rows),
            altered=altered or registry.damage(manifest),
            yanked=attachments.yank_reason(registry, manifest, attached),
            signed=referrers.signed(registry, manifest.digest, attached),
        )

    return sorted([*parallel(read, pairs), *moved], key=lambda entry: entry.name)


def outdated(here: Iterable[Entry], published: Sequence[Entry]) -> list[Entry]:
    """Return the images here that are not what a registry offers now, with the reason."""
    marked = [replace(entry, outdated=_newer(entry, published)) for entry in here]
    return [entry for entry in marked if entry.outdated]


def _newer(entry: Entry, published: Sequence[Entry]) -> str:
    own = next((other for other in published if other.id == entry.id), None)
    if own and own.yanked and own.digest in entry.digests:
        return f"it was yanked: {own.yanked}"
    offered = [other for other in published if other.offered and indexes.kind(other.id) == indexes.kind(entry.id)]
    released = {version: other.id for other in offered if (version := indexes.release_of(other.id)) is not None}
    newest, here = max(released, default=None), indexes.release_of(entry.id)
    if newest is not None and here is not None and newest > here and not newest.is_prerelease:
        return f"{released[newest]} is published"
    if own and own.offered and own.digest not in entry.digests:
        return f"the registry has another image of that name, of {own.created}"
    return ""


def _moved(registry: Registry, tag: str, host: Cpu | None) -> Entry | None:
    """Return an entry for a fixed tag that is another image than its name says; None if that is damaged or gone."""
    try:
        manifest = registry.manifest(tag)
        image = index_updates.read_image(registry, manifest)
    except Damaged:  # of which a note was made
        return None
    if manifest is None:
        return None
    place = str(registry.repository)
    now = image.id if image is not None else "an image that is not tfbuild's"
    shown = image or Published(
        id=tag, digest=manifest.digest, release="", target="", python="", platform="", instruction_set="",
        features=frozenset(), created="",
    )  # fmt: skip
    entry = _entry(shown, place, f"{place}:{tag}", size=manifest.size, host=host)
    return replace(entry, id=tag, offered=False, altered=f"its tag was moved: it is {now}", signed=False)


def _alteration(image: Published, rows: Sequence[IndexRow], *, complete: bool) -> str:
    own = [row for row in rows if (row.digest, row.id) == (image.digest, image.id)]
    offered = any(row.image == image for row in own)
    named = any(row.digest == image.digest or row.id == image.id for row in rows)
    if any(row.image != image for row in own) or (named and not offered):
        return "an index names another image or other features"
    return "its SBOM or its provenance is gone" if offered and not complete else ""


def _entry(
    image: Published,
    place: str,
    name: str,
    *,
    size: int,
    host: Cpu | None,
) -> Entry:
    if host is None or MACHINES[host.arch] != image.platform:
        lacks: tuple[str, ...] = (f"a {image.platform} CPU",)
    else:
        lacks = tuple(sorted(image.features.difference(isa.all_of_cpu(host).features)))
    return Entry(
        place=place,
        name=name,
        id=image.id,
        digest=image.digest,
        instruction_set=image.instruction_set,
        platform=image.platform,
        size=size,
        created=image.created,
        verified=None,
        lacks=lacks,
    )


def prunable(entries: Iterable[Entry], keep: Sequence[str]) -> list[Entry]:
    """Return those of tfbuild's images that may be removed: unnamed, failed and unverified ones, and arriving tags.

    With `keep`, all images whose identifier, tag and name fit none of its globs. Without it, an image pulled by its
    digest stays until another image that was pulled later has its name. Raises UsageError if a glob fits no image here
    while others would go.
    """
    here = [entry for entry in entries if entry.place == HERE]
    ours = [entry for entry in here if entry.ours]
    names = {entry.name for entry in ours}
    going = [entry for entry in ours if not _kept(entry, keep, names)]
    idle = [glob for glob in keep if not any(_fits(entry, glob) for entry in here)]
    if idle and going:
        raise UsageError(
            f"--keep {idle[0]!r} matches no image here, and {counted(len(going), 'image')} would be removed",
            hint="invoke images lists what is here; prune --dry-run shows what would be removed",
        )
    return going


def _fits(entry: Entry, glob: str) -> bool:
    """Return whether a glob fits an image by its identifier, its tag, or its whole name."""
    return any(fnmatchcase(name, glob) for name in (entry.id, entry.tag, entry.name))


def _kept(entry: Entry, keep: Sequence[str], names: Set[str]) -> bool:
    repository, at, _ = entry.name.partition("@")
    if keep:
        return any(_fits(entry, glob) for glob in keep)
    if at:
        return f"{repository}:{entry.id}" not in names
    return entry.name != UNNAMED and not entry.tag.endswith(UNPROVEN) and not _is_arriving(entry.name)


def remove(engine: Engine, entries: Iterable[Entry]) -> dict[Entry, str]:
    """Remove these names, and return those that the engine keeps (for a running container, say) with the reason."""
    kept = {}
    for entry in entries:
        try:
            engine.untag(entry.name if entry.name != UNNAMED else entry.digest)
        except (EngineMissing, DiskFull):
            raise
        except TfbuildError as error:
            kept[entry] = error.reason
    return kept


def age(created: str, now: datetime | None = None) -> str:
    """Return "3 h" or "12 d" since an RFC 3339 time; "?" if it is not one."""
    start = choose.moment(created)
    if start is None:
        return "?"
    hours = ((now or datetime.now(UTC)) - start).total_seconds() / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
