"""What an image can be made for: the typed view on facts/targets.toml."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

import msgspec

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts


class Target(Facts, frozen=True, kw_only=True):
    """One target; the file says what each field means."""

    name: str
    title: str
    default: bool = False
    matrix: bool = False
    accelerator: str = ""
    onednn: bool = False
    configs: tuple[str, ...] = ()
    configs_unless_gone: tuple[str, ...] = ()
    answers: dict[str, str] = msgspec.field(default_factory=dict)
    wheel: Literal["", "cpu", "gpu"] = ""
    baseline: str = ""
    linux_only: str = ""
    checks: tuple[str, ...] = ()
    asked_by: str = ""

    @property
    def cuda(self) -> bool:
        """Whether the release's facts about CUDA apply."""
        return self.accelerator == "cuda"

    def column(self, cpu: str, gpu: str) -> str:
        """That of a fact about wheels which is this target's; "" where none is."""
        return {"": "", "cpu": cpu, "gpu": gpu}[self.wheel]

    def wished(self, words: Iterable[str]) -> bool:
        """Whether one of `words`, in lower case, asks for it."""
        return any(re.search(self.asked_by or re.escape(self.name), word) for word in words)

    @property
    def titled(self) -> str:
        """The name, with what it is for where that says more: mkl (oneDNN)."""
        return self.name if self.title.lower() == self.name else f"{self.name} ({self.title})"


class Exclusion(Facts, frozen=True, kw_only=True):
    """Targets that cannot be in one build."""

    targets: tuple[str, ...]
    reason: str


class TargetTable(Facts, frozen=True, kw_only=True):
    """The file, as it is."""

    target: tuple[Target, ...]
    exclusion: tuple[Exclusion, ...]


@cache
def table() -> TargetTable:
    """The facts, read and checked once a process."""
    found: TargetTable = facts.load("targets", TargetTable)
    check(found)
    return found


def check(found: TargetTable) -> None:
    """ValueError where rows contradict each other or name a target that is none."""
    known = [row.name for row in found.target]
    if len(set(known)) != len(known):
        raise ValueError("targets.toml: two rows have the same name")
    if sum(row.default for row in found.target) != 1:
        raise ValueError("targets.toml: exactly one target is the default")
    named = [*(row.baseline for row in found.target if row.baseline), *(n for x in found.exclusion for n in x.targets)]
    if unknown := sorted(set(named) - set(known)):
        raise ValueError(f"targets.toml: there is no target {unknown[0]!r}")
    for row in found.target:
        try:
            re.compile(row.asked_by)
        except re.error as error:
            raise ValueError(f"targets.toml: {row.name}: asked_by is no regular expression: {error}") from error


def names() -> tuple[str, ...]:
    """All targets, in the file's order."""
    return tuple(row.name for row in table().target)


def find(name: str) -> Target | None:
    """The target of that name, None where there is none."""
    return next((row for row in table().target if row.name == name), None)


def get(name: str) -> Target:
    """The target of that name; UsageError with all names where there is none."""
    if (found := find(name)) is None:
        raise UsageError(f"unknown target {name!r}", hint=f"one of: {', '.join(names())}")
    return found


def default() -> str:
    """The target that is planned where none is asked for."""
    return next(row.name for row in table().target if row.default)


def of_matrix() -> tuple[str, ...]:
    """Those that `invoke matrix` makes rows of where none is asked for."""
    return tuple(row.name for row in table().target if row.matrix)


def spelled(*, titles: bool = False) -> str:
    """All targets in words for the help: cpu, mkl or cuda."""
    *first, last = (row.titled if titles else row.name for row in table().target)
    return f"{', '.join(first)} or {last}"


def options(fits: str) -> str:
    """The options that choose a target with that field, for a hint: ``--target mkl``."""
    return " or ".join(f"--target {row.name}" for row in table().target if getattr(row, fits))


def exclusions(words: tuple[str, ...]) -> tuple[Exclusion, ...]:
    """Those whose targets are all asked for by some of `words`, in lower case."""
    asked = {row.name for row in table().target if row.wished(words)}
    return tuple(row for row in table().exclusion if asked.issuperset(row.targets))
