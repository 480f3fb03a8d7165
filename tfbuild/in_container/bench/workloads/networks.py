"""Recurrent layers, training steps of Keras models, a SavedModel of the user's own, tf.distribute's strategies."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import tensorflow as tf

from ...smoke.probes import Unfit, memory, used
from ...smoke.references import usable
from . import FunctionWork, Work, normal, workload
from .compute import MOST_MEMORY, relative_error, with_gradients
from .images import Batches, pipeline

# --- one LSTM layer in four ways: as a while loop, unrolled, as the fused block operation, and by Keras ---------------


@workload
def lstm(
    kind: str, train: bool = False, batch: int = 4, steps: int = 50, inputs: int = 32, units: int = 64
) -> FunctionWork:
    """The loss is the mean square of all outputs. `kind`: loop, unrolled, block, keras or keras-unrolled."""
    x, variables = normal(1, steps, batch, inputs), ()
    weights = [normal(2, inputs + units, 4 * units) * 0.1, normal(3, 4 * units) * 0.1]
    form = {"loop": _loop, "unrolled": _unrolled, "block": _block}.get(kind)
    if form is None:
        layer = tf.keras.layers.LSTM(units, return_sequences=True, unroll=kind == "keras-unrolled")
        layer.build((batch, steps, inputs))
        x, weights, variables = tf.transpose(x, [1, 0, 2]), [], layer.trainable_variables

    def loss(data: Any, *arguments: Any) -> Any:
        return tf.reduce_mean(tf.square(form(data, *arguments, units) if form else layer(data)))

    body = with_gradients(loss, variables) if train else loss
    # Keras draws its own initial weights: another value, the same work.
    return FunctionWork(body, x, *weights, items=batch, comparable=form is not None)


def _cell(x: Any, state: Any, cell: Any, w: Any, b: Any) -> Any:
    """Compute one step, with BlockLSTM's order of gates (input, cell, forget, output) and a forget bias of 1."""
    i, c, f, o = tf.split(tf.matmul(tf.concat([x, state], 1), w) + b, 4, axis=1)
    cell = tf.sigmoid(f + 1.0) * cell + tf.sigmoid(i) * tf.tanh(c)
    return tf.sigmoid(o) * tf.tanh(cell), cell


def _loop(x: Any, w: Any, b: Any, units: int) -> Any:
    steps, batch = x.shape[0], x.shape[1]
    zero = tf.zeros([batch, units])
    outputs = tf.TensorArray(tf.float32, steps, element_shape=[batch, units])

    def body(step: Any, state: Any, cell: Any, outputs: Any) -> Any:
        state, cell = _cell(x[step], state, cell, w, b)
        return step + 1, state, cell, outputs.write(step, state)

    end = tf.while_loop(lambda step, *_: step < steps, body, (tf.constant(0), zero, zero, outputs))
    return end[3].stack()


def _unrolled(x: Any, w: Any, b: Any, units: int) -> Any:
    state = cell = tf.zeros([x.shape[1], units])
    outputs = []
    for part in tf.unstack(x):
        state, cell = _cell(part, state, cell, w, b)
        outputs.append(state)
    return tf.stack(outputs)


def _block(x: Any, w: Any, b: Any, units: int) -> Any:
    zero, peep = tf.zeros([x.shape[1], units]), tf.zeros([units])
    fixed = {"cs_prev": zero, "h_prev": zero, "wci": peep, "wcf": peep, "wco": peep, "cell_clip": -1.0}
    return tf.raw_ops.BlockLSTM(seq_len_max=tf.constant(x.shape[0], tf.int64), x=x, w=w, b=b, **fixed).h


# --- whole models with random weights, on one batch in memory or on JPEGs --------------------------------------------


def _lstm(batch: int) -> tuple[Any, Any]:
    steps, width = 20, 64
    layers = [tf.keras.layers.LSTM(128, return_sequences=True), tf.keras.layers.LSTM(128), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential([tf.keras.Input((steps, width)), *layers]), normal(1, batch, steps, width)


def _transformer(batch: int) -> tuple[Any, Any]:
    length, width = 64, 128
    x = tf.keras.Input((length, width))
    mixed = tf.keras.layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(x, x)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([x, mixed]))
    wide = tf.keras.layers.Dense(4 * width, activation="gelu")(y)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([y, tf.keras.layers.Dense(width)(wide)]))
    return tf.keras.Model(x, y), normal(1, batch, length, width)


