"""Single operations, also in lower precision, and training steps of small networks."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...smoke.probes import Unfit, cpu, memory
from . import FunctionWork, Work, normal, workload


def training(loss: Callable[..., Any], weights: list[Any], x: Any, items: int, xla: bool) -> FunctionWork:
    """Return a training step: loss, gradients, and an update too small to make one sample differ from the next."""
    variables = [tf.Variable(weight) for weight in weights]

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(batch, *variables)
        for variable, slope in zip(variables, tape.gradient(value, variables), strict=True):
            variable.assign_sub(1e-6 * slope)
        return value

    return FunctionWork(step, x, items=items, xla=xla)


def with_gradients(loss: Callable[..., Any], variables: Any = ()) -> Callable[..., Any]:
    """Return a function like `loss` that also computes all gradients, and adds them so that none is left out."""

    def body(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = loss(*arguments)
        slopes = tape.gradient(value, (*arguments, *variables))
        return value + tf.add_n([tf.reduce_sum(tf.abs(slope)) for slope in slopes])

    return body


@workload
def matmul(size: int = 768) -> FunctionWork:
    return FunctionWork(lambda a, b: tf.reduce_sum(tf.matmul(a, b)), normal(1, size, size), normal(2, size, size))


@workload
def elementwise(size: int = 2**20, xla: bool = False) -> FunctionWork:
    def body(x: Any) -> Any:
        return tf.reduce_sum(tf.tanh(x * 1.1 + 0.3) * tf.sigmoid(x) + tf.exp(-x * x))

    return FunctionWork(body, normal(3, size), xla=xla)


@workload
def exponential(size: int = 2**20) -> FunctionWork:
    return FunctionWork(lambda x: tf.reduce_sum(tf.exp(x)), normal(3, size))


def _first(y: Any) -> Any:
    """Return one of the numbers. A sum would add its own time, and no operation here computes only a part."""
    return tf.cast(tf.reshape(y, [-1])[0], tf.float32)


# Operation families by name; x has rows of 1024.
FAMILIES: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1.5,
    "tanh": tf.tanh,
    "erf": tf.math.erf,
    "log": lambda x: tf.math.log(x * x + 1.0),
    "rsqrt": lambda x: tf.math.rsqrt(x * x + 1.0),
    "select": lambda x: tf.where(x > 0.0, x, 0.1 * x),
    "sum": lambda x: tf.reduce_sum(x, 1),
    "max": lambda x: tf.reduce_max(x, 1),
    "cumsum": lambda x: tf.cumsum(x, 1),
    "argmax": lambda x: tf.argmax(x, 1),
    "softmax": tf.nn.softmax,
    "to half": lambda x: tf.cast(x, tf.float16),
    "to bfloat16": lambda x: tf.cast(x, tf.bfloat16),
    "to int32": lambda x: tf.cast(x * 100.0, tf.int32),
    "transpose": tf.transpose,
    "resize": lambda x: tf.image.resize(tf.reshape(x, [1, -1, 256, 4]), [384, 384]),
    "random": lambda x: tf.random.stateless_normal(tf.shape(x), tf.cast(x[0, :2] * 100.0, tf.int32)),
}


@workload
def operation(family: str, rows: int = 1024) -> FunctionWork:
    """One operation, or a few that belong together, on [rows, 1024] numbers."""
    return FunctionWork(lambda x: _first(FAMILIES[family](x)), normal(3, rows, 1024))


@workload
def double(size: int = 384) -> FunctionWork:
    """A matrix product in float64, which Eigen computes, because oneDNN does not support it."""
    a, b = (tf.cast(normal(seed, size, size), tf.float64) for seed in (1, 2))
    return FunctionWork(lambda x, y: _first(tf.matmul(x, y)), a, b)


@workload
def streams(size: int = 2**22, turns: int = 3, xla: bool = False) -> FunctionWork:
    """Element-wise operations bound by memory: each reads and writes everything unless they are fused. Not additions
    only, because TensorFlow's own optimiser merges those into one operation."""

    def body(x: Any, y: Any, z: Any) -> Any:
        for _ in range(turns):
            x = (x + y) * z
        return tf.reduce_sum(x)

    return FunctionWork(body, normal(3, size), normal(4, size), 0.5 + 0.1 * normal(5, size), xla=xla)


