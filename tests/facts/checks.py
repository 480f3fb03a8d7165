"""Whether the rows of the facts fit together: no type tells that, so a test asks it of every table."""

from collections.abc import Sequence
from itertools import pairwise

from tfbuild.facts.release_table import RangeRow, ReleaseTable, version

# Tables with a row for every release.
COMPLETE_TABLES = ("python", "bazel", "known_compiler", "wheel_target", "cuda")


def check_releases(releases: ReleaseTable) -> None:
    """No rows overlap, leave a release out, or can hold for none."""
    versions = [row.version for row in releases.release]
    numbers = [version(text) for text in versions]
    assert numbers == sorted(set(numbers)), "not in ascending order, or twice the same"
    assert numbers[-1] < version(releases.known_until), "rows without `before` end there"
    for name in ReleaseTable.__struct_fields__:
        rows = getattr(releases, name)
        if name != "known_until":
            check_ranges(name, [row for row in rows if isinstance(row, RangeRow)])
        for release in versions if name in COMPLETE_TABLES else ():
            assert any(row.covers(release) for row in rows), (name, release)


def check_ranges(label: str, rows: Sequence[RangeRow]) -> None:
    """No range is empty, and no two of one key overlap."""
    for row in rows:
        assert not row.before or version(row.since or "0") < version(row.before), (label, row)
    for earlier, later in pairwise(sorted(rows, key=lambda row: (row.key, version(row.since or "0")))):
        apart = bool(earlier.before) and version(earlier.before) <= version(later.since or "0")
        assert earlier.key != later.key or apart, (label, earlier, later)
