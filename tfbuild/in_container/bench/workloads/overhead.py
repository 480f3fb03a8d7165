"""TensorFlow's own work, between and around kernels that are too small to matter: dispatch, loops, input, Keras."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from . import FunctionWork, Work, normal, workload

STEPS = 300
OPERATIONS = 400


class Calls(Work):
    """A function of Python, called as it is."""

    def __init__(self, function: Callable[[], Any], items: int = 1) -> None:
        self.function, self.items = function, items

    def call(self) -> None:
        self.function()


@workload
def overhead(kind: str) -> Work:
    """A call does what is called `kind`: a key of KINDS."""
    return KINDS[kind]()


def _loop() -> Work:
    def body(x: Any) -> Any:
        return tf.while_loop(lambda step, _: step < STEPS, lambda step, value: (step + 1, value * 0.99 + x), (0, x))[1]

    return FunctionWork(body, tf.constant(1.0), items=STEPS)


def _chain() -> Work:
    def body(x: Any) -> Any:
        for number in range(OPERATIONS):
            x = x * 1.001 if number % 2 else x - 0.001
        return tf.reduce_sum(x)

    return FunctionWork(body, normal(1, 8), items=OPERATIONS)


def _eager() -> Work:
    x, weights = normal(1, 8, 64), [tf.Variable(normal(2, 64, 64)), tf.Variable(normal(3, 64, 10))]

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])))
        for variable, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(1e-6 * slope)

    return Calls(step)


def _trace() -> Work:
    x, w = normal(1, 2, 64), normal(2, 64, 64)
    return Calls(lambda: tf.function(lambda value: tf.nn.relu(tf.matmul(value, w)) + 1.0)(x))


def _data() -> Work:
    rows = tf.data.Dataset.range(1000).map(lambda value: (value, tf.cast(value, tf.float32)))
    batches = rows.filter(lambda value, _: value % 3 == 0).batch(4).prefetch(2)
    return Calls(lambda: [None for _ in batches], items=1000)


def _keras(train: bool) -> Work:
    layers = [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(2)]
    net = tf.keras.Sequential([tf.keras.layers.Input((16,)), *layers])
    net.compile("sgd", "mse")
    x, y = normal(1, 512, 16), normal(2, 512, 2)
    if train:
        return Calls(lambda: net.fit(x, y, batch_size=32, verbose=0), items=16)
    return Calls(lambda: net.predict(x, batch_size=32, verbose=0), items=16)


KINDS = {
    "loop": _loop,
    "chain": _chain,
    "eager": _eager,
    "trace": _trace,
    "data": _data,
    "fit": lambda: _keras(True),
    "predict": lambda: _keras(False),
}
