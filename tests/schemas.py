"""JSON Schema, for the few tests that need it: its import takes longer than most files of tests."""

import importlib
from typing import Any


def library() -> Any:
    """Return the module jsonschema, imported only now: each of pytest-xdist's workers imports every file of tests."""
    return importlib.import_module("jsonschema")
