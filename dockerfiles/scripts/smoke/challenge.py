"""A question that only the host knows beforehand: random numbers and sizes, on which a probe has to compute.

Both sides draw the same numbers from a seed. The host computes its own answers, in tfbuild/verify/reference.py.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import List, Optional, Tuple

HALF = 1 << 15
# The note of an answer that a build cannot give.
ABSENT = "not in this build"


@dataclass(frozen=True)
class Challenge:
    """`sizes`: of the operation, in the order that its probe documents; `positions`: in its flattened result."""

    seed: int
    sizes: Tuple[int, ...]
    positions: Tuple[int, ...] = ()


def numbers(seed: int, count: int) -> List[float]:
    """Return numbers from -1 to 1 that float32 represents exactly; the same on every Python."""
    draw = random.Random(seed).getrandbits
    return [draw(16) / HALF - 1 for _ in range(count)]


def eight_bits(number: float) -> int:
    """Return the 8-bit number that stands for one from -1 to 1."""
    return int((number + 1) * 127)


def read_challenge(line: str) -> Optional[Challenge]:
    """Return the challenge in a line of JSON; None for an empty line: nobody asks."""
    if not line.strip():
        return None
    asked = json.loads(line)
    return Challenge(asked["seed"], tuple(asked["sizes"]), tuple(asked["positions"]))
