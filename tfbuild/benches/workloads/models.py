"""Whole models through Keras, by the names that tf_cnn_benchmarks made known; synthetic data, random weights."""

from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf

from ..base import normal
from ..worker import Unfit
from . import Function, workload
from .compute import compiled


def _resnet50(batch: int) -> Tuple[Any, Any]:
    shape = (64, 64, 3)
    return tf.keras.applications.ResNet50(weights=None, input_shape=shape, classes=10), normal(1, batch, *shape)


def _lstm(batch: int) -> Tuple[Any, Any]:
    steps, width = 20, 64
    layers = [tf.keras.layers.LSTM(128, return_sequences=True), tf.keras.layers.LSTM(128), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential([tf.keras.Input((steps, width)), *layers]), normal(1, batch, steps, width)


def _transformer(batch: int) -> Tuple[Any, Any]:
    length, width = 64, 128
    given = tf.keras.Input((length, width))
    mixed = tf.keras.layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(given, given)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([given, mixed]))
    wide = tf.keras.layers.Dense(4 * width, activation="gelu")(y)
    y = tf.keras.layers.LayerNormalization()(tf.keras.layers.Add()([y, tf.keras.layers.Dense(width)(wide)]))
    return tf.keras.Model(given, y), normal(1, batch, length, width)


MODELS = {"resnet50": _resnet50, "lstm": _lstm, "transformer": _transformer}


@workload
def model(name: str, batch: int = 4, xla: bool = False) -> Function:
    """One training step; ResNet-50 on 64x64 pictures, two LSTM layers of 128 units, one transformer block."""
    if name not in MODELS:
        raise Unfit("no model is called {}; one of: {}".format(name, ", ".join(sorted(MODELS))))
    net, x = MODELS[name](batch)

    def step(data: Any) -> Any:
        with tf.GradientTape() as tape:
            lost = tf.reduce_mean(tf.square(net(data, training=True)))
        variables = net.trainable_variables
        for variable, slope in zip(variables, tape.gradient(lost, variables)):
            variable.assign_sub(1e-6 * slope)
        return lost

    made = Function(step, x, items=batch, **compiled(xla))
    # Weights are drawn anew in each process.
    made.value = lambda: None  # type: ignore[method-assign]
    return made
