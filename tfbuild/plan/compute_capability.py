"""CUDA compute capabilities: which GPUs the kernels of a build run on.

They are spelled as TensorFlow's configure.py explains them (v2.14.0): "x.y" or "compute_xy" means virtual and binary
GPU code, "sm_xy" binary code only. Binary code runs on GPUs of the same major version and at least its minor one; the
driver compiles virtual code for every GPU that is not older (CUDA C++ Programming Guide, "Compute Capability").
"""

import re
from dataclasses import dataclass

from tfbuild.errors import UsageError

SPELLED = re.compile(r"(?P<kind>sm_|compute_)?(?P<major>\d{1,2}?)(?(kind)|\.)(?P<minor>\d)", re.ASCII)
# "TensorFlow only supports compute capabilities >= 3.5" (configure.py, v2.2.0 to v2.20.0).
OLDEST = (3, 5)


@dataclass(frozen=True, kw_only=True)
class Capability:
    """`name`: as requested; `code`: for configure.py; `number`: 86 for 8.6; `virtual`: later GPUs run it too."""

    name: str
    code: str
    major: int
    number: int
    virtual: bool

    @property
    def figure(self) -> str:
        """The spelling of NVIDIA: "8.6"."""
        return f"{self.major}.{self.number % 10}"


def parse(text: str, *, named: bool = True) -> tuple[Capability, ...]:
    """Read the comma-separated list `text`. `named`: whether the release knows "sm_80" and "compute_80".

    Raises UsageError for a word that is no capability, or that the release cannot read.
    """
    return tuple(_capability(word.strip(), named) for word in text.split(","))


def _capability(word: str, named: bool) -> Capability:
    match = SPELLED.fullmatch(word)
    if match is None:
        raise UsageError(f"{word!r} is not a CUDA compute capability", hint="--compute-capabilities 8.0,9.0")
    major, minor = int(match["major"]), int(match["minor"])
    if (major, minor) < OLDEST:
        raise UsageError(f"TensorFlow supports compute capabilities from 3.5, not {major}.{minor}", hint="leave it out")
    if match["kind"] and not named:
        raise UsageError(f"this release reads {major}.{minor}, not {word}", hint=f"write {major}.{minor}")
    number = 10 * major + minor
    # From 2.5 on, if all are spelled "x.y", only the greatest is compiled as virtual code, and "12.0" counts as less
    # than "8.9" (cuda_configure.bzl, v2.14.0; master, 2025-04).
    code = f"compute_{number}" if named and not match["kind"] else word
    return Capability(name=word, code=code, major=major, number=number, virtual=match["kind"] != "sm_")
