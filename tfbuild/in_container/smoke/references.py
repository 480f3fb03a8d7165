"""The fixed inputs of the check `numerics`, and the right results in float64 and plain Python, without NumPy.

Both sides make the inputs from the parts' names; numerics.py computes the same with TensorFlow.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import mul
from statistics import fmean

# A pool's window and stride.
POOL = 2
HALF = 1 << 15
# The host takes larger numbers for forged ones.
MOST_VALUE = 1e12
# By part, the shapes of its inputs. Sizes that are no multiple of a vector's leave a rest.
SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "matmul": ((65, 257), (257, 33)),
    "convolution": ((1, 13, 17, 16), (3, 3, 16, 16)),
    "exp": ((4096,),),
    "softmax": ((16, 125),),
    "batch_norm": ((2, 9, 11, 8),),
    "gradient": ((1, 5, 5, 2), (3, 3, 2, 3)),
    "pool": ((2, 12, 12, 8),),
    "xla": ((16, 1024),),
    "training": ((512, 16), (16, 64), (64, 1)),
    "quantized": ((64, 96),),
}


def usable(number: float) -> bool:
    """Whether a number can be sent and judged: it is finite, and not absurdly large."""
    return abs(number) < MOST_VALUE


def inputs(name: str) -> list[list[float]]:
    """Return a part's inputs, each flat: numbers from -1 to 1 that float32 represents exactly."""
    draw = random.Random(name).getrandbits
    return [[draw(16) / HALF - 1 for _ in range(math.prod(shape))] for shape in SHAPES[name]]


def eight_bits(values: Iterable[float]) -> list[int]:
    """Return the 8-bit numbers that stand for numbers from -1 to 1."""
    return [int((value + 1) * 127) for value in values]


@dataclass(frozen=True)
class Part:
    """The right `results` of a part, and the largest error relative to the largest of them (`each`: to each).

    `optional`: a build may lack the operation.
    """

    results: Callable[[], list[float]]
    limit: float
    each: bool = False
    optional: bool = False

    def error(self, values: Sequence[float]) -> float:
        """Return the error of what was computed once, or twice in a row. Infinite if it has another length."""
        right = self.results()
        if len(values) not in (len(right), 2 * len(right)):
            return math.inf
        right *= len(values) // len(right)
        differences = [abs(a - b) for a, b in zip(values, right, strict=True)]
        if self.each:
            return max(difference / abs(value) for difference, value in zip(differences, right, strict=True))
        return max(differences) / (max(map(abs, right)) or 1.0)


def _rows(values: Sequence[float], width: int) -> list[list[float]]:
    return [list(values[start : start + width]) for start in range(0, len(values), width)]


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    return math.fsum(map(mul, left, right))


def _matmul() -> list[float]:
    left, right = inputs("matmul")
    columns = [*zip(*_rows(right, SHAPES["matmul"][1][1]), strict=True)]
    return [_dot(row, column) for row in _rows(left, SHAPES["matmul"][0][1]) for column in columns]


def _convolve(name: str) -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Yield each result of a convolution with zeros around the image, and the weights and pixels that it comes from."""
    (count, height, width, channels), (kernel, _, _, outputs) = SHAPES[name]
    image, weights = inputs(name)
    for n, y, x, output in product(range(count), range(height), range(width), range(outputs)):
        used = []
        for i, j in product(range(kernel), repeat=2):
            row, column = y + i - kernel // 2, x + j - kernel // 2
            if 0 <= row < height and 0 <= column < width:
                pixel = ((n * height + row) * width + column) * channels
                weight = (i * kernel + j) * channels * outputs + output
                used += [(weight + c * outputs, image[pixel + c]) for c in range(channels)]
        yield math.fsum(weights[index] * value for index, value in used), used


def _gradient() -> list[float]:
    """Return the derivative of the sum of a convolution's hyperbolic tangents by each weight."""
    slopes = [0.0] * math.prod(SHAPES["gradient"][1])
    for result, used in _convolve("gradient"):
        for index, value in used:
            slopes[index] += (1 - math.tanh(result) ** 2) * value
    return slopes


def exp_arguments() -> list[float]:
    """Return the arguments of the part `exp`: from -20 to 5, exact in float32."""
    return [12.5 * value - 7.5 for value in inputs("exp")[0]]


def _softmax() -> list[float]:
    powers = [[math.exp(value) for value in row] for row in _rows(inputs("softmax")[0], SHAPES["softmax"][0][1])]
    return [power / math.fsum(row) for row in powers for power in row]


def _batch_norm() -> list[float]:
    pixels = _rows(inputs("batch_norm")[0], SHAPES["batch_norm"][0][3])
    channels = [*zip(*pixels, strict=True)]
    means = [fmean(channel) for channel in channels]
    spreads = [fmean([(value - mean) ** 2 for value in row]) for row, mean in zip(channels, means, strict=True)]
    statistics = [*zip(means, spreads, strict=True)]
    return [
        (value - mean) / math.sqrt(spread + 1e-3)
        for row in pixels
        for value, (mean, spread) in zip(row, statistics, strict=True)
    ]


def _pool(combine: Callable[[list[float]], float]) -> Callable[[], list[float]]:
    def results() -> list[float]:
        count, height, width, channels = SHAPES["pool"][0]
        image, inside = inputs("pool")[0], [*product(range(POOL), repeat=2)]
        corners = product(range(count), range(0, height, POOL), range(0, width, POOL), range(channels))
        return [
            combine([image[((n * height + y + i) * width + x + j) * channels + channel] for i, j in inside])
            for n, y, x, channel in corners
        ]

    return results


def _xla() -> list[float]:
    rows = _rows(inputs("xla")[0], SHAPES["xla"][0][1])
    return [math.fsum(math.tanh(value) * math.exp(-value * value) for value in row) for row in rows]


def _quantized() -> list[float]:
    rows = _rows(eight_bits(inputs("quantized")[0]), SHAPES["quantized"][0][1])
    return [_dot(left, right) for left in rows for right in rows]


# In the order in which the probe sends them: where pools of 2.2 to 2.15 go wrong, it is after the other layout.
PARTS: Mapping[str, Part] = {
    "matmul": Part(_matmul, 1e-5),
    "convolution": Part(lambda: [result for result, _ in _convolve("convolution")], 1e-5),
    "exp": Part(lambda: [math.exp(value) for value in exp_arguments()], 2e-6, each=True),
    "softmax": Part(_softmax, 1e-5),
    "batch_norm": Part(_batch_norm, 1e-5),
    "gradient": Part(_gradient, 1e-6),
    "max_pool_nhwc": Part(_pool(max), 0.0),
    "avg_pool_nhwc": Part(_pool(fmean), 1e-6),
    "max_pool_nchw_after_nhwc": Part(_pool(max), 0.0, optional=True),
    "avg_pool_nchw_after_nhwc": Part(_pool(fmean), 1e-6, optional=True),
    "xla": Part(_xla, 1e-4, optional=True),
    # The last loss over the first one.
    "training": Part(lambda: [0.0], 0.6),
    "quantized": Part(_quantized, 0.0, optional=True),
}
