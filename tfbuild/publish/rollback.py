"""Whether an index is older than one that this host has seen: whoever may push can put a signed one back.

Each index has a number that only grows, and `push --sign` signs the index. `pull --signed` remembers the largest number
that it saw with an accepted signature. A host that has seen none cannot know.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tfbuild.errors import TfbuildError, VerificationFailed
from tfbuild.oci import referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import indexes
from tfbuild.util.files import read_regular, replace_file, writing

MOST_BYTES = 1 << 20


def seen_file(env: Mapping[str, str]) -> Path:
    """Return where a user's largest numbers are."""
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tfbuild" / "indexes.json"


def refuse_older(
    registry: Registry,
    tag: str,
    index: Manifest,
    demand: referrers.Demand,
    note: indexes.Note = indexes.quietly,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Raise VerificationFailed if an index is older than a signed one that was seen, or is not signed any more."""
    name, path = f"{registry.repository}:{tag}", seen_file(env)
    seen = _read(path)
    last, number = seen.get(name, 0), indexes.number_of(index)
    hint = f"do not use it, and tell whoever publishes it; to accept it, remove {path}"
    try:
        demand(f"{registry.repository}@{index.digest}")
    except VerificationFailed as error:
        if last:
            raise VerificationFailed(
                f"the index {name} has no accepted signature, but this host has seen one: {error.reason}", hint=hint
            ) from error
        note(f"note: the index {name} has no accepted signature: an older one cannot be told from it")
        return
    if number < last:
        raise VerificationFailed(
            f"the index {name} has the number {number}, and this host has seen {last}: somebody put an older one back",
            hint=hint,
        )
    if number > last:
        _write(path, {**seen, name: number}, note)


def _read(path: Path) -> dict[str, int]:
    try:
        rows = json.loads(read_regular(path, MOST_BYTES))
    except (OSError, ValueError):
        return {}
    known = rows.items() if isinstance(rows, dict) else ()
    return {name: number for name, number in known if isinstance(number, int)}


def _write(path: Path, seen: Mapping[str, int], note: indexes.Note) -> None:
    try:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(seen, indent=2, sort_keys=True))
    except TfbuildError as error:
        note(f"note: an older index will not be noticed: {error.reason}")