MODELS = {"lstm": _lstm, "transformer": _transformer}


@workload
def model(
    name: str,
    batch: int = 4,
    xla: bool = False,
    application: str = "",
    size: int = 64,
    classes: int = 10,
    jpegs: bool = False,
    train: bool = True,
    precision: str = "",
) -> Work:
    """A training step (or the output: `train`) of Keras' `application` on pictures of `size`, of two LSTM layers or of
    a transformer block. `jpegs`: read, decode and scale each batch while the step on the last one runs. `precision`:
    "float32", or bfloat16 by TensorFlow's optimizer ("graph") or by Keras ("keras"), with the error of the output."""

    def made(policy: str) -> Any:
        tf.keras.mixed_precision.set_global_policy(policy)
        if not application:
            return MODELS[name](batch)
        make, shape = getattr(tf.keras.applications, application), (size, size, 3)
        return make(weights=None, input_shape=shape, classes=classes), normal(1, batch, *shape)

    net, x = made("mixed_bfloat16" if precision == "keras" else "float32")
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": precision == "graph"})

    def step(data: Any) -> Any:
        if not train:
            return tf.reduce_sum(net(data, training=False))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(net(data, training=True), tf.float32)))
        variables = net.trainable_variables
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(1e-6 * slope)
        return loss

    if jpegs:
        # From the second step on, one batch is ready when a step begins.
        ready = pipeline(len(os.sched_getaffinity(0)), prefetch=1, fused_decode=True, batch=batch, size=size).batches
        return Batches(ready, batch, tf.function(step, jit_compile=xla or None), discarded=1)
    # Each process draws its own weights.
    work = FunctionWork(step, x, items=batch, comparable=False, xla=xla)
    if precision:
        exact, _ = made("float64")  # in which oneDNN computes nothing
        exact.set_weights(net.get_weights())
        result, right = tf.cast(tf.function(net)(x), tf.float64), exact(tf.cast(x, tf.float64))
        work.error = relative_error(result.numpy(), right.numpy())
    tf.keras.mixed_precision.set_global_policy("float32")
    return work


# --- a SavedModel of the user's own, on made-up inputs ----------------------------------------------------------------

# The host copies it beside this package.
SAVED = os.path.abspath(__file__ + "/../../../../model")
LONGEST_CALL = 5.0
ROUNDING = "TF_SET_ONEDNN_FPMATH_MODE"


@workload
def saved_model(batch: int = 1, shapes: str = "", xla: bool = False, precision: str = "", path: str = SAVED) -> Work:
    """The serving signature. `shapes`: of inputs with open dimensions, "ids=1,128 mask=1,128". `precision`: as in
    `model`; the error is relative to the output in float32."""
    if precision == "keras":
        raise Unfit("Keras chooses it where a model is made")
    call, inputs, items = _served(path, batch, shapes)
    work = FunctionWork(lambda *data: tf.reduce_sum(tf.abs(call(*data))), *inputs, items=items, xla=xla)
    work.note = f"its signature fixes the batch at {items}" if items != batch else ""
    if precision:
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            rounded = ROUNDING in os.environ
            exact = apart.submit(_unrounded, path, batch, shapes).result() if rounded else call(*inputs).numpy()
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": precision == "graph"})
        error = relative_error(tf.function(call)(*inputs).numpy(), exact)
        work.error = error if usable(error) else None
    return work


def _unrounded(path: str, batch: int, shapes: str) -> Any:
    os.environ.pop(ROUNDING)
    call, inputs, _ = _served(path, batch, shapes)
    return call(*inputs).numpy()


