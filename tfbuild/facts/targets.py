"""The targets that an image can be made for: the typed view on facts/targets.toml."""

import re
from functools import partial
from typing import Literal

import msgspec

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts


class Target(Facts, frozen=True, kw_only=True):
    """One target; the file explains each field."""

    name: str
    title: str
    also: tuple[str, ...] = ()
    default: bool = False
    matrix: bool = False
    accelerator: str = ""
    onednn: bool = False
    configs: tuple[str, ...] = ()
    configs_unless_gone: tuple[str, ...] = ()
    answers: dict[str, str] = msgspec.field(default_factory=dict)
    wheel: Literal["", "cpu", "gpu"] = ""
    linux_only: str = ""
    checks: tuple[str, ...] = ()
    asked_by: str = ""

    @property
    def cuda(self) -> bool:
        """Whether the release's facts about CUDA apply."""
        return self.accelerator == "cuda"

    def column(self, cpu: str, gpu: str) -> str:
        """Return `cpu` or `gpu`, whichever kind of wheel the target has; "" if it has none."""
        return {"": "", "cpu": cpu, "gpu": gpu}[self.wheel]


class Exclusion(Facts, frozen=True, kw_only=True):
    """Targets that cannot be in one build."""

    targets: tuple[str, ...]
    reason: str


class TargetTable(Facts, frozen=True, kw_only=True):
    """The tables of facts/targets.toml."""

    target: tuple[Target, ...]
    exclusion: tuple[Exclusion, ...]


target_table = partial(facts.load, "targets", TargetTable)


def names() -> tuple[str, ...]:
    """Return all targets, in the file's order."""
    return tuple(row.name for row in target_table().target)


def find_target(name: str) -> Target | None:
    """Return the target of that name, or None if there is none."""
    return next((row for row in target_table().target if row.name == name), None)


def named(word: str) -> str:
    """Return the target that people mean by a word, its name or another one; "" if there is none."""
    return next((row.name for row in target_table().target if word in (row.name, *row.also)), "")


def get(name: str) -> Target:
    """Return the target of that name; raises UsageError with the meant name, or all names."""
    if (target := find_target(name)) is None:
        hint = f"--target {near}" if (near := named(name)) else f"one of: {', '.join(names())}"
        raise UsageError(f"unknown target {name!r}", hint=hint)
    return target


def default() -> str:
    """Return the target that is planned if none is requested."""
    return next(row.name for row in target_table().target if row.default)


def matrix_targets() -> tuple[str, ...]:
    """Return the targets for which `invoke matrix` makes rows if none is requested."""
    return tuple(row.name for row in target_table().target if row.matrix)


def spelled() -> str:
    """Return all targets in words for the help, with titles that say more: cpu, mkl (oneDNN) or cuda."""
    *first, last = (
        row.name if row.title.lower() == row.name else f"{row.name} ({row.title})" for row in target_table().target
    )
    return f"{', '.join(first)} or {last}"


def choosing(fits: str) -> str:
    """Return the options that choose a target whose field `fits` is true, for a hint: ``--target mkl``."""
    return " or ".join(f"--target {row.name}" for row in target_table().target if getattr(row, fits))


def exclusions(words: tuple[str, ...]) -> tuple[Exclusion, ...]:
    """Return the exclusions whose targets are all requested by some of `words`, in lower case."""
    forms = {row.name: row.asked_by or re.escape(row.name) for row in target_table().target}
    requested = {name for name, form in forms.items() if any(re.search(form, word) for word in words)}
    return tuple(row for row in target_table().exclusion if requested.issuperset(row.targets))
