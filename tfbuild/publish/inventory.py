"""What images are here and in a registry, which of them this host can run, and which may go.

Labels are inherited: whatever anybody builds FROM an image of tfbuild's has them too. So what may go is known by two
things more. The name is one that tfbuild gives (or a registry's moving tag), whatever the repository; and the last step
of the image's history is the LABEL that ends tfbuild's Dockerfile, with the labels that the image has now. Any
instruction, `docker commit` and an import leave another last step. What that cannot tell from an image of tfbuild's is
one whose Dockerfile is nothing but its FROM, or ends by repeating all of these labels, and one that a tool changed
without a word in the history.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from tfbuild.context import labels
from tfbuild.context.labels import REPOSITORY
from tfbuild.cpu import Cpu
from tfbuild.engine import Engine
from tfbuild.engine.client import split
from tfbuild.errors import EngineMissing, TfbuildError, UnknownImage
from tfbuild.oci.client import Registry
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Published
from tfbuild.verify import report as reporting

HERE = "here"
# Labels by which an image's last step is known for the one that tfbuild gave it.
REPEATED = (*indexes.LABELS, "context")
# An image that lost its name to a newer build of the same identifier.
UNNAMED = "(unnamed)"
# Behind the identifier, in the name of an image that failed its verification or did not have it yet.
UNPROVEN = ("-failed", "-unverified")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An image. `place`: "here" or a repository; `size` in bytes, in a registry as it is transferred (compressed).

    `verified` None: not known (a registry has verified images alone, whose reports are where they were made).
    `offered`: whether an index of the registry names it, so that `pull` may choose it; None for an image that is here.
    `ours`: whether it is known to be tfbuild's own under a name that tfbuild gave, which `prune` may take away.
    `runs`: whether this host has all of its features; `lacks`: which it has not.
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
    ours: bool = False

    @property
    def runs(self) -> bool:
        return not self.lacks

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
            "runs_here": self.runs,
            "lacks": list(self.lacks),
        }


def local(engine: Engine, reports: Path, host: Cpu | None, features: frozenset[str]) -> list[Entry]:
    """The engine's images with tfbuild's labels, by name; those that lost their name last."""
    found = []
    for image in engine.labelled(labels.ID):
        published = indexes.of_labels(image.labels, image.created, image.id)
        if published is None:
            continue
        report = reporting.stored(reports, published.id)
        verified = report is not None and report.passed and report.image.id == image.id
        own = [tag for tag in image.tags if tag.startswith(f"{REPOSITORY}:")]
        names = own or list(image.tags) or list(image.repo_digests) or [UNNAMED]
        try:
            made = _made_by_tfbuild(image.labels, engine.history(image.id))
        except UnknownImage:  # somebody removed it just now
            continue
        found += [
            replace(
                _entry(published, HERE, name, verified=verified, size=image.size, host=host, features=features),
                ours=made and _name_given(name, published),
            )
            for name in names
        ]
    return sorted(
        found, key=lambda entry: (entry.name == UNNAMED, entry.name, choose.moment(entry.created) or choose.NEVER)
    )


def _made_by_tfbuild(given: Mapping[str, str], history: Sequence[str]) -> bool:
    """Whether the last step that made an image is the one that gave it the labels which it has now."""
    last = history[0] if history else ""
    own = labels.read_labels(given).own
    told = labels.prefixed({name: own[name] for name in REPEATED if name in own})
    whole = len(told) == len(REPEATED) and last.startswith("LABEL ")
    return whole and all(f" {name}={value} " in f"{last} " for name, value in told.items())


def _name_given(name: str, image: Published) -> bool:
    """Whether a name is one of tfbuild's: an identifier, with or without an end, a moving tag, a digest, or none."""
    if name == UNNAMED or "@" in name:
        return True
    return split(name)[1] in (image.id, *(f"{image.id}{end}" for end in UNPROVEN), *indexes.indexes(image))


def remote(
    registry: Registry, host: Cpu | None, features: frozenset[str], note: indexes.Note = indexes.quietly
) -> list[Entry]:
    """The images behind a repository's fixed tags, by name; `note` is told what is damaged there."""
    place = str(registry.repository)
    pairs = indexes.images(registry, registry.tags(), note)
    offered = indexes.offered(registry, [image for image, _ in pairs])
    return [
        replace(
            _entry(
                image, place, f"{place}:{image.id}", verified=None, size=manifest.size, host=host, features=features
            ),
            offered=image in offered,
        )
        for image, manifest in pairs
    ]


def _entry(
    image: Published,
    place: str,
    name: str,
    *,
    verified: bool | None,
    size: int,
    host: Cpu | None,
    features: frozenset[str],
) -> Entry:
    foreign = host is None or MACHINES[host.arch] != image.platform
    return Entry(
        place=place,
        name=name,
        id=image.id,
        digest=image.digest,
        instruction_set=image.instruction_set,
        platform=image.platform,
        size=size,
        created=image.created,
        verified=verified,
        lacks=(f"a {image.platform} CPU",) if foreign else tuple(sorted(image.features - features)),
    )


def prunable(entries: Iterable[Entry], keep: Sequence[str]) -> list[Entry]:
    """What may go of tfbuild's own: images without a name, failed and unverified ones.

    With `keep`, all whose identifier (or tag) none of its globs fits. One that was pulled by its digest stays without,
    until what was pulled later has the name that it had.
    """
    here = [entry for entry in entries if entry.place == HERE and entry.ours]
    names = {entry.name for entry in here}
    return [entry for entry in here if not _kept(entry, keep, names)]


def _kept(entry: Entry, keep: Sequence[str], names: Set[str]) -> bool:
    repository, at, _ = entry.name.partition("@")
    tag = entry.id if at else split(entry.name)[1]
    if keep:
        return any(fnmatchcase(name, glob) for name in (entry.id, tag) for glob in keep)
    if at:
        return f"{repository}:{entry.id}" not in names
    return entry.name != UNNAMED and not tag.endswith(UNPROVEN)


def remove(engine: Engine, entries: Iterable[Entry]) -> dict[Entry, str]:
    """Takes these names away; those that the engine keeps (a container may run one), each with its reason."""
    kept = {}
    for entry in entries:
        try:
            engine.untag(entry.name if entry.name != UNNAMED else entry.digest)
        except EngineMissing:
            raise
        except TfbuildError as error:
            kept[entry] = error.reason
    return kept


def age(created: str, now: datetime | None = None) -> str:
    """ "3 h", "12 d": since an RFC 3339 time; "?" where it is none."""
    then = choose.moment(created)
    if then is None:
        return "?"
    hours = ((now or datetime.now(UTC)) - then).total_seconds() / 3600
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
