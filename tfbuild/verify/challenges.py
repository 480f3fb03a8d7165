"""Choose a challenge for each run of a probe, and judge the answers by the host's own results.

An image that only replays what a real one printed cannot know the seed, the sizes or the positions. The right answers
are computed here in float64 and plain Python, without NumPy.
"""

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import ABSENT, Challenge, OperationAnswer, eight_bits, numbers

Rows = list[list[float]]
KERNEL = 3
# The kernel's divisor, in probes.convolution_inputs; the unit of a scale, in probes.faults.
DIVISOR = 16.0
UNIT = 64.0
POSITIONS = 48
# Elements of the tensor in the probe "faults".
TENSOR = 40 * 2**20 // 4
# oneDNN has its best code for channels in multiples of its vectors, and TensorFlow leaves small convolutions to Eigen.
CHANNELS = (32, 48, 64)


def _convolution(rng: random.Random) -> tuple[tuple[int, ...], int]:
    height, width, outputs = rng.randint(16, 24), rng.randint(16, 24), rng.choice(CHANNELS)
    return (4, height, width, rng.choice(CHANNELS), outputs), 4 * height * width * outputs


# Each chooses sizes, and how many positions the result has; 0: all of it is the answer.
SIZES: Mapping[str, Callable[[random.Random], tuple[tuple[int, ...], int]]] = {
    "start": lambda rng: (tuple(rng.randint(5, 24) for _ in range(3)), 0),
    "bytecode": lambda _: ((), 0),
    "faults": lambda rng: ((rng.randint(65, 1000),), TENSOR),
    "onednn": _convolution,
    "cuda": _convolution,
    "numerics": lambda rng: ((rng.randint(8, 24), rng.randint(8, 24)), 0),
}


def draw(probe: str) -> Challenge:
    """Choose a challenge that an image cannot foresee."""
    rng = random.Random(secrets.randbits(128))
    sizes, length = SIZES[probe](rng)
    positions = sorted(rng.sample(range(length), POSITIONS)) if length else []
    return Challenge(seed=rng.getrandbits(48), sizes=sizes, positions=tuple(positions))


@dataclass(frozen=True)
class Operation:
    """What a probe computes: its right `result`, and the largest error relative to the largest number in it.

    `each`: relative to each number; `optional`: a build may lack it, and say so.
    """

    result: Callable[[Challenge], list[float]]
    limit: float
    each: bool = False
    optional: bool = False


def error_in(probe: str, challenge: Challenge, answers: Sequence[OperationAnswer]) -> str:
    """Return what is wrong with the answers; else ""."""
    operations = OPERATIONS[probe]
    if [answer.name for answer in answers] != [*operations]:
        return "it did not answer this run's challenge"
    for answer, operation in zip(answers, operations.values(), strict=True):
        if is_absent(probe, answer):
            continue
        values = operation.result(challenge)
        if len(answer.values) != len(values):
            why = answer.note or f"{len(answer.values)} numbers in place of {len(values)}"
            return f"its answer to this run's challenge is wrong: {answer.name}: {why}"
        error, limit = _error(answer.values, values, each=operation.each), operation.limit
        if not error <= limit:
            return f"its answer to this run's challenge is wrong: {answer.name} is off by {error:.2g} (limit {limit:g})"
    return ""


def is_absent(probe: str, answer: OperationAnswer) -> bool:
    """Whether the build has no such operation, and may lack it."""
    operation = OPERATIONS[probe].get(answer.name)
    return operation is not None and operation.optional and not answer.values and answer.note == ABSENT


def _error(found: Sequence[float], right: Sequence[float], *, each: bool) -> float:
    differences = [abs(a - b) for a, b in zip(found, right, strict=True)]
    if each:
        return max(difference / abs(value) for difference, value in zip(differences, right, strict=True))
    return max(differences) / (max(map(abs, right)) or 1.0)


def is_traced(output: str, challenge: Challenge) -> bool:
    """Whether oneDNN printed that it ran a convolution of exactly the challenge's sizes."""
    count, height, width, inputs, outputs = challenge.sizes
    parts = (f"mb{count}_", f"ic{inputs}oc{outputs}_", f"ih{height}oh{height}kh3", f"iw{width}ow{width}kw3")
    return any(
        all(part in line for part in parts) and judge.executed(line.split(","))[0] == "convolution"
        for line in judge.VERBOSE.findall(output)
    )


# --- the right answers ------------------------------------------------------------------------------------------------


