"""Training steps of whole Keras models with random weights, on one batch in memory or on JPEGs."""

from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf

from ..base import normal
from ..validity import Unfit
from . import FunctionWork, Work, workload
from .compute import compiled
from .images import Batches, photographs_of


def _lstm(batch: int) -> Tuple[Any, Any]:
    steps, width = 20, 64
    layers = [tf.keras.layers.LSTM(128, return_sequences=True), tf.keras.layers.LSTM(128), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential([tf.keras.Input((steps, width)), *layers]), normal(1, batch, steps, width)


def _transformer(batch: int) -> Tuple[Any, Any]:
    length, width = 64, 128
    x = tf.keras.Input((length, width))
    mixed = tf.keras.layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(x, x)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([x, mixed]))
    wide = tf.keras.layers.Dense(4 * width, activation="gelu")(y)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([y, tf.keras.layers.Dense(width)(wide)]))
    return tf.keras.Model(x, y), normal(1, batch, length, width)


MODELS = {"lstm": _lstm, "transformer": _transformer}


def _application(name: str, batch: int, size: int, classes: int) -> Tuple[Any, Any]:
    make = getattr(tf.keras.applications, name, None)
    if make is None:
        raise Unfit("Keras has no application {} in this release".format(name))
    shape = (size, size, 3)
    return make(weights=None, input_shape=shape, classes=classes), normal(1, batch, *shape)


@workload
def model(
    name: str,
    batch: int = 4,
    xla: bool = False,
    application: str = "",
    size: int = 64,
    classes: int = 10,
    jpegs: bool = False,
) -> Work:
    """A training step of Keras' `application` on pictures of `size`, of two LSTM layers of 128 units ("lstm") or of one
    transformer block ("transformer"). `jpegs`: read, decode and scale each batch while the step on the last one runs.
    """
    if not application and name not in MODELS:
        raise Unfit("unknown model {}; one of: {}".format(name, ", ".join(sorted(MODELS))))
    net, x = _application(application, batch, size, classes) if application else MODELS[name](batch)

    def step(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(data, training=True)))
        variables = net.trainable_variables
        for variable, slope in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(1e-6 * slope)
        return loss

    if jpegs:
        # From the second step on, one batch is ready when a step begins.
        return Batches(photographs_of(size, batch), batch, tf.function(step, **compiled(xla)), discarded=1)
    work = FunctionWork(step, x, items=batch, **compiled(xla))
    # Each process draws its own weights.
    work.value = lambda: None  # type: ignore[method-assign]
    return work
