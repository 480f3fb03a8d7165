"""Compare results on the CPU with float64 references. Wrong ones do occur: see the known defects of 2.2 to 2.15."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from .records import ABSENT as NOT_BUILT
from .records import Challenge, Part, eight_bits, numbers

STEPS = 200
# The errors of a build that lacks something (a layout, XLA).
ABSENT = (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError, ImportError)


def parts() -> Iterator[Part]:
    """Yield every part, to be judged by its limit in judge.py. An exception in one is a result without a number."""
    random = np.random.default_rng(0)
    with tf.device("/CPU:0"):
        for name, compute in CHECKS:
            error, note = measured(compute, random)
            yield Part(name=name, error=error, note=note)


def measured(compute: Callable[[Any], float], random: Any) -> tuple[float | None, str]:
    try:
        error = float(compute(random))
    except ABSENT as reason:
        # In a graph, TensorFlow puts the location before the message.
        return None, "{}: {}".format(NOT_BUILT, str(reason).split("\n")[0].rpartition("}} ")[2][:200])
    return (error, "") if np.isfinite(error) else (None, "")


def relative(result: Any, reference: Any) -> float:
    return float(np.abs(np.asarray(result, np.float64) - reference).max() / np.abs(reference).max())


def normal(random: Any, *shape: int) -> Any:
    """Return a float64 array that float32 represents exactly, so that rounding the input adds no error."""
    return random.standard_normal(shape).astype(np.float32).astype(np.float64)


def single(array: Any) -> Any:
    return tf.constant(array, tf.float32)


def both(body: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Run `body` in eager mode, where this build can, and in a graph.

    Up to 2.4, oneDNN's operations exist only in graphs. Its cache of primitives belongs to a thread; eager mode runs
    everything in one thread, so an error with a cached primitive occurs each time.
    """
    try:
        eager = [body(*inputs)]
    except ABSENT:
        eager = []
    return [*eager, tf.function(body)(*inputs)]


def worst(errors: Iterable[float]) -> float:
    """Return the largest error, or NaN where one is NaN, which Python's max() would hide."""
    return float(np.max(list(errors)))


def matmul(random: Any) -> float:
    a, b = normal(random, 257, 383), normal(random, 383, 129)
    return relative(tf.function(tf.matmul)(single(a), single(b)), a @ b)


def convolution(random: Any) -> float:
    x, w = normal(random, 2, 17, 19, 8), normal(random, 3, 3, 8, 16)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    reference = sum(
        np.einsum("nhwc,co->nhwo", padded[:, i : i + 17, j : j + 19], w[i, j]) for i in range(3) for j in range(3)
    )
    convolve = tf.function(lambda image, kernel: tf.nn.conv2d(image, kernel, 1, "SAME"))
    return relative(convolve(single(x), single(w)), reference)


def exponential(_: Any) -> float:
    x = np.linspace(-20, 5, 100001).astype(np.float32)
    reference = np.exp(x.astype(np.float64))
    result = np.asarray(tf.exp(tf.constant(x)), np.float64)
    return float((np.abs(result - reference) / reference).max())


def softmax(random: Any) -> float:
    x = normal(random, 64, 1000)
    powers = np.exp(x - x.max(1, keepdims=True))
    reference = powers / powers.sum(1, keepdims=True)
    return worst(relative(result, reference) for result in both(tf.nn.softmax, single(x)))


def batch_norm(random: Any) -> float:
    x = normal(random, 4, 16, 16, 8)
    reference = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3)

    def normalise(image: Any) -> Any:
        return tf.raw_ops.FusedBatchNormV3(
            x=image, scale=tf.ones(8), offset=tf.zeros(8), mean=[], variance=[], epsilon=1e-3, is_training=True
        )[0]

    return worst(relative(result, reference) for result in both(normalise, single(x)))


def gradient(random: Any) -> float:
    """Compare the gradient of a float64 convolution with central differences, at every seventh weight."""
    x, w = tf.constant(normal(random, 1, 5, 5, 2)), normal(random, 3, 3, 2, 3)

    def loss(kernel: Any) -> Any:
        return tf.reduce_sum(tf.tanh(tf.nn.conv2d(x, kernel, 1, "SAME")))

    variable = tf.Variable(w)
    with tf.GradientTape() as tape:
        value = loss(variable)
    slopes = tape.gradient(value, variable).numpy().ravel()
    largest = 0.0
    for index in range(0, w.size, 7):
        moved = [w.ravel().copy() for _ in range(2)]
        moved[0][index] += 1e-5
        moved[1][index] -= 1e-5
        up, down = (float(loss(tf.constant(m.reshape(w.shape)))) for m in moved)
        largest = max(largest, abs(slopes[index] - (up - down) / 2e-5))
    return largest / float(np.abs(slopes).max())


