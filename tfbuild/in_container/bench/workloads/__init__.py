"""The work that is timed. Functions marked with @workload build it from a row's parameters.

Inputs are arguments and results are fetched, because TensorFlow would fold constants away; a pipeline gets a fresh
iterator for each sample (see ../worker.py).
"""

import importlib
import os
import pkgutil
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Timing = tuple[float, float, int]  # seconds by the clock, seconds of this process's CPU time, its page faults

_WORKLOADS: dict[str, Callable[..., Any]] = {}


def workload(make: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function that builds a workload under its name."""
    _WORKLOADS[make.__name__] = make
    return make


def registered() -> dict[str, Callable[..., Any]]:
    """Return the workloads by name, of all modules in this folder."""
    for module in pkgutil.iter_modules([os.path.dirname(os.path.abspath(__file__))]):
        importlib.import_module(__name__ + "." + module.name)
    return _WORKLOADS


def passed(begin: Timing = (0.0, 0.0, 0)) -> Timing:
    """Return what has passed since an earlier answer of this function."""
    wall, cpu, faults = time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return wall - begin[0], cpu - begin[1], faults - begin[2]


class Work:
    """Work to be timed. `items`: units of work in a call; `note`: what the reader must know about the result.

    `error`: relative root mean square error against a reference; None if there is no reference.
    """

    items = 1
    note = ""
    error: float | None = None

    def call(self) -> None:
        """Do the work once."""
        raise NotImplementedError

    def sample(self, inner: int) -> Timing:
        """Time `inner` calls."""
        begin = passed()
        for _ in range(inner):
            self.call()
        return passed(begin)

    def traces(self) -> int:
        """Return how often TensorFlow has traced it, which must stay 1."""
        return 1

    def value(self) -> Any:
        """Return the result, to compare arms that claim to compute the same; None if it cannot be compared."""
        return None

    def graph(self) -> Any:
        """Return TensorFlow's graph of it; None if it has no single one."""
        return None

    def nodes(self) -> int:
        """Return the size of its graph."""
        graph = self.graph()
        return len(graph.get_operations()) if graph is not None else 0


class FunctionWork(Work):
    """A tf.function that takes tensors and returns a scalar; a call does `items` units of work.

    `comparable`: its value can be compared with other arms', as it does not depend on random weights.
    """

    def __init__(
        self, body: Callable[..., Any], *inputs: Any, items: int = 1, comparable: bool = True, xla: bool = False
    ) -> None:
        self.function = tf.function(body, jit_compile=xla or None)
        self.inputs, self.items, self.comparable = inputs, items, comparable

    def call(self) -> None:
        self.function(*self.inputs).numpy()

    def traces(self) -> int:
        return int(self.function.experimental_get_tracing_count())

    def value(self) -> Any:
        return float(self.function(*self.inputs)) if self.comparable else None

    def graph(self) -> Any:
        return self.function.get_concrete_function(*self.inputs).graph


def normal(seed: int, *shape: int) -> Any:
    """Return normally distributed float32 numbers, the same for a seed."""
    return tf.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
