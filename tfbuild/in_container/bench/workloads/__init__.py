"""What is timed. Each module's functions that are marked with @workload build one, out of the row's parameters.

Inputs are arguments and results are fetched; a pipeline gets a fresh iterator a sample (see validity.py).
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
    """The workloads of all modules in this folder that this Python and this TensorFlow can import, by name."""
    for module in pkgutil.iter_modules([os.path.dirname(os.path.abspath(__file__))]):
        try:
            importlib.import_module(__name__ + "." + module.name)
        except Exception as error:  # any: of TensorFlow's, NumPy's or Python's own
            _MISSING[module.name] = error
    return _KNOWN


def missing() -> str:
    """Which modules could not be imported and why, in words; or nothing."""
    told = ["{}.py: {}: {}".format(name, type(error).__name__, error) for name, error in _MISSING.items()]
    return " ({})".format("; ".join(told)) if told else ""


class Work(Workload):
    """`items`: units of work in a call; `note`: what the reader must know of this one's result."""

    items = 1
    note = ""

    def value(self) -> Any:
        """What it computes, where others that claim the same can be compared by it."""
        return None

    def error(self) -> Any:
        """Against a reference, relative root mean square."""
        return None

    def nodes(self) -> int:
        graph = self.graph()
        return len(graph.get_operations()) if graph is not None else 0

    def graph(self) -> Any:
        return None


class Function(Traced, Work):
    """A tf.function of tensors that returns one scalar, `items` units of work."""

    def __init__(self, body: Callable[..., Any], *inputs: Any, items: int = 1, **options: Any) -> None:
        super().__init__(body, *inputs, **options)
        self.items = items

    def value(self) -> float:
        return float(self.function(*self.inputs))

    def graph(self) -> Any:
        return self.function.get_concrete_function(*self.inputs).graph
