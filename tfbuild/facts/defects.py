"""Wrong results that a TensorFlow release is known to give, whatever the image: facts/defects.toml."""

from tfbuild import facts
from tfbuild.facts import Facts
from tfbuild.facts.release_table import base, version


class Defect(Facts, frozen=True):
    """A `part` of the numerics check that is wrong from `since` on, and right again in `until`."""

    part: str
    since: str
    until: str
    issue: str
    reason: str


class DefectTable(Facts, frozen=True):
    defect: tuple[Defect, ...]


def known(release: str) -> tuple[str, ...]:
    """Return the parts of the numerics check that a release is known to get wrong."""
    rows: tuple[Defect, ...] = facts.load("defects", DefectTable).defect
    return tuple(row.part for row in rows if version(row.since) <= base(release) < version(row.until))
