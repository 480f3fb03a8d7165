"""The input pipeline that verification times: decoding in a way that every release since 2.2 supports."""

from __future__ import annotations

import tensorflow as tf

from . import workload
from .images import CROP, Batches, cropped, pictures


@workload
def jpeg(calls: int = 2, batch: int = 8) -> Batches:
    """Decode, slice and batch with `calls` threads."""
    options = tf.data.Options()
    # The parallelism is fixed; autotuning would change it between samples. (2.4 and older have no such option.)
    if hasattr(options, "autotune"):
        options.autotune.enabled = False
    decoded = (
        tf.data.Dataset.from_tensor_slices(pictures())
        .repeat()
        .map(lambda data: cropped(data, CROP, False), num_parallel_calls=calls)
    )
    return Batches(decoded.batch(batch, drop_remainder=True).prefetch(1).with_options(options), batch)
