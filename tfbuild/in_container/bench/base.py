"""Base classes and inputs of workloads.

Inputs are arguments and results are fetched, because TensorFlow would fold constants away.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Tuple

import numpy as np
import tensorflow as tf

Timing = Tuple[float, float]  # seconds by the clock, seconds of this process's CPU time
BATCHES_DISCARDED = 3
IMAGES = 16


class Workload:
    """Work to be timed. `call` does it once; `traces` is how often TensorFlow has traced it, which must stay 1."""

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
    """A tf.function that takes tensors and returns a scalar."""

    def __init__(self, body: Callable[..., Any], *inputs: Any, **options: Any) -> None:
        self.function = tf.function(body, **options)
        self.inputs = inputs

    def call(self) -> None:
        self.function(*self.inputs).numpy()

    def traces(self) -> int:
        count = getattr(self.function, "experimental_get_tracing_count", None)
        return int(count()) if count else 1


def normal(seed: int, *shape: int) -> Any:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def photographs() -> Any:
    """Return JPEGs with the entropy of photographs (63 KB at 375x500); smooth shapes would decode far too fast."""
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
