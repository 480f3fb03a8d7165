"""The optional parts of tfbuild: what pyproject.toml lists as extras, and what is said where one is missing."""

from collections.abc import Mapping
from importlib.util import find_spec

from tfbuild.errors import UsageError
from tfbuild.util.installation import DISTRIBUTION

# The modules of each extra, and the packages that they come from.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "bench": {"pyperf": "pyperf", "vl_convert": "vl-convert-python"},
    "publish": {"cyclonedx": "cyclonedx-python-lib", "debian": "python-debian", "packageurl": "packageurl-python"},
}


def require(extra: str, purpose: str) -> None:
    """Refuse what needs an extra that is not installed, before anything starts; raises UsageError."""
    missing = [package for module, package in EXTRAS[extra].items() if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"{purpose} needs {', '.join(missing)}, which {DISTRIBUTION}[{extra}] installs",
            hint=f"pip install '{DISTRIBUTION}[{extra}]'",
        )