@workload
def depthwise(batch: int = 8, size: int = 56, channels: int = 64) -> FunctionWork:
    def body(x: Any, w: Any) -> Any:
        return tf.reduce_sum(tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"))

    return FunctionWork(body, normal(1, batch, size, size, channels), normal(2, 3, 3, channels, 1), items=batch)


@workload
def convolution(
    batch: int = 8,
    size: int = 28,
    channels: int = 64,
    layers: int = 2,
    train: bool = False,
    layout: str = "NHWC",
    norm: bool = False,
    xla: bool = False,
) -> FunctionWork:
    """Convolutions with the same weights and input in either layout (weights are HWIO in both); `norm`: batch norm."""
    x = normal(6, batch, size, size, channels)
    x = tf.transpose(x, [0, 3, 1, 2]) if layout == "NCHW" else x

    def loss(y: Any, *weights: Any) -> Any:
        for weight in weights:
            y = tf.nn.conv2d(y, weight, 1, "SAME", data_format=layout)
            if norm:
                scale, offset = tf.ones([channels]), tf.zeros([channels])
                y = tf.compat.v1.nn.fused_batch_norm(y, scale, offset, epsilon=1e-3, data_format=layout)[0]
            y = tf.nn.relu(y)
        return tf.reduce_mean(tf.square(y))

    weights = [normal(seed, 3, 3, channels, channels) * 0.05 for seed in range(layers)]
    if train:
        return training(loss, weights, x, batch, xla)
    return FunctionWork(loss, x, *weights, items=batch, xla=xla)


@workload
def mlp(batch: int = 128, width: int = 512, layers: int = 3, xla: bool = False) -> FunctionWork:
    def loss(y: Any, *weights: Any) -> Any:
        for weight in weights:
            y = tf.nn.gelu(tf.matmul(y, weight))
        return tf.reduce_mean(tf.square(y))

    weights = [normal(seed, width, width) * 0.05 for seed in range(layers)]
    return training(loss, weights, normal(9, batch, width), batch, xla)


@workload
def attention(batch: int = 4, length: int = 64, width: int = 128, heads: int = 4, xla: bool = False) -> FunctionWork:
    """A training step of one transformer block: self-attention and a feed-forward part, each after a layer norm."""

    def norm(y: Any) -> Any:
        mean, variance = tf.nn.moments(y, [-1], keepdims=True)
        return (y - mean) * tf.math.rsqrt(variance + 1e-6)

    def split(y: Any) -> Any:
        return tf.transpose(tf.reshape(y, [batch, length, heads, width // heads]), [0, 2, 1, 3])

    def loss(x: Any, query: Any, key: Any, value: Any, out: Any, up: Any, down: Any) -> Any:
        y = norm(x)
        score = tf.matmul(split(y @ query), split(y @ key), transpose_b=True) / (width // heads) ** 0.5
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(score), split(y @ value)), [0, 2, 1, 3])
        x = x + tf.reshape(mixed, [batch, length, width]) @ out
        return tf.reduce_mean(tf.square(x + tf.nn.gelu(norm(x) @ up) @ down))

    shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    weights = [normal(seed, *shape) * 0.05 for seed, shape in enumerate(shapes)]
    return training(loss, weights, normal(9, batch, length, width), batch, xla)


@workload
def batch_norm(
    fused: bool = True, train: bool = False, layout: str = "NHWC", size: int = 32, channels: int = 64, xla: bool = False
) -> FunctionWork:
    """Batch normalisation with the batch's own statistics, as one fused operation or as elementary ones."""
    x = normal(1, 16, size, size, channels)
    x = tf.transpose(x, [0, 3, 1, 2]) if layout == "NCHW" else x
    axes, shape = ([0, 2, 3], [1, channels, 1, 1]) if layout == "NCHW" else ([0, 1, 2], [1, 1, 1, channels])

    def loss(y: Any, scale: Any, offset: Any) -> Any:
        if fused:
            y = tf.compat.v1.nn.fused_batch_norm(y, scale, offset, epsilon=1e-3, data_format=layout)[0]
        else:
            mean, variance = tf.nn.moments(y, axes, keepdims=True)
            y = tf.nn.batch_normalization(y, mean, variance, tf.reshape(offset, shape), tf.reshape(scale, shape), 1e-3)
        return tf.reduce_mean(tf.square(tf.nn.relu(y)))

    weights = [1 + 0.1 * normal(2, channels), 0.1 * normal(3, channels)]
    body = with_gradients(loss) if train else loss
    return FunctionWork(body, x, *weights, items=16, xla=xla)


@workload
def large_tensors(mib: int = 40) -> FunctionWork:
    """Allocate and free tensors of `mib` MiB: above 32 MiB glibc maps and unmaps each."""
    return FunctionWork(lambda x, factor: tf.reduce_max(x * factor), tf.ones([mib * 2**18]), tf.constant(1.5))


# The integer type of each width in bytes: the maximum of integers costs no computing. TensorFlow's maximum of bfloat16
# takes nine times as long as reading memory, and that of float32 a fifth longer, because it checks for NaN.
INTEGERS = {4: tf.int32, 2: tf.uint16, 1: tf.int8}
# The share of memory for one arm: two arms of float32 and smaller ones exist at the same time.
MOST_MEMORY = 0.2


@workload
def bandwidth(dtype: str, millions: int) -> FunctionWork:
    """Read `millions` Mi numbers once, which is more than caches hold in any of the types."""
    block = tf.cast(normal(1, 2**20) * 20, dtype)
    mib = millions * block.dtype.size
    if mib > MOST_MEMORY * memory():
        raise Unfit(f"{mib} MiB are too much for the {memory():.0f} MiB of memory")
    integer = INTEGERS[block.dtype.size]
    x = tf.tile(block, [millions])
    x = x if x.dtype == integer else tf.bitcast(x, integer)
    work = FunctionWork(lambda data: tf.cast(tf.reduce_max(data), tf.float32), x, items=millions)
    work.note = f"{mib} MiB a call"
    return work


# --- the same matrix product in float32, bfloat16 and int8, with its error as well as its speed -----------------------


def relative_error(result: Any, reference: Any) -> float:
    """Return the root mean square of the difference, relative to that of the reference."""
    return float(np.sqrt(np.mean((result - reference) ** 2)) / np.sqrt(np.mean(reference**2)))


@workload
def product(dtype: str = "float32", rows: int = 64, size: int = 2048) -> FunctionWork:
    """[rows, size] x [size, size]; the operands are of `dtype` already, the result is summed in float32."""
    # Without avx512_bf16, amx_bf16 or bf16 TensorFlow converts to float32 and back.
    if dtype == "bfloat16" and not any(flag.endswith("bf16") for flag in cpu()[0]):
        raise Unfit("this CPU has no instructions for bfloat16")
    x, w = normal(1, rows, size), normal(2, size, size) / size**0.5
    reference = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64)
    operands = tf.cast(x, dtype), tf.cast(w, dtype)
    body = lambda a, b: tf.reduce_sum(tf.cast(tf.matmul(a, b), tf.float32))  # noqa: E731
    work = FunctionWork(body, *operands, items=rows, comparable=False)
    work.error = relative_error(tf.cast(tf.matmul(*operands), tf.float32).numpy(), reference)
    return work


class Lite(Work):
    """A TFLite model of one dense layer."""

    def __init__(self, model: bytes, x: Any, reference: Any, items: int) -> None:
        threads = len(os.sched_getaffinity(0))
        self.interpreter = tf.lite.Interpreter(model_content=model, num_threads=threads)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]["index"]
        self.output = self.interpreter.get_output_details()[0]["index"]
        self.x, self.items = x, items
        self.note = f"the model has {len(model) / 1e6:.1f} MB, {threads} threads"
        self.call()
        self.error = relative_error(self.interpreter.get_tensor(self.output), reference)

    def call(self) -> None:
        self.interpreter.set_tensor(self.input, self.x)
        self.interpreter.invoke()
        self.interpreter.get_tensor(self.output)


@workload
def lite(quantised: bool, full: bool = False, rows: int = 64, size: int = 2048) -> Lite:
    """The same product as a TFLite model with float32 weights, or int8 weights and dynamic ranges. `full`: calibrate
    the ranges beforehand on the same input, so that the model is int8 from end to end inside."""
    x, w = normal(1, rows, size), normal(2, size, size) / size**0.5

    class Dense(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([rows, size], tf.float32)])
        def __call__(self, data: Any) -> Any:
            return tf.matmul(data, w)

    module = Dense()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.__call__.get_concrete_function()], module)
    if quantised:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if full:
        converter.representative_dataset = lambda: iter([[x.numpy()]])
    return Lite(converter.convert(), x.numpy(), x.numpy().astype(np.float64) @ w.numpy(), rows)
