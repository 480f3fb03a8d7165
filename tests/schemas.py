"""JSON Schema, for the few tests that need it: its import takes longer than most files of tests.

It is imported when it is used: each of pytest-xdist's workers imports every file of tests.
"""

import importlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def sbom() -> Any:
    """Return CycloneDX's own validator of an SBOM."""
    versions = importlib.import_module("cyclonedx.schema").SchemaVersion
    return importlib.import_module("cyclonedx.validation.json").JsonStrictValidator(versions.V1_6)


@cache
def vendored(name: str) -> Any:
    """Return a validator by one of check-jsonschema's schemas, without that program, which takes seconds to start."""
    package = importlib.util.find_spec("check_jsonschema")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "builtin_schemas" / "vendor" / f"{name}.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    return importlib.import_module("jsonschema").validators.validator_for(schema)(schema)