def pooling(kind: str, data_format: str) -> Callable[[Any], float]:
    """Absolute error, because a maximum is exact. Both layouts run in one process, where 2.2 to 2.15 go wrong."""

    def compute(_: Any) -> float:
        x = normal(np.random.default_rng(1), 2, 12, 12, 8)
        blocks = x.reshape(2, 6, 2, 6, 2, 8)
        reference = blocks.max((2, 4)) if kind == "max" else blocks.mean((2, 4))
        pool = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
        if data_format == "NCHW":
            x, reference = x.transpose(0, 3, 1, 2), reference.transpose(0, 3, 1, 2)
        results = both(lambda image: pool(image, 2, 2, "VALID", data_format=data_format), single(x))
        return worst(float(np.abs(np.asarray(result) - reference).max()) for result in results)

    return compute


def xla(random: Any) -> float:
    x = normal(random, 64, 4096)

    def body(value: Any) -> Any:
        return tf.reduce_sum(tf.tanh(value) * tf.exp(-value * value), -1)

    reference = np.sum(np.tanh(x) * np.exp(-x * x), -1)
    return relative(jit_compiled(body)(single(x)), reference)


def jit_compiled(body: Callable[..., Any]) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = tf.function(body, jit_compile=True)
    except TypeError as reason:
        raise ImportError("this release has no jit_compile") from reason
    return compiled


def eight_bit_product(random: Any) -> float:
    x = random.integers(0, 256, (64, 96))
    return relative(quantized(x), x @ x.T)


def training(random: Any) -> float:
    """Return the last loss over the first one of a small network that learns a product's sign."""
    x = single(normal(random, 512, 16))
    y = tf.cast(x[:, :1] * x[:, 1:2] > 0, tf.float32)
    weights = [tf.Variable(single(normal(random, *shape) * 0.3)) for shape in ((16, 64), (64, 1))]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
        for variable, slope in zip(weights, tape.gradient(loss, weights)):  # noqa: B905
            variable.assign_sub(0.3 * slope)
        return loss

    losses = [float(step(x, y)) for _ in range(STEPS)]
    return losses[-1] / losses[0]


CHECKS: tuple[tuple[str, Callable[[Any], float]], ...] = (
    ("matmul", matmul),
    ("convolution", convolution),
    ("exp", exponential),
    ("softmax", softmax),
    ("batch_norm", batch_norm),
    ("gradient", gradient),
    ("max_pool_nhwc", pooling("max", "NHWC")),
    ("avg_pool_nhwc", pooling("avg", "NHWC")),
    ("max_pool_nchw_after_nhwc", pooling("max", "NCHW")),
    ("avg_pool_nchw_after_nhwc", pooling("avg", "NCHW")),
    ("xla", xla),
    ("training", training),
    ("quantized", eight_bit_product),
)


def answers(challenge: Challenge) -> Iterator[tuple[str, Any]]:
    """Yield results of operations on the challenge's matrix of rows and columns, in both modes where they differ.

    tfbuild/verify/challenges.py computes the same.
    """
    rows, columns = challenge.sizes
    x = tf.reshape(single(numbers(challenge.seed, rows * columns)), [rows, columns])
    image = tf.reshape(x, [1, rows, columns, 1])
    with tf.device("/CPU:0"):
        yield "product", tf.function(lambda m: tf.matmul(m, m, transpose_b=True))(x)
        yield "exp", tf.exp(4.0 * x)
        yield "softmax", tf.function(tf.nn.softmax)(x)
        yield "average", tf.nn.avg_pool2d(image, 2, 2, "VALID")
        yield "maximum", tf.nn.max_pool2d(image, 2, 2, "VALID")
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.tanh(x) * x)
        yield "gradient", tape.gradient(total, x)
        yield "quantized", attempted(lambda: quantized([[eight_bits(v) for v in row] for row in x.numpy().tolist()]))
        yield "compiled", attempted(lambda: jit_compiled(lambda m: tf.reduce_sum(tf.tanh(m) * tf.exp(-m * m), -1))(x))


def attempted(compute: Callable[[], Any]) -> Any:
    """Return a result, or None where this build cannot compute it."""
    try:
        return compute()
    except ABSENT:
        return None


def quantized(matrix: Any) -> Any:
    """Return the product of a matrix of 8-bit numbers with its transpose, as 32-bit ones: all of it is exact."""
    eight = tf.quantization.quantize(single(matrix), 0.0, 255.0, tf.quint8).output
    multiply = tf.function(
        lambda a: (
            tf.raw_ops.QuantizedMatMul(
                a=a, b=a, min_a=0.0, max_a=255.0, min_b=0.0, max_b=255.0, Toutput=tf.qint32, transpose_b=True
            ).out
        )
    )
    return tf.cast(multiply(eight), tf.int32)
