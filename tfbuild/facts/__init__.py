"""The only reader of the facts: rows in TOML beside this file, validated against a type as they are read.

A row with an unknown key, a missing key or a value of the wrong type is refused with its table and position, so a slip
in a fact cannot become a wrong build.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from tfbuild.errors import Unsupported

T = TypeVar("T")
FOLDER = Path(__file__).parent


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table and row: immutable, with named fields only, and no unknown keys."""


class Feature(Facts, frozen=True):
    """One CPU feature; the file explains each field. `arch` is the table that the row is in."""

    name: str
    arch: str = ""
    flag: str = ""
    macro: str = ""
    gcc: int = 0
    clang: int = 0
    kernel: str | None = None
    word: str = ""
    implies: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    cpuid: str = ""
    registers: bool = False
    tensorflow: str = ""
    relevant: bool = False
    unless: str = ""
    left_out: str = ""
    use: bool = True

    @property
    def cpuinfo(self) -> str:
        """The name in Linux's /proc/cpuinfo; empty if no kernel prints this feature."""
        return self.name if self.kernel is None else self.kernel


class Level(Facts, frozen=True):
    """A psABI or Arm architecture level. In the file, `features` are those that it adds to the level it `includes`.

    `names`: whether sets of features are named after it, and compiled by its -march; else it is a word of --cpu alone.
    """

    name: str
    march: str
    features: frozenset[str]
    arch: str = ""
    gcc: int = 0
    clang: int = 0
    includes: str = ""
    variant: str = ""
    names: bool = False


class Architecture(Facts, frozen=True):
    """What CPUs of one architecture may have."""

    feature: tuple[Feature, ...]
    level: tuple[Level, ...]


def parse(text: str, kind: type[T], origin: str) -> T:
    """Read facts from TOML text; raises ValueError with `origin`, the table and the row that does not fit `kind`."""
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{origin}: {error}") from error


def load(name: str, kind: type[T]) -> T:
    """Return the file ``NAME.toml`` as `kind`; it is read once a process."""
    return cast(T, _load(name, kind))  # type: ignore[arg-type]


@cache  # it loses the types, which load() restores
def _load(name: str, kind: type) -> object:
    file = FOLDER / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), kind, file.name)


def rows(name: str, kind: type[T]) -> tuple[T, ...]:
    """Return the rows of the file ``NAME.toml``, which has one table of them; it is read once a process."""
    tables = cast(dict[str, tuple[T, ...]], _load(name, dict[str, tuple[kind, ...]]))  # type: ignore[valid-type]
    (rows,) = tables.values()
    return rows


@cache
def _by_name() -> dict[str, Feature]:
    return {row.name: row for row in features()}


@cache
def _by_spelling() -> dict[tuple[str, str], Feature]:
    others = {
        (row.arch, squeeze(name)): row
        for row in features()
        for name in (*row.aliases, row.cpuinfo or row.name, row.word or row.name)
    }
    return others | {(row.arch, squeeze(row.name)): row for row in features()}


def squeeze(name: str) -> str:
    """Drop what spellings differ in: squeeze("AVX-512 VNNI") is "avx512vnni"."""
    return re.sub(r"[-_.\s]", "", name).lower()


# The tables of facts/features.toml by architecture: "x86_64", "aarch64".
architectures = partial(load, "features", dict[str, Architecture])


@cache
def features(arch: str = "") -> tuple[Feature, ...]:
    """Return all features, or those of one architecture ("x86_64", "aarch64"), in the file's order."""
    return tuple(
        msgspec.structs.replace(row, arch=name)
        for name, table in architectures().items()
        if arch in ("", name)
        for row in table.feature
    )


def feature(name: str) -> Feature:
    """Return the feature of that canonical name; raises Unsupported if there is none."""
    if name not in _by_name():
        raise Unsupported(f"unknown CPU feature {name!r}")
    return _by_name()[name]


def cpuinfo_names(features: Iterable[str]) -> tuple[str, ...]:
    """Return features by their names in /proc/cpuinfo, sorted, without those that no kernel prints."""
    return tuple(sorted(name for name in (feature(name).cpuinfo for name in features) if name))


def closure(names: Iterable[str]) -> frozenset[str]:
    """Return the features with all that they need (``avx512f`` needs ``fma``: GCC refuses Eigen without it)."""
    return _closure(frozenset(names))


@cache
def _closure(names: frozenset[str]) -> frozenset[str]:
    closed: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in closed:
            closed.add(name)
            row = feature(name)
            todo.extend((*row.implies, *row.needs))
    return frozenset(closed)


def spelled(name: str, arch: str) -> Feature | None:
    """Return the feature that some tool spells `name` on `arch`, or None."""
    return _by_spelling().get((arch, squeeze(name)))


def levels(arch: str) -> tuple[Level, ...]:
    """Return the levels of one architecture that name sets, smallest first."""
    return tuple(row for row in every_level(arch) if row.names)


@cache
def every_level(arch: str) -> tuple[Level, ...]:
    """Return all levels of one architecture, smallest first, each with the features of those that it includes."""
    full: dict[str, Level] = {}
    for row in architectures()[arch].level if arch in architectures() else ():
        below = full[row.includes].features if row.includes else frozenset[str]()
        full[row.name] = msgspec.structs.replace(row, arch=arch, features=below | row.features)
    return tuple(full.values())


def level(name: str, arch: str) -> Level | None:
    """Return the level of `arch` that some tool spells `name`, or None."""
    wanted = squeeze(name)
    return next((row for row in every_level(arch) if squeeze(row.name) == wanted), None)
