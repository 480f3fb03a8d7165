"""One set of images for a fleet: a file from which hosts choose, whatever the registry's indexes say later.

`pull --lock` writes it, if it does not exist, with the images of one release: the best of each platform and CPU set,
each by its digest and checked as before a download. Later pulls take these images, or fail.
"""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tfbuild.context import labels
from tfbuild.cpu import Cpu, isa
from tfbuild.errors import RegistryRefused, UsageError, VerificationFailed
from tfbuild.oci import referrers
from tfbuild.oci.client import Registry
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes, pulling
from tfbuild.publish.choose import Choice, Published
from tfbuild.publish.pulling import Accepted
from tfbuild.util.files import decode, read_regular, replace_file, writing

SCHEMA = 1
MOST_BYTES = 4 << 20
ANOTHER = "--lock names a file in a folder that exists and is writable"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """`index`: the tag of the index that named the images, and its digest: any-mkl@sha256:..."""

    path: Path
    registry: str
    index: str
    images: tuple[Published, ...]

    @property
    def release(self) -> str:
        return self.images[0].release

    @property
    def target(self) -> str:
        return self.images[0].target

    def to_json(self) -> dict[str, Any]:
        own = {"schema": SCHEMA, "registry": self.registry, "index": self.index}
        rows = [{"digest": image.digest, **image.labels, "created": image.created} for image in self.images]
        return {**own, "release": self.release, "target": self.target, "images": rows}


def read_lock(path: Path, *, to_write: bool = False) -> Lock | None:
    """Return the lock in a file; None if there is no such file. Raises UsageError if it is something else.

    With `to_write`, raises UsageError or DiskFull if there is none, and none can be written.
    """
    hint = "remove it, and `invoke pull --lock` writes it again"
    try:
        document = decode(read_regular(path, MOST_BYTES), dict[str, Any])
        rows = [
            indexes.of_labels(labels.prefixed(row), row["created"], row["digest"])
            for row in document["images"]
            if isinstance(row, dict)
        ]
        images = tuple(row for row in rows if row is not None)
        lock = Lock(path=path, registry=str(document["registry"]), index=str(document["index"]), images=images)
    except FileNotFoundError:
        if to_write:
            _refuse_unwritable(path.parent)
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=ANOTHER) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a lock of tfbuild", hint=hint) from error
    if not images or lock.to_json() != document:
        raise UsageError(f"{path} is not as tfbuild writes it, or another version of tfbuild wrote it", hint=hint)
    return lock


def _refuse_unwritable(folder: Path) -> None:
    # Imported here, because most commands need no temporary file.
    import tempfile

    with writing(folder, ANOTHER), tempfile.TemporaryFile(dir=folder):
        pass


def write_lock(
    path: Path,
    registry: Registry,
    choice: Choice,
    note: indexes.Note = indexes.quietly,
    demand: referrers.Demand | None = None,
) -> Lock:
    """Return the lock of the release that was chosen among, and write it to a new file.

    Raises what `pulling.accept` does if the image of a set is missing or altered. Sets without a signed image are left
    out, and reported to `note`.
    """
    ranked = sorted(choice.newest, key=lambda image: (_set_of(image), choose.rank(image)), reverse=True)
    locked: list[Published] = []
    for _, images in groupby(ranked, key=_set_of):
        candidates = choice.among(list(images))
        try:
            accepted = pulling.accept(registry, candidates, note, demand)
        except pulling.Altered:
            raise
        except VerificationFailed as error:
            note(f"not locked: {error.reason}")
        else:
            locked.append(accepted.image)
            for line in choose.passed_over_lines(accepted.passed_over):
                note(line)
    if not locked:
        raise pulling.nothing_fits(registry, choice)
    lock = Lock(path=path, registry=str(registry.repository), index=choice.index, images=tuple(locked))
    with writing(path.parent):
        replace_file(path, f"{json.dumps(lock.to_json(), indent=2)}\n".encode())
    return lock


def _set_of(image: Published) -> tuple[str, list[str]]:
    return image.platform, sorted(image.features)


def select(lock: Lock, host: Cpu) -> Choice:
    """Return which of the locked images a host should run."""
    features = frozenset(isa.all_of_cpu(host).features)
    return choose.choose(lock.images, platform=MACHINES[host.arch], features=features)


def accept(
    registry: Registry,
    lock: Lock | None,
    choice: Choice,
    note: indexes.Note = indexes.quietly,
    demand: referrers.Demand | None = None,
) -> Accepted:
    """Check the best image as `pulling.accept` does; with a lock, take no other one in its place."""
    if lock is None:
        return pulling.accept(registry, choice, note, demand)
    only = choice.among(choice.fitting[:1])
    try:
        return pulling.accept(registry, only, note, demand)
    except RegistryRefused as error:
        raise RegistryRefused(
            error.reason, hint=f"{error.hint}; or remove {lock.path}, and lock what is published now"
        ) from error


def refuse_other(lock: Lock, identifier: str, digests: frozenset[str]) -> None:
    """Raise VerificationFailed unless the lock has this image, which is known by `digests`."""
    own = next((image for image in lock.images if image.id == identifier), None)
    if own is None:
        raise VerificationFailed(
            f"{lock.path} does not lock {identifier}",
            hint=f"it locks {choose.few([image.id for image in lock.images])}: invoke pull --lock {lock.path}",
        )
    if own.digest not in digests:
        raise VerificationFailed(
            f"{identifier} is not the image that {lock.path} locks ({own.digest})",
            hint=f"invoke pull --lock {lock.path}",
        )
