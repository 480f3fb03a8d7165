"""What a TensorFlow release does as it runs: the features that its CPU guard knows, and results known to be wrong."""

from functools import cache

from tfbuild import facts
from tfbuild.facts import Facts
from tfbuild.facts.release_table import base, version


class Known(Facts, frozen=True):
    """One feature that the guard knows; see facts/guard.toml."""

    name: str
    enum: str
    number: int
    since: str
    certain: str = ""
    silent: bool = False


class KnownTable(Facts, frozen=True):
    feature: tuple[Known, ...]


def known(release: str) -> tuple[Known, ...]:
    """Return what the guard of a release knows, in the order of its message."""
    return tuple(row for row in _table() if version(row.since) <= base(release))


def judged(release: str) -> frozenset[str]:
    """Return the features for which the guard of a release can tell whether a build has them."""
    return frozenset(row.name for row in known(release) if version(row.certain or row.since) <= base(release))


def guard_features(release: str) -> frozenset[str]:
    """Return `judged` in canonical names."""
    return frozenset(row.name for row in facts.features("x86_64") if row.tensorflow in judged(release))


def spelling(release: str, features: frozenset[str] | set[str]) -> tuple[str, ...]:
    """Return canonical names as the message of a release spells and orders them, without those unknown to its guard."""
    names = {row.tensorflow for row in facts.features("x86_64") if row.name in features}
    return tuple(row.name for row in known(release) if row.name in names)


@cache
def _table() -> tuple[Known, ...]:
    rows: tuple[Known, ...] = facts.load("guard", KnownTable).feature
    return rows


# --- wrong results, whatever the image: facts/defects.toml ------------------------------------------------------------


class Defect(Facts, frozen=True):
    """A `part` of the numerics check that is wrong from `since` on, and right again in `until`."""

    part: str
    since: str
    until: str
    issue: str
    reason: str


class DefectTable(Facts, frozen=True):
    defect: tuple[Defect, ...]


def known_defects(release: str) -> tuple[str, ...]:
    """Return the parts of the numerics check that a release is known to get wrong."""
    rows: tuple[Defect, ...] = facts.load("defects", DefectTable).defect
    return tuple(row.part for row in rows if version(row.since) <= base(release) < version(row.until))