def _served(path: str, batch: int, shapes: str) -> tuple[Callable[..., Any], list[Any], int]:
    """Return a function whose result is all outputs as one row of numbers, its inputs, and the items in them.

    Raises Unfit if smaller batches already take too much time or memory.
    """
    loaded = tf.saved_model.load(path)
    signature = loaded.signatures.get("serving_default")
    if signature is None:
        raise Unfit("it has no signature serving_default: export it with one, as Keras' model.export(DIR) does")
    signature.owner = loaded  # of the variables
    inputs, items = _inputs(signature, batch, shapes)
    if items != batch != 1:
        raise Unfit(f"its signature fixes the batch at {items}")

    def call(*data: Any) -> Any:
        outputs = tf.nest.flatten(signature(**dict(zip(inputs, data))))  # noqa: B905
        rows = [tf.reshape(tf.strings.length(one) if one.dtype == tf.string else one, [-1]) for one in outputs]
        return tf.concat([tf.cast(row, tf.float32) for row in rows], 0)

    call(*_inputs(signature, 1, shapes)[0].values())  # the first call prepares
    size = 1
    while size < items == batch:
        begin, before = time.perf_counter(), used("VmHWM")
        call(*_inputs(signature, size, shapes)[0].values())
        larger = min(4 * size, items)
        times = larger / size
        size, seconds, mib = larger, times * (time.perf_counter() - begin), times * (used("VmHWM") - before)
        if seconds > LONGEST_CALL or mib > MOST_MEMORY * memory():
            raise Unfit(f"a batch of {size} would take {seconds:.2g} s and {mib:.0f} MiB")
    return call, [*inputs.values()], items


def _inputs(signature: Any, batch: int, shapes: str) -> tuple[dict[str, Any], int]:
    """Return made-up inputs by name, and the items in them: `batch`, unless no first dimension is open."""
    specs, given = signature.structured_input_signature[1], dict(one.split("=") for one in shapes.split())
    if not specs or given.keys() - specs:
        raise Unfit(f"its inputs are {', '.join(sorted(specs)) or 'none'}")
    inputs, items = {}, 0
    for name, spec in sorted(specs.items()):
        known = [None, None] if spec.shape.rank is None else spec.shape.as_list()
        sizes = [int(size) for size in given[name].split(",")] if name in given else known
        if None in sizes[1:] or not spec.shape.is_compatible_with(sizes):
            example = ",".join(str(size or 128) for size in [1, *known[1:]])
            raise Unfit(f"its input {name} is {spec.shape}: give all sizes, such as --shape {name}={example}")
        opened = known[:1] == [None]
        items = batch if opened else items or [*sizes, 0][0]
        inputs[name] = _made_up(spec.dtype, [batch, *sizes[1:]] if opened else sizes)
    return inputs, items or 1


def _made_up(dtype: Any, shape: list[int]) -> Any:
    """Return numbers, bytes of pictures, sentences, or ones: a word of any vocabulary, a mask that hides nothing."""
    if dtype == tf.string:
        return tf.fill(shape, "a sentence of ordinary words, as people write them")
    if dtype.is_bool or (dtype.is_integer and dtype != tf.uint8):
        return tf.ones(shape, dtype)
    return tf.cast(abs(normal(1, *shape)) * (60 if dtype.is_integer else 1), dtype)


# --- strategies on all GPUs, or on virtual devices of this CPU, where they cannot speed anything up ------------------


def devices(kind: str, device: str) -> list[str]:
    """Return the names of the replicas' devices: all GPUs, or two virtual CPUs."""
    physical = tf.config.list_physical_devices(device)
    if device == "GPU":
        if kind in ("mirrored", "central") and len(physical) < 2:
            raise Unfit("this needs two GPUs or more")
        return [f"GPU:{index}" for index in range(len(physical))]
    if kind in ("mirrored", "central"):
        tf.config.set_logical_device_configuration(physical[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    return ["CPU:0", "CPU:1"]


@workload
def distributed(kind: str, batch: int = 64, width: int = 512, layers: int = 3, device: str = "CPU") -> FunctionWork:
    """A training step of dense layers on `batch` rows in all. `kind`: none, one, mirrored or central."""
    names = devices(kind, device)
    strategy = {
        "none": tf.distribute.get_strategy,
        "one": lambda: tf.distribute.OneDeviceStrategy(names[0]),
        "mirrored": lambda: tf.distribute.MirroredStrategy(names),
        "central": lambda: tf.distribute.experimental.CentralStorageStrategy(names),
    }[kind]()
    shared = strategy.num_replicas_in_sync
    with strategy.scope():
        weights = [tf.Variable(normal(seed, width, width) * 0.05) for seed in range(layers)]
        optimizer = tf.keras.optimizers.SGD(1e-6)
        optimizer.build(weights)
    x = normal(9, batch // shared, width)

    def replica(data: Any) -> Any:
        with tf.GradientTape() as tape:
            y = data
            for weight in weights:
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_mean(tf.square(y)) / shared
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def step(data: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(data,)), axis=None)

    work = FunctionWork(step, x, items=batch // shared * shared, comparable=False)
    work.note = f"{shared} replica(s)"
    return work
