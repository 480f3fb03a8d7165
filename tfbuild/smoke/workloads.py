"""What the throughput workers time. Inputs are arguments and results are fetched: constants would be folded away."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Tuple

import numpy as np
import tensorflow as tf

Timing = Tuple[float, float]  # seconds by the clock, seconds of this process's CPU time
BATCHES_DISCARDED = 3
IMAGES = 16
BATCH = 8


class Workload:
    """`call` does one unit; `traces` counts how often TensorFlow has traced it (it must stay at one)."""

    def call(self) -> None:
        raise NotImplementedError

    def traces(self) -> int:
        return 1

    def sample(self, inner: int) -> Timing:
        begin = time.perf_counter(), time.process_time()
        for _ in range(inner):
            self.call()
        return time.perf_counter() - begin[0], time.process_time() - begin[1]


class Traced(Workload):
    """A tf.function of tensors that returns one scalar."""

    def __init__(self, body: Callable[..., Any], *inputs: Any, **options: Any) -> None:
        self.function = tf.function(body, **options)
        self.inputs = inputs

    def call(self) -> None:
        self.function(*self.inputs).numpy()

    def traces(self) -> int:
        count = getattr(self.function, "experimental_get_tracing_count", None)
        return int(count()) if count else 1


class Jpeg(Workload):
    """tf.data decoding JPEGs. A fresh iterator a sample: an idle one would go on filling its buffers meanwhile."""

    def __init__(self) -> None:
        options = tf.data.Options()
        # The parallelism is given, or autotuning would wander between samples. (2.4 and older have no such option.)
        if hasattr(options, "autotune"):
            options.autotune.enabled = False
        images = tf.data.Dataset.from_tensor_slices(photographs()).repeat()
        decoded = images.map(lambda data: tf.io.decode_jpeg(data, channels=3)[60:284, 100:324], num_parallel_calls=2)
        self.batches = decoded.batch(BATCH).prefetch(1).with_options(options)

    def call(self) -> None:
        self.sample(1)

    def sample(self, inner: int) -> Timing:
        iterator = iter(self.batches)
        for _ in range(BATCHES_DISCARDED):
            next(iterator)
        begin = time.perf_counter(), time.process_time()
        for _ in range(inner):
            next(iterator)
        took = time.perf_counter() - begin[0], time.process_time() - begin[1]
        del iterator
        return took


def normal(seed: int, *shape: int) -> Any:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def matmul() -> Workload:
    return Traced(lambda a, b: tf.reduce_sum(tf.matmul(a, b)), normal(1, 768, 768), normal(2, 768, 768))


def elementwise() -> Workload:
    def body(x: Any) -> Any:
        return tf.reduce_sum(tf.tanh(x * 1.1 + 0.3) * tf.sigmoid(x) + tf.exp(-x * x))

    return Traced(body, normal(3, 2**20))


def convolution() -> Workload:
    """One training step of two convolutions: forward and both gradients."""

    def body(x: Any, *weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = x
            for weight in weights:
                y = tf.nn.relu(tf.nn.conv2d(y, weight, 1, "SAME"))
            loss = tf.reduce_mean(tf.square(y))
        return tf.add_n([tf.reduce_sum(slope) for slope in tape.gradient(loss, weights)])

    weights = [normal(seed, 3, 3, 64, 64) * 0.05 for seed in (4, 5)]
    return Traced(body, normal(6, 8, 28, 28, 64), *weights)


def photographs() -> Any:
    """JPEGs with a photograph's entropy (63 KB at 375x500): smooth shapes alone would decode far too fast."""
    random = np.random.default_rng(7)
    return tf.stack([tf.io.encode_jpeg(photograph(random), quality=90) for _ in range(IMAGES)])


def photograph(random: Any) -> Any:
    smooth = np.zeros((375, 500, 3), np.float32)
    for size in (4, 8, 16, 32, 64, 128):
        noise = random.standard_normal((size, size, 3)).astype(np.float32)
        smooth += tf.image.resize(noise, (375, 500), method="bicubic").numpy() / size**0.7
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min()) * 255
    grain = random.standard_normal(smooth.shape) * 9
    return tf.constant(np.clip(smooth + grain, 0, 255).astype(np.uint8))


WORKLOADS: Dict[str, Callable[[], Workload]] = {
    "convolution": convolution,
    "matmul": matmul,
    "elementwise": elementwise,
    "jpeg": Jpeg,
}
