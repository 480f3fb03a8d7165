"""tf.distribute strategies on all GPUs, or on virtual devices of this CPU, where they cannot speed anything up."""

from __future__ import annotations

from typing import Any, List

import tensorflow as tf

from ..base import normal
from ..validity import Unfit
from . import Work, workload


class StrategyStep(Work):
    def __init__(self, function: Any, x: Any, items: int, note: str) -> None:
        self.function, self.x, self.items, self.note = function, x, items, note

    def call(self) -> None:
        self.function(self.x).numpy()

    def traces(self) -> int:
        return int(self.function.experimental_get_tracing_count())


def devices(kind: str, replicas: int, device: str) -> List[str]:
    """Return the names of the replicas' devices: all GPUs, or as many virtual CPUs as `replicas`."""
    physical = tf.config.list_physical_devices(device)
    if device == "GPU":
        if kind in ("mirrored", "central") and len(physical) < 2:
            raise Unfit("this needs two GPUs or more")
        return [f"GPU:{index}" for index in range(len(physical))]
    if kind in ("mirrored", "central"):
        tf.config.set_logical_device_configuration(physical[0], [tf.config.LogicalDeviceConfiguration()] * replicas)
    return [f"CPU:{index}" for index in range(replicas)]


@workload
def distributed(
    kind: str, replicas: int = 2, batch: int = 64, width: int = 512, layers: int = 3, device: str = "CPU"
) -> Work:
    """A training step of dense layers on `batch` rows in all. `kind`: none, one, mirrored or central; `replicas`: on
    the CPU (with GPUs, all of them are used)."""
    names = devices(kind, replicas, device)
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
        if hasattr(optimizer, "build"):
            optimizer.build(weights)
    x = normal(9, batch // shared, width)

    def replica(data: Any) -> Any:
        with tf.GradientTape() as tape:
            y = data
            for weight in weights:
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_mean(tf.square(y)) / shared
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    @tf.function
    def step(data: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(data,)), axis=None)

    return StrategyStep(step, x, batch // shared * shared, f"{shared} replica(s)")
