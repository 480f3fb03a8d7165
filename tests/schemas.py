"""JSON Schema, for the few tests that need it: its import takes longer than most files of tests.

It is imported when it is used: each of pytest-xdist's workers imports every file of tests.
"""

import importlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any


def library() -> Any:
    """Return the module jsonschema."""
    return importlib.import_module("jsonschema")


@cache
def sbom() -> Any:
    """Return CycloneDX's own validator of an SBOM."""
    versions = importlib.import_module("cyclonedx.schema").SchemaVersion
    return importlib.import_module("cyclonedx.validation.json").JsonStrictValidator(versions.V1_6)


def vendored(name: str) -> dict[str, Any]:
    """Return one of check-jsonschema's schemas, for use without that program, which takes three seconds to start."""
    package = importlib.util.find_spec("check_jsonschema")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "builtin_schemas" / "vendor" / f"{name}.json"
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema
