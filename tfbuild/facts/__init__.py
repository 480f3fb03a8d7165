"""The only reader of the facts: rows in TOML beside this file, validated against a type on the way in.

A row that has an unknown key, lacks a needed one or has the wrong type is refused with its table and position, so a
slip in a fact cannot become a wrong build.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar, cast

import msgspec

from tfbuild.errors import UnknownCpu

T = TypeVar("T")


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table and row: immutable, named fields only, no key that the type does not know."""


class Feature(Facts, frozen=True):
    """One CPU feature. `flag` is the compiler's switch (x86-64) or the extension behind ``-march=LEVEL+`` (aarch64);
    `gcc` and `clang` are the first major versions that know it; `implies` is what every compiler
    switches on with it, `needs` what only some do; `cpuid` is its bit, e.g. ``7.0.ebx.5`` (x86-64).
    """

    name: str
    arch: str
    flag: str
    macro: str
    gcc: int
    clang: int
    kernel: str | None = None
    implies: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    cpuid: str = ""
    tensorflow: str = ""
    use: bool = True

    @property
    def cpuinfo(self) -> str:
        """The name in Linux's /proc/cpuinfo; empty where no kernel prints this feature."""
        return self.name if self.kernel is None else self.kernel


class Level(Facts, frozen=True):
    """A psABI or Arm architecture level; `features` are those it adds to the level that it `includes`."""

    name: str
    march: str
    arch: str
    gcc: int
    clang: int
    features: tuple[str, ...]
    includes: str = ""


class FeatureTable(Facts, frozen=True):
    feature: tuple[Feature, ...]
    level: tuple[Level, ...]


def parse(text: str, kind: type[T], origin: str) -> T:
    """Facts out of TOML text; ValueError names `origin`, the table and the row that does not fit `kind`."""
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{origin}: {error}") from error


def load(name: str, kind: type[T]) -> T:
    """The file ``NAME.toml`` as `kind`; read once a process."""
    return cast(T, _load(name, kind))  # type: ignore[arg-type]


@cache  # which forgets types
def _load(name: str, kind: type) -> object:
    file = resources.files(__name__) / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), kind, file.name)


@cache
def _by_name() -> dict[str, Feature]:
    return {f.name: f for f in load("features", FeatureTable).feature}


@cache
def _by_spelling() -> dict[tuple[str, str], Feature]:
    rows = load("features", FeatureTable).feature
    found = {(f.arch, squeeze(s)): f for f in rows for s in (*f.aliases, f.cpuinfo or f.name)}
    return found | {(f.arch, squeeze(f.name)): f for f in rows}


def squeeze(name: str) -> str:
    """A spelling with everything dropped that the world's spellings differ in: case, '-', '_' and '.'."""
    return re.sub(r"[-_.\s]", "", name).lower()


def features(arch: str = "") -> tuple[Feature, ...]:
    """All features, or those of one architecture ("x86_64", "aarch64"), in the file's order."""
    return tuple(f for f in load("features", FeatureTable).feature if arch in ("", f.arch))


def feature(name: str) -> Feature:
    """The feature of that canonical name; UnknownCpu where there is none."""
    if name not in _by_name():
        raise UnknownCpu(f"unknown CPU feature {name!r}")
    return _by_name()[name]


def closure(names: Iterable[str]) -> frozenset[str]:
    """The features with all that they need (``avx512f`` needs ``fma``: GCC refuses Eigen without it)."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            row = feature(name)
            todo.extend((*row.implies, *row.needs))
    return frozenset(found)


def spelled(name: str, arch: str) -> Feature | None:
    """The feature that some tool spells `name` on `arch`, or None."""
    return _by_spelling().get((arch, squeeze(name)))


@dataclass(frozen=True, kw_only=True)
class FullLevel:
    """A level with everything that it and the levels below it contain."""

    name: str
    march: str
    arch: str
    gcc: int
    clang: int
    features: frozenset[str]


@cache
def levels(arch: str) -> tuple[FullLevel, ...]:
    """The levels of one architecture, smallest first."""
    found: dict[str, FullLevel] = {}
    for row in load("features", FeatureTable).level:
        below = found[row.includes].features if row.includes else frozenset[str]()
        found[row.name] = FullLevel(
            name=row.name,
            march=row.march,
            arch=row.arch,
            gcc=row.gcc,
            clang=row.clang,
            features=below | frozenset(row.features),
        )
    return tuple(level for level in found.values() if level.arch == arch)
