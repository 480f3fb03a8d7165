"""The newest release by the facts, for tests that mean it and not a certain one, and names of its images."""

from tfbuild import plan
from tfbuild.facts import releases
from tfbuild.plan import Request

RELEASE = releases.newest_first()[0]
# What its official wheel for x86-64 is compiled for, as identifiers have it.
ISA = plan.select(Request(wheel="official", release=RELEASE, platform="linux/amd64"), None).instruction_set.name


def official(target: str = "mkl", python: str = "3.11") -> str:
    """The identifier of an image of its official wheel for x86-64."""
    return f"{RELEASE}-{target}-py{python}-{ISA}"
