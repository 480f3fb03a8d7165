"""Wrong results that a TensorFlow release is known to give (facts/defects.toml). The image is not to blame for them."""

from packaging.version import Version

from tfbuild import facts
from tfbuild.facts import Facts


class Defect(Facts, frozen=True):
    """`part` of the numerics check is wrong from `since` on, and right again in `until`."""

    part: str
    since: str
    until: str
    issue: str
    reason: str


class DefectTable(Facts, frozen=True):
    defect: tuple[Defect, ...]


def known(release: str) -> tuple[str, ...]:
    """Parts of the numerics check that a release is known to get wrong."""
    rows: tuple[Defect, ...] = facts.load("defects", DefectTable).defect
    return tuple(row.part for row in rows if Version(row.since) <= Version(release) < Version(row.until))
