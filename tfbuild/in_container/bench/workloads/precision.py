"""Fewer bits: the same matrix product in float32, bfloat16 and int8, with its error beside its speed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from ...smoke.probes import cpu
from ..base import normal
from ..validity import Unfit
from . import Function, Work, workload

# The kernel's names of what multiplies bfloat16; without one TensorFlow converts to float32 and back.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


def error(found: Any, wanted: Any) -> float:
    """Root mean square of the difference, of the reference's own."""
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / np.sqrt(np.mean(wanted**2)))


@workload
def product(dtype: str = "float32", rows: int = 64, size: int = 2048) -> Function:
    """[rows, size] x [size, size]; operands are of `dtype` already, the result is summed in float32."""
    if dtype == "bfloat16" and not set(BFLOAT16) & set(cpu()[0]):
        raise Unfit("this CPU has no instructions for bfloat16 ({})".format(", ".join(BFLOAT16)))
    x, w = normal(1, rows, size), normal(2, size, size) / size**0.5
    wanted = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64)
    few = tf.cast(x, dtype), tf.cast(w, dtype)
    made = Function(lambda a, b: tf.reduce_sum(tf.cast(tf.matmul(a, b), tf.float32)), *few, items=rows)
    lost = error(tf.cast(tf.matmul(*few), tf.float32).numpy(), wanted)
    made.error = lambda: lost  # type: ignore[method-assign]
    made.value = lambda: None  # type: ignore[method-assign]
    return made


class Lite(Work):
    """A TFLite model of one dense layer."""

    def __init__(self, model: bytes, x: Any, wanted: Any, items: int) -> None:
        threads = len(os.sched_getaffinity(0))
        self.interpreter = tf.lite.Interpreter(model_content=model, num_threads=threads)
        self.interpreter.allocate_tensors()
        self.given = self.interpreter.get_input_details()[0]["index"]
        self.got = self.interpreter.get_output_details()[0]["index"]
        self.x, self.items = x, items
        self.note = f"the model has {len(model) / 1e6:.1f} MB, {threads} threads"
        self.call()
        self.lost = error(self.interpreter.get_tensor(self.got), wanted)

    def call(self) -> None:
        self.interpreter.set_tensor(self.given, self.x)
        self.interpreter.invoke()
        self.interpreter.get_tensor(self.got)

    def error(self) -> float:
        return self.lost


@workload
def lite(quantised: bool = True, full: bool = False, rows: int = 64, size: int = 2048) -> Lite:
    """The same product as a TFLite model: float32 weights, or int8 weights with dynamic ranges; `full`: with ranges
    that were found beforehand, on the very input, so that its inside is int8 from end to end."""
    if not hasattr(tf, "lite"):
        raise Unfit("this release has no TFLite")
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
