"""Whether the rows of the facts fit together: no type tells that, so a test asks it of every table."""

import re
from collections.abc import Sequence
from itertools import pairwise

from tfbuild.facts.release_table import RangeRow, ReleaseTable, version
from tfbuild.facts.targets import TargetTable

# Tables with a row for every release.
COMPLETE_TABLES = ("python", "bazel", "compiler", "known_compiler", "wheel_target", "cuda")


def check_releases(releases: ReleaseTable) -> None:
    """Raise ValueError, with the row, if rows overlap, leave a release out, or cannot hold for any."""
    versions = [row.version for row in releases.release]
    numbers = [version(text) for text in versions]
    if numbers != sorted(set(numbers)):
        raise ValueError("[[release]]: not in ascending order, or twice the same")
    if numbers[-1] >= version(releases.known_until):
        raise ValueError(
            f"[[release]] {versions[-1]}: known_until is {releases.known_until}, and rows without `before` end there"
        )
    for name in ReleaseTable.__struct_fields__:
        rows = getattr(releases, name)
        if name != "known_until":
            check_ranges(f"[[{name}]]", [row for row in rows if isinstance(row, RangeRow)])
        for release in versions if name in COMPLETE_TABLES else ():
            if not any(row.covers(release) for row in rows):
                raise ValueError(f"[[{name}]]: no row holds for {release}")


def check_ranges(label: str, rows: Sequence[RangeRow]) -> None:
    """Raise ValueError, beginning with `label`, if a range is empty, or if two of one key overlap."""
    for row in rows:
        if row.before and version(row.since or "0") >= version(row.before):
            name = f"{label} {row.key}".strip()
            raise ValueError(f"{name}: the range from {row.since} before {row.before} is empty")
    for earlier, later in pairwise(sorted(rows, key=lambda row: (row.key, version(row.since or "0")))):
        if earlier.key == later.key and (not earlier.before or version(later.since or "0") < version(earlier.before)):
            name = f"{label} {later.key}".strip()
            one, other = (f"from {row.since}" if row.since else "without `from`" for row in (later, earlier))
            end = f" before {earlier.before}" if earlier.before else ", which has no end"
            raise ValueError(f"{name}: the row {one} overlaps the one {other}{end}")


def check_targets(rows: TargetTable) -> None:
    """Raise ValueError if rows contradict each other or name an unknown target."""
    known = [row.name for row in rows.target]
    if len(set(known)) != len(known):
        raise ValueError("two rows have the same name")
    if sum(row.default for row in rows.target) != 1:
        raise ValueError("exactly one target is the default")
    excluded = [name for exclusion in rows.exclusion for name in exclusion.targets]
    if unknown := sorted({*excluded} - set(known)):
        raise ValueError(f"there is no target {unknown[0]!r}")
    for row in rows.target:
        try:
            re.compile(row.asked_by)
        except re.error as error:
            raise ValueError(f"{row.name}: asked_by is not a regular expression: {error}") from error