def product(challenge: Challenge) -> list[float]:
    """Return the product of two matrices of [rows, inner] and [inner, columns]."""
    rows, inner, columns = challenge.sizes
    drawn = numbers(challenge.seed, rows * inner + inner * columns)
    left, right = _rows(drawn[: rows * inner], inner), _rows(drawn[rows * inner :], columns)
    return [_dot(row, column) for row in left for column in zip(*right, strict=True)]


def scale(challenge: Challenge) -> list[float]:
    """Return multiples of the positions."""
    return [position * challenge.sizes[0] / UNIT for position in challenge.positions]


def convolution(challenge: Challenge) -> list[float]:
    """Return what a convolution of 3 by 3 with zeros around it, and nothing below 0, has at the positions."""
    count, height, width, inputs, outputs = challenge.sizes
    size = count * height * width * inputs
    drawn = numbers(challenge.seed, size + KERNEL * KERNEL * inputs * outputs)

    def at(position: int) -> float:
        rest, channel = divmod(position, outputs)
        rest, column = divmod(rest, width)
        image, row = divmod(rest, height)
        total = 0.0
        for i, j in ((i, j) for i in range(KERNEL) for j in range(KERNEL)):
            y, x = row + i - 1, column + j - 1
            if 0 <= y < height and 0 <= x < width:
                pixel = ((image * height + y) * width + x) * inputs
                weight = size + (i * KERNEL + j) * inputs * outputs + channel
                total += _dot(drawn[pixel : pixel + inputs], drawn[weight : weight + inputs * outputs : outputs])
        return max(0.0, total / DIVISOR)

    return [at(position) for position in challenge.positions]


# --- the operations of smoke/numerics.py on a matrix of [rows, columns] -----------------------------------------------


def _matrix(challenge: Challenge) -> Rows:
    height, width = challenge.sizes
    return _rows(numbers(challenge.seed, height * width), width)


def _flat(challenge: Challenge) -> list[float]:
    return [value for row in _matrix(challenge) for value in row]


def _windows(challenge: Challenge) -> list[tuple[float, ...]]:
    """Return the windows of 2 by 2, without a last odd row or column."""
    x = _matrix(challenge)
    rows, columns = range(0, len(x) - 1, 2), range(0, len(x[0]) - 1, 2)
    return [(x[i][j], x[i][j + 1], x[i + 1][j], x[i + 1][j + 1]) for i in rows for j in columns]


def _square(challenge: Challenge) -> list[float]:
    x = _matrix(challenge)
    return [_dot(left, right) for left in x for right in x]


def _softmax(challenge: Challenge) -> list[float]:
    powers = [[math.exp(value) for value in row] for row in _matrix(challenge)]
    return [power / sum(row) for row in powers for power in row]


def _gradient(challenge: Challenge) -> list[float]:
    """Return the derivative of x tanh(x)."""
    return [math.tanh(value) + value * (1 - math.tanh(value) ** 2) for value in _flat(challenge)]


def _quantized(challenge: Challenge) -> list[float]:
    x = [[eight_bits(value) for value in row] for row in _matrix(challenge)]
    return [_dot(left, right) for left in x for right in x]


def _exp(challenge: Challenge) -> list[float]:
    return [math.exp(4 * value) for value in _flat(challenge)]


def _compiled(challenge: Challenge) -> list[float]:
    return [math.fsum(math.tanh(value) * math.exp(-value * value) for value in row) for row in _matrix(challenge)]


def _rows(values: Sequence[float], width: int) -> Rows:
    return [list(values[start : start + width]) for start in range(0, len(values), width)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


# By probe and operation, in the order in which the probe sends its answers.
OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "start": {"product": Operation(product, 1e-5)},
    "bytecode": {},
    "faults": {"scale": Operation(scale, 1e-6)},
    "onednn": {"convolution": Operation(convolution, 1e-5)},
    "cuda": {"convolution": Operation(convolution, judge.MOST_GPU_ERROR)},
    "numerics": {
        "product": Operation(_square, 1e-5),
        "exp": Operation(_exp, 2e-6, each=True),
        "softmax": Operation(_softmax, 1e-5),
        "average": Operation(lambda challenge: [sum(window) / 4 for window in _windows(challenge)], 1e-6),
        "maximum": Operation(lambda challenge: [max(window) for window in _windows(challenge)], 0.0),
        "gradient": Operation(_gradient, 1e-5),
        "quantized": Operation(_quantized, 0.0, optional=True),
        "compiled": Operation(_compiled, 1e-4, optional=True),
    },
}
