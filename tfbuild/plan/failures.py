"""What is known to go wrong with a release, and the fixes that a build gets by itself: facts/failures.toml."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from tfbuild import facts
from tfbuild.cpu import compilers
from tfbuild.errors import UsageError
from tfbuild.facts import Facts, releases, targets
from tfbuild.facts.release_table import Sourced, check_ranges, version
from tfbuild.facts.toolchains import Distribution


class Edit(Facts, frozen=True, kw_only=True):
    """Replaces `find` wherever it stands in the files of a pattern, relative to the tree's root."""

    files: str
    find: str
    replace: str


class Failure(Sourced, frozen=True, kw_only=True):
    """One way to fail, and what helps; the file says what each condition means. `match`: in a line of the log."""

    id: str
    symptom: str
    workaround: str
    match: str = ""
    compiler: Literal["", "gcc", "clang"] = ""
    compiler_from: int = 0
    compiler_before: int = 0
    libstdcxx: int = 0
    glibc: str = ""
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    patch: bool = False
    edits: tuple[Edit, ...] = ()

    @property
    def key(self) -> str:
        return self.id

    @property
    def fixed(self) -> bool:
        return bool(self.flags or self.patch or self.edits)

    @property
    def fix(self) -> str:
        """What the fix is, in a few words."""
        parts = [
            " ".join(self.flags),
            f"the patch {self.id}.patch" if self.patch else "",
            *(f"an edit of {edit.files}" for edit in self.edits),
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a build is made with; `base`: the Debian release under it, None where that is not known."""

    release: str
    target: str
    compiler: str
    features: tuple[str, ...]
    base: Distribution | None = None


class FailureTable(Facts, frozen=True, kw_only=True):
    failure: tuple[Failure, ...]


@cache
def table() -> FailureTable:
    """The facts, read and checked once a process."""
    found: FailureTable = facts.load("failures", FailureTable)
    for key in {row.id for row in found.failure}:
        check_ranges(f"failures.toml: {key}", [row for row in found.failure if row.id == key])
    for row in found.failure:
        if unknown := set(row.targets) - set(targets.names()):
            raise ValueError(f"failures.toml: {row.id}: there is no target {unknown.pop()!r}")
        try:
            re.compile(row.match)
        except re.error as error:
            raise ValueError(f"failures.toml: {row.id}: match is no regular expression: {error}") from error
    return found


def known(release: str) -> tuple[Failure, ...]:
    """All that is known to go wrong with a release, whatever it is built with."""
    return releases.rows(table().failure, release)


def concerning(made: Circumstances, without: Iterable[str] = ()) -> tuple[Failure, ...]:
    """What is known to go wrong under these circumstances; `without`: ids that the user does not want fixed.

    Raises UsageError where one of those is no fix of this build.
    """
    found = tuple(row for row in known(made.release) if _concerns(row, made))
    fixes = [row.id for row in found if row.fixed]
    if unknown := [name for name in without if name not in fixes]:
        raise UsageError(
            f"--without-fix {unknown[0]}: this build gets no such fix",
            hint=f"it gets: {', '.join(fixes)}" if fixes else "it gets none: leave it out",
        )
    return tuple(row for row in found if not (row.fixed and row.id in without))


def _concerns(row: Failure, made: Circumstances) -> bool:
    name, number = compilers.find(made.compiler)
    library = number if name == "gcc" else made.base.libstdcxx if made.base else None
    return (
        row.compiler in ("", name)
        and row.compiler_from <= number
        and (not row.compiler_before or number < row.compiler_before)
        and (library is None or row.libstdcxx <= library)
        and (not row.glibc or made.base is None or version(row.glibc) <= version(made.base.glibc))
        and (not row.features or bool(set(row.features) & set(made.features)))
        and (not row.targets or made.target in row.targets)
    )


def notes(rows: Iterable[Failure]) -> tuple[str, ...]:
    """What a plan says of them: each fix with its reason, and what a compiler is known to fail at without one."""
    return tuple(
        f"fix {row.id}: {row.symptom}: {row.fix}"
        if row.fixed
        else f"known to fail ({row.id}): {row.symptom}; what helps: {row.workaround}"
        for row in rows
        if row.fixed or row.compiler
    )


def matching(release: str, log: str) -> tuple[Failure, ...]:
    """The failures of a release that a line of the log tells of."""
    return tuple(row for row in known(release) if row.match and re.search(row.match, log, re.MULTILINE))


def edits(rows: Iterable[Failure]) -> str:
    """What templates/edit.py is given."""
    found = [{"fix": row.id, **msgspec.to_builtins(edit)} for row in rows for edit in row.edits]
    return json.dumps(found, indent=2) + "\n"
