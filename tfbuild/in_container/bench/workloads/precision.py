"""The same matrix product in float32, bfloat16 and int8, with its error as well as its speed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from ...smoke.probes import cpu
from ..base import normal
from ..validity import Unfit
from . import FunctionWork, Work, workload

# The kernel's names of features that multiply bfloat16; without one of them TensorFlow converts to float32 and back.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


def error(result: Any, reference: Any) -> float:
    """Return the root mean square of the difference, relative to that of the reference."""
    return float(np.sqrt(np.mean((result - reference) ** 2)) / np.sqrt(np.mean(reference**2)))


@workload
def product(dtype: str = "float32", rows: int = 64, size: int = 2048) -> FunctionWork:
    """[rows, size] x [size, size]; the operands are of `dtype` already, the result is summed in float32."""
    if dtype == "bfloat16" and not set(BFLOAT16) & set(cpu()[0]):
        raise Unfit("this CPU has no instructions for bfloat16 ({})".format(", ".join(BFLOAT16)))
    x, w = normal(1, rows, size), normal(2, size, size) / size**0.5
    reference = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64)
    operands = tf.cast(x, dtype), tf.cast(w, dtype)
    work = FunctionWork(lambda a, b: tf.reduce_sum(tf.cast(tf.matmul(a, b), tf.float32)), *operands, items=rows)
    difference = error(tf.cast(tf.matmul(*operands), tf.float32).numpy(), reference)
    work.error = lambda: difference  # type: ignore[method-assign]
    work.value = lambda: None  # type: ignore[method-assign]
    return work


class Lite(Work):
    """A TFLite model of one dense layer."""

    def __init__(self, model: bytes, x: Any, reference: Any, items: int) -> None:
        threads = len(os.sched_getaffinity(0))
        self.interpreter = tf.lite.Interpreter(model_content=model, num_threads=threads)
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]["index"]
        self.output = self.interpreter.get_output_details()[0]["index"]
        self.x, self.items = x, items
        self.note = f"the model has {len(model) / 1e6:.1f} MB, {threads} threads"
        self.call()
        self.difference = error(self.interpreter.get_tensor(self.output), reference)

    def call(self) -> None:
        self.interpreter.set_tensor(self.input, self.x)
        self.interpreter.invoke()
        self.interpreter.get_tensor(self.output)

    def error(self) -> float:
        return self.difference


@workload
def lite(quantised: bool = True, full: bool = False, rows: int = 64, size: int = 2048) -> Lite:
    """The same product as a TFLite model with float32 weights, or int8 weights and dynamic ranges. `full`: calibrate
    the ranges beforehand on the same input, so that the model is int8 from end to end inside."""
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
