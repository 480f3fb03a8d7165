"""Known failures of a release's build, and the fixes that builds get automatically: facts/failures.toml."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tfbuild import facts
from tfbuild.cpu import compilers
from tfbuild.errors import UsageError
from tfbuild.facts import Facts, releases
from tfbuild.facts.release_table import Sourced, version
from tfbuild.facts.toolchains import Distribution
from tfbuild.plan.cuda import Capability, by_nvcc


class Edit(Facts, frozen=True, kw_only=True):
    """Replace `find` wherever it occurs in the files that match a pattern, relative to the tree's root."""

    files: str
    find: str
    replace: str


class Failure(Sourced, frozen=True, kw_only=True):
    """One known failure and its workaround; the file explains the conditions. `match` finds it in a line of the log."""

    KEY = "id"
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
    arch: Literal["", "x86_64", "aarch64"] = ""
    nvcc: bool = False
    cuda_from: str = ""
    cuda_before: str = ""
    bazel_from: str = ""
    flags: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    untried: bool = False

    @property
    def fixed(self) -> bool:
        """Whether builds get a fix for it."""
        return bool(self.flags or self.edits)

    def matches(self, log: str) -> bool:
        """Whether a line of the log shows this failure."""
        return bool(self.match and re.search(self.match, log, re.MULTILINE))

    @property
    def expected(self) -> bool:
        """Whether a build that it concerns is expected to fail."""
        return not self.fixed and not self.untried and bool(self.compiler or self.nvcc)

    @property
    def fix(self) -> str:
        """A short description of the fix."""
        parts = [" ".join(self.flags), *(f"an edit of {edit.files}" for edit in self.edits)]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """The conditions of a build that failures depend on. `base`: its Debian release, None if it is not known.

    `machine_glibc`: that of a machine in a base's place, else "".
    `bazel`: the version that builds it, "" for the release's own. `cuda`: the version that it takes, "" where that is
    not known.
    """

    release: str
    target: str
    arch: str
    compiler: str = ""
    features: tuple[str, ...] = ()
    base: Distribution | None = None
    gpus: tuple[Capability, ...] = ()
    bazel: str = ""
    cuda: str = ""
    machine_glibc: str = ""

    @property
    def glibc(self) -> str:
        """The glibc that it is compiled with, "" if it is not known."""
        return self.machine_glibc or (self.base.glibc if self.base else "")


def known(release: str) -> tuple[Failure, ...]:
    """Return all known failures of a release, whatever it is built with."""
    return releases.rows(facts.rows("failures", Failure), release)


def concerning(circumstances: Circumstances, without: Iterable[str] = ()) -> tuple[Failure, ...]:
    """Return the known failures under these circumstances. `without`: ids that the user does not want fixed.

    Raises UsageError if one of those is not a fix of this build.
    """
    rows = tuple(row for row in known(circumstances.release) if _concerns(row, circumstances))
    fixes = [row.id for row in rows if row.fixed]
    if unknown := [name for name in without if name not in fixes]:
        raise UsageError(
            f"without-fix {unknown[0]}: this build gets no such fix",
            hint=f"it gets: {', '.join(fixes)}" if fixes else "it gets none: leave it out",
        )
    return tuple(row for row in rows if not (row.fixed and row.id in without))


def _concerns(row: Failure, build: Circumstances) -> bool:
    name, number = compilers.find(build.compiler)
    library = number if name == "gcc" else build.base.libstdcxx if build.base else None
    return (
        row.compiler in ("", name)
        and row.compiler_from <= number
        and (not row.compiler_before or number < row.compiler_before)
        and (library is None or row.libstdcxx <= library)
        and (not row.glibc or not build.glibc or version(row.glibc) <= version(build.glibc))
        and (not row.features or bool(set(row.features) & set(build.features)))
        and (not row.targets or build.target in row.targets)
        and row.arch in ("", build.arch)
        and (not row.nvcc or by_nvcc(build.gpus, build.compiler))
        and (not row.cuda_from or version(row.cuda_from) <= version(build.cuda or "0"))
        and (not row.cuda_before or version(build.cuda or "0") < version(row.cuda_before))
        and (not row.bazel_from or version(row.bazel_from) <= version(build.bazel or "0"))
    )


def notes(rows: Iterable[Failure], glibc: str = "") -> Iterator[str]:
    """Yield the notes of a plan: each fix with its reason, and expected failures. `glibc` is "" if not known."""
    for row in rows:
        if row.fixed:
            yield f"fix {row.id}: {row.symptom}: {row.fix}"
        elif row.expected:
            condition = f" if the base has glibc {row.glibc} or newer" if row.glibc and not glibc else ""
            yield f"known to fail{condition} ({row.id}): {row.symptom}; workaround: {row.workaround}"
        elif row.untried:
            yield f"not certain ({row.id}): {row.symptom}; workaround: {row.workaround}"
