"""Base images: the typed view on facts/images.toml."""

import re
from functools import cache

from tfbuild import facts
from tfbuild.errors import Unsupported
from tfbuild.facts import Facts, toolchains
from tfbuild.facts.toolchains import Distribution


class BaseImage(Facts, frozen=True):
    """A registry's image with one Python, on one Debian release. `until`: its last rebuild, "" while it is rebuilt."""

    python: str
    distribution: str
    until: str = ""
    default: bool = False

    @property
    def image(self) -> str:
        return f"python:{self.python}-slim-{self.distribution}"

    @property
    def debian(self) -> Distribution:
        debian = toolchains.distribution(self.distribution)
        assert debian is not None  # a test of the facts
        return debian

    @property
    def bootstrap(self) -> str:
        """The Debian release whose own python3 makes the same base, or "" if its Python is another one."""
        return self.distribution if self.debian.python == self.python else ""


class BaseImageTable(Facts, frozen=True):
    base: tuple[BaseImage, ...]
    variables: dict[str, str]


@cache
def _table() -> BaseImageTable:
    return facts.load("images", BaseImageTable)


def bases() -> tuple[BaseImage, ...]:
    return _table().base


def is_harmless(variable: str, value: str) -> bool:
    """Whether the bases have this variable with such a value, and nothing in an image takes code from it."""
    return bool(re.fullmatch(_table().variables.get(variable, r"(?!)"), value, re.ASCII))


def default() -> BaseImage:
    return next(row for row in bases() if row.default)


def pythons() -> tuple[str, ...]:
    """Return the Pythons that bases have, oldest first."""
    return tuple(dict.fromkeys(row.python for row in bases()))


def with_python(python: str) -> tuple[BaseImage, ...]:
    """Return the bases with that Python, the oldest Debian first; raises Unsupported if there is none."""
    matches = tuple(row for row in bases() if row.python == python)
    if not matches:
        raise Unsupported(
            f"no base image with Python {python} is known", hint=f"one of: {', '.join(pythons())}; or --base NAME"
        )
    return matches


def find(image: str) -> BaseImage | None:
    """Return the base of that name, or None for an image that is not known."""
    return next((row for row in bases() if row.image == image), None)
