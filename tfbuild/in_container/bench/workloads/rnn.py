"""One LSTM layer in four ways: as a while loop, unrolled, as the fused block operation, and by Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..base import normal
from . import FunctionWork, workload


@workload
def lstm(
    kind: str, train: bool = False, batch: int = 4, steps: int = 50, inputs: int = 32, units: int = 64
) -> FunctionWork:
    """The loss is the mean square of all outputs. `kind`: loop, unrolled, block, keras or keras-unrolled."""
    x = normal(1, steps, batch, inputs)
    weights = [normal(2, inputs + units, 4 * units) * 0.1, normal(3, 4 * units) * 0.1]
    keras = kind.startswith("keras")
    if keras:
        layer = tf.keras.layers.LSTM(
            units, return_sequences=True, unroll=kind.endswith("unrolled"), kernel_initializer="glorot_uniform"
        )
        layer.build((batch, steps, inputs))
        x = tf.transpose(x, [1, 0, 2])

        def outputs(data: Any) -> Any:
            return layer(data)

        weights = []
    else:
        form = {"loop": _loop, "unrolled": _unrolled, "block": _block}[kind]

        def outputs(data: Any, *arguments: Any) -> Any:
            return form(data, *arguments, units)

    def loss(data: Any, *arguments: Any) -> Any:
        return tf.reduce_mean(tf.square(outputs(data, *arguments)))

    def slopes(data: Any, *arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((data, *arguments))
            value = loss(data, *arguments)
        sources = (data, *arguments, *(layer.trainable_variables if keras else ()))
        return value + tf.add_n([tf.reduce_sum(tf.abs(slope)) for slope in tape.gradient(value, sources)])

    work = FunctionWork(slopes if train else loss, x, *weights, items=batch)
    if keras:
        # Keras draws its own initial weights: another value, the same work.
        work.value = lambda: None  # type: ignore[method-assign]
    return work


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
    return tf.raw_ops.BlockLSTM(
        seq_len_max=tf.constant(x.shape[0], tf.int64),
        x=x,
        cs_prev=zero,
        h_prev=zero,
        w=w,
        wci=peep,
        wcf=peep,
        wco=peep,
        b=b,
        forget_bias=1.0,
        cell_clip=-1.0,
        use_peephole=False,
    ).h
