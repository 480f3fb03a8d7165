"""What TensorFlow computes on the CPU from the inputs of references.py."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from . import references
from .references import POOL, SHAPES, usable

STEPS = 200
# The errors of a build that lacks something (a layout, XLA).
ABSENT_ERRORS = (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)


def computed(name: str) -> tuple[tuple[float, ...], str]:
    """Return a part's results: none if one of them is not usable, or if this build lacks something, and what."""
    try:
        with tf.device("/CPU:0"):
            results = [tf.reshape(tf.cast(result, tf.float64), [-1]) for result in COMPUTE[name]()]
            values = tf.concat(results, 0).numpy().tolist()
    except ABSENT_ERRORS as reason:
        # In a graph, TensorFlow puts the location before the message.
        return (), "not in this build: {}".format(str(reason).split("\n")[0].rpartition("}} ")[2][:200])
    return tuple(values) if all(map(usable, values)) else (), ""


def inputs(name: str, kind: Any = tf.float32) -> list[Any]:
    flat = references.inputs(name)
    return [tf.constant(values, kind, shape) for values, shape in zip(flat, SHAPES[name], strict=True)]


def both(body: Callable[..., Any], *given: Any) -> list[Any]:
    """Run `body` in eager mode, where this build can, and in a graph.

    oneDNN's cache of primitives belongs to a thread; eager mode runs everything in one thread, so an error with a
    cached primitive occurs each time.
    """
    try:
        eager = [body(*given)]
    except ABSENT_ERRORS:
        eager = []
    return [*eager, tf.function(body)(*given)]


def batch_norm() -> list[Any]:
    def normalise(image: Any) -> Any:
        channels = SHAPES["batch_norm"][0][3]
        return tf.raw_ops.FusedBatchNormV3(
            x=image, scale=tf.ones(channels), offset=tf.zeros(channels), mean=[], variance=[], epsilon=1e-3,
            is_training=True,
        )[0]  # fmt: skip

    return both(normalise, *inputs("batch_norm"))


def gradient() -> list[Any]:
    image, kernel = inputs("gradient", tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        value = tf.reduce_sum(tf.tanh(tf.nn.conv2d(image, kernel, 1, "SAME")))
    return [tape.gradient(value, kernel)]


def pooling(pool: Callable[..., Any], data_format: str) -> Callable[[], list[Any]]:
    """Return a function that pools in both layouts in one process, where 2.2 to 2.15 go wrong."""

    def compute() -> list[Any]:
        (image,) = inputs("pool")
        if data_format == "NHWC":
            return both(lambda x: pool(x, POOL, POOL, "VALID"), image)
        results = both(lambda x: pool(x, POOL, POOL, "VALID", data_format="NCHW"), tf.transpose(image, [0, 3, 1, 2]))
        return [tf.transpose(result, [0, 2, 3, 1]) for result in results]

    return compute


def xla() -> list[Any]:
    compiled = tf.function(lambda x: tf.reduce_sum(tf.tanh(x) * tf.exp(-x * x), -1), jit_compile=True)
    return [compiled(*inputs("xla"))]


def training() -> list[Any]:
    """Return the last loss over the first one of a small network that learns a product's sign."""
    x, *weights = inputs("training")
    y = tf.cast(x[:, :1] * x[:, 1:2] > 0, tf.float32)
    variables = [tf.Variable(0.5 * weight) for weight in weights]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.matmul(tf.nn.relu(tf.matmul(x, variables[0])), variables[1])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(slope)
        return loss

    losses = [step(x, y) for _ in range(STEPS)]
    return [losses[-1] / losses[0]]


def quantized() -> list[Any]:
    """Return the product of a matrix of 8-bit numbers with its transpose, as 32-bit ones: all of it is exact."""
    numbers = references.eight_bits(references.inputs("quantized")[0])
    eight = tf.quantization.quantize(tf.constant(numbers, tf.float32, SHAPES["quantized"][0]), 0.0, 255.0, tf.quint8)
    fixed = {"min_a": 0.0, "max_a": 255.0, "min_b": 0.0, "max_b": 255.0, "Toutput": tf.qint32, "transpose_b": True}
    multiply = tf.function(lambda a: tf.raw_ops.QuantizedMatMul(a=a, b=a, **fixed))
    return [tf.cast(multiply(eight.output).out, tf.int32)]


COMPUTE: Mapping[str, Callable[[], list[Any]]] = {
    "matmul": lambda: [tf.function(tf.matmul)(*inputs("matmul"))],
    "convolution": lambda: [tf.function(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))(*inputs("convolution"))],
    "exp": lambda: [tf.exp(tf.constant(references.exp_arguments(), tf.float32))],
    "softmax": lambda: both(tf.nn.softmax, *inputs("softmax")),
    "batch_norm": batch_norm,
    "gradient": gradient,
    "max_pool_nhwc": pooling(tf.nn.max_pool2d, "NHWC"),
    "avg_pool_nhwc": pooling(tf.nn.avg_pool2d, "NHWC"),
    "max_pool_nchw_after_nhwc": pooling(tf.nn.max_pool2d, "NCHW"),
    "avg_pool_nchw_after_nhwc": pooling(tf.nn.avg_pool2d, "NCHW"),
    "xla": xla,
    "training": training,
    "quantized": quantized,
}
