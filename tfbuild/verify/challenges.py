"""Choose a challenge for each run of a probe, and judge the answers by the host's own results.

An image that only replays what a real one printed cannot know the seed, the sizes or the positions.
"""

import random
import secrets
from collections.abc import Callable, Mapping, Sequence

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.challenge import ABSENT, Challenge
from tfbuild.in_container.smoke.records import OperationAnswer
from tfbuild.verify import reference

# Largest errors relative to the largest result; of `exp`, to each result.
LIMITS = {
    "product": 1e-5,
    "convolution": 1e-5,
    "scale": 1e-6,
    "exp": 2e-6,
    "softmax": 1e-5,
    "average": 1e-6,
    "maximum": 0.0,
    "gradient": 1e-5,
    "quantized": 0.0,
    "compiled": 1e-4,
}
# Builds may lack these operations, and say so.
OPTIONAL = ("quantized", "compiled")
EACH = ("exp",)
POSITIONS = 48
# Elements of the tensor in the probe "faults".
TENSOR = 40 * 2**20 // 4
# oneDNN has its best code for channels in multiples of its vectors, and TensorFlow leaves small convolutions to Eigen.
CHANNELS = (32, 48, 64)


def _matrices(rng: random.Random) -> tuple[tuple[int, ...], int]:
    return tuple(rng.randint(5, 24) for _ in range(3)), 0


def _scale(rng: random.Random) -> tuple[tuple[int, ...], int]:
    return (rng.randint(65, 1000),), TENSOR


def _convolution(rng: random.Random) -> tuple[tuple[int, ...], int]:
    height, width, outputs = rng.randint(16, 24), rng.randint(16, 24), rng.choice(CHANNELS)
    return (4, height, width, rng.choice(CHANNELS), outputs), 4 * height * width * outputs


def _matrix(rng: random.Random) -> tuple[tuple[int, ...], int]:
    return (rng.randint(8, 24), rng.randint(8, 24)), 0


# Each chooses sizes, and how many positions the result has; 0: all of it is the answer.
SIZES: Mapping[str, Callable[[random.Random], tuple[tuple[int, ...], int]]] = {
    "start": _matrices,
    "bytecode": lambda _: ((), 0),
    "faults": _scale,
    "onednn": _convolution,
    "cuda": _convolution,
    "numerics": _matrix,
}


def draw(probe: str) -> Challenge:
    """Choose a challenge that nobody can foresee."""
    rng = random.Random(secrets.randbits(128))
    sizes, length = SIZES[probe](rng)
    positions = sorted(rng.sample(range(length), POSITIONS)) if length else []
    return Challenge(seed=rng.getrandbits(48), sizes=sizes, positions=tuple(positions))


def names(probe: str) -> tuple[str, ...]:
    """Return the names of a probe's answers, in order."""
    return tuple(reference.OPERATIONS[probe])


def wrong(
    probe: str, challenge: Challenge, answers: Sequence[OperationAnswer], limits: Mapping[str, float] = LIMITS
) -> str:
    """Return what is wrong with the answers; else ""."""
    operations = reference.OPERATIONS[probe]
    if [answer.name for answer in answers] != [*operations]:
        return "it did not answer this run's challenge"
    for answer, operation in zip(answers, operations.values(), strict=True):
        values = operation(challenge)
        if answer.name in OPTIONAL and not answer.values and answer.note == ABSENT:
            continue
        if len(answer.values) != len(values):
            why = answer.note or f"{len(answer.values)} numbers in place of {len(values)}"
            return f"its answer to this run's challenge is wrong: {answer.name}: {why}"
        error = _error(answer.values, values, each=answer.name in EACH)
        if not error <= limits[answer.name]:
            limit = limits[answer.name]
            return f"its answer to this run's challenge is wrong: {answer.name} is off by {error:.2g} (limit {limit:g})"
    return ""


def _error(found: Sequence[float], right: Sequence[float], *, each: bool) -> float:
    differences = [abs(a - b) for a, b in zip(found, right, strict=True)]
    if each:
        return max(difference / abs(value) for difference, value in zip(differences, right, strict=True))
    return max(differences) / (max(map(abs, right)) or 1.0)


def traced(output: str, challenge: Challenge) -> bool:
    """Whether oneDNN printed that it ran a convolution of exactly the challenge's sizes."""
    count, height, width, inputs, outputs = challenge.sizes
    parts = (f"mb{count}_", f"ic{inputs}oc{outputs}_", f"ih{height}oh{height}kh3", f"iw{width}ow{width}kw3")
    return any(
        all(part in line for part in parts) and judge.executed(line.split(","))[0] == "convolution"
        for line in judge.VERBOSE.findall(output)
    )
