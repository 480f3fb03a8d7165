"""The right answers to challenges, in float64 and plain Python: this host's own computation, without NumPy."""

import math
from collections.abc import Callable, Mapping, Sequence

from tfbuild.in_container.smoke.challenge import Challenge, eight_bits, numbers

Rows = list[list[float]]
KERNEL = 3
# The kernel's divisor, in probes.convolution_inputs; the unit of a scale, in probes.faults.
DIVISOR = 16.0
UNIT = 64.0


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


def _rows(values: Sequence[float], width: int) -> Rows:
    return [list(values[start : start + width]) for start in range(0, len(values), width)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


# By probe and operation, in the order in which the probe sends its answers.
OPERATIONS: Mapping[str, Mapping[str, Callable[[Challenge], list[float]]]] = {
    "start": {"product": product},
    "bytecode": {},
    "faults": {"scale": scale},
    "onednn": {"convolution": convolution},
    "cuda": {"convolution": convolution},
    "numerics": {
        "product": _square,
        "exp": lambda challenge: [math.exp(4 * value) for value in _flat(challenge)],
        "softmax": _softmax,
        "average": lambda challenge: [sum(window) / 4 for window in _windows(challenge)],
        "maximum": lambda challenge: [max(window) for window in _windows(challenge)],
        "gradient": _gradient,
        "quantized": _quantized,
        "compiled": lambda challenge: [
            math.fsum(math.tanh(value) * math.exp(-value * value) for value in row) for row in _matrix(challenge)
        ],
    },
}
