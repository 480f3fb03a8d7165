"""The work that is timed. Functions marked with @workload build it from a row's parameters.

Inputs are arguments and results are fetched; a pipeline gets a fresh iterator for each sample (see validity.py).
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from typing import Any

from ..base import Traced, Workload

_KNOWN: dict[str, Callable[..., Any]] = {}
_MISSING: dict[str, Exception] = {}


def workload(make: Callable[..., Any]) -> Callable[..., Any]:
    _KNOWN[make.__name__] = make
    return make


def registered() -> dict[str, Callable[..., Any]]:
    """Return the workloads by name, of all modules in this folder that this Python and TensorFlow can import."""
    for module in pkgutil.iter_modules([os.path.dirname(os.path.abspath(__file__))]):
        try:
            importlib.import_module(__name__ + "." + module.name)
        except Exception as error:  # of TensorFlow, NumPy or Python
            _MISSING[module.name] = error
    return _KNOWN


def missing() -> str:
    """Say which modules could not be imported and why; "" if all could."""
    reasons = ["{}.py: {}: {}".format(name, type(error).__name__, error) for name, error in _MISSING.items()]
    return " ({})".format("; ".join(reasons)) if reasons else ""


class Work(Workload):
    """`items`: units of work in a call; `note`: what the reader must know about the result."""

    items = 1
    note = ""

    def value(self) -> Any:
        """Return the result, to compare arms that claim to compute the same; None if it cannot be compared."""
        return None

    def error(self) -> Any:
        """Return the relative root mean square error against a reference; None if there is no reference."""
        return None

    def nodes(self) -> int:
        graph = self.graph()
        return len(graph.get_operations()) if graph is not None else 0

    def graph(self) -> Any:
        return None


class FunctionWork(Traced, Work):
    """A tf.function that takes tensors and returns a scalar; a call does `items` units of work."""

    def __init__(self, body: Callable[..., Any], *inputs: Any, items: int = 1, **options: Any) -> None:
        super().__init__(body, *inputs, **options)
        self.items = items

    def value(self) -> float:
        return float(self.function(*self.inputs))

    def graph(self) -> Any:
        return self.function.get_concrete_function(*self.inputs).graph
