"""The option --lock of the verbs that have it."""

from pathlib import Path
from typing import TYPE_CHECKING

from tfbuild.cli.output import say
from tfbuild.errors import UsageError
from tfbuild.util.quantities import counted

if TYPE_CHECKING:
    from tfbuild.oci.client import Registry
    from tfbuild.oci.referrers import Demand
    from tfbuild.publish.choose import Choice
    from tfbuild.publish.lock import Lock


def read(path: str) -> "Lock | None":
    """Return the lock in a file; None without a path. Raises UsageError if there is no such file."""
    if not path:
        return None
    from tfbuild.publish import lock as locks

    locked = locks.read(Path(path))
    if locked is None:
        raise UsageError(f"there is no {path}", hint=f"invoke pull --lock {path} writes it")
    return locked


def write(lock: str, source: "Registry", choice: "Choice", demand: "Demand | None") -> "Lock | None":
    """Lock the images of the release that was chosen among in a new file; nothing without a file's name."""
    from tfbuild.publish import lock as locks

    if not lock:
        return None
    locked = locks.make(Path(lock), source, choice, say, demand)
    say(f"wrote {lock}: TensorFlow {locked.release} in {counted(len(locked.images), 'image')}")
    return locked


def refuse_contradiction(lock: str, locked: "Lock | None", *, target: str, any_release: bool, **others: object) -> None:
    """Raise UsageError for options that contradict a lock."""
    given = [f"--{name}" for name, value in others.items() if value]
    if lock and any_release:
        raise UsageError("--lock locks the images of one release", hint="leave out --any-release")
    if locked and given:
        raise UsageError(f"{lock} has decided what to pull", hint=f"leave out {' and '.join(given)}, or remove {lock}")
    if locked and locked.target != target:
        raise UsageError(f"{lock} locks images for {locked.target}", hint=f"--target {locked.target}, or remove {lock}")
