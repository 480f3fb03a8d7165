"""Known failures of a release's build, their fixes, and causes of any build's: facts/failures.toml, causes.toml."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Literal

from tfbuild import facts
from tfbuild.cpu import compilers
from tfbuild.errors import UsageError
from tfbuild.facts import Facts, releases
from tfbuild.facts.release_table import Sourced, base, version
from tfbuild.facts.toolchains import Distribution
from tfbuild.plan.cuda import Capability, by_nvcc

# The first words of a note about a failure that is expected and has no fix.
KNOWN_TO_FAIL = "known to fail"
CONDITION = re.compile(r"(>=|<|==)([\d.]+)")


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
    when: Mapping[Literal["compiler", "libstdcxx", "glibc", "bazel", "cuda", "gpu"], str] = {}
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    arch: Literal["", "x86_64", "aarch64"] = ""
    nvcc: bool | None = None
    flags: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    untried: bool = False

    @property
    def fixed(self) -> bool:
        """Whether tfbuild has a fix, which builds get."""
        return bool(self.flags or self.edits)

    def matches(self, log: str) -> bool:
        """Whether a line of the log shows this failure."""
        return bool(self.match and re.search(self.match, log, re.MULTILINE))

    @property
    def expected(self) -> bool:
        """Whether a build that it concerns is expected to fail."""
        return not self.fixed and not self.untried and bool(self.compiler or self.nvcc or self.when)


class Cause(Facts, frozen=True, kw_only=True):
    """Why a build failed, by its last lines; facts/causes.toml explains the fields. The first that fits counts."""

    patterns: tuple[str, ...]
    error: str
    message: str
    hint: str


causes = partial(facts.rows, "causes", Cause)


def known_failures(release: str) -> tuple[Failure, ...]:
    """Return all known failures of a release, whatever it is built with."""
    return releases.rows(facts.rows("failures", Failure), release)


@lru_cache(maxsize=2**12)
def concerning(
    release: str,
    *,
    target: str,
    arch: str,
    compiler: str,
    features: tuple[str, ...] = (),
    debian: Distribution | None = None,
    glibc: str = "",
    gpus: tuple[Capability, ...] = (),
    bazel: str = "",
    cuda: str = "",
    nvcc: bool = False,
) -> tuple[Failure, ...]:
    """Return the known failures of a build under these conditions.

    `debian`: the base's release, None if it is not known; `glibc`: that of a machine in a base's place, else the
    base's. `bazel`, `cuda`: "" for the release's own Bazel and what is not known. `nvcc`: whether it is named.
    """
    name, number = compilers.parse_compiler(compiler)
    versions = {
        "compiler": [str(number)],
        "libstdcxx": [str(number)] if name == "gcc" else [str(debian.libstdcxx)] if debian else [],
        "glibc": [glibc] if glibc else [debian.glibc] if debian else [],
        "bazel": [bazel or "0"],
        "cuda": [cuda or "0"],
        "gpu": [gpu.figure for gpu in gpus],
    }

    def concerns(row: Failure) -> bool:
        return (
            row.compiler in ("", name)
            and (not row.features or bool(set(row.features) & set(features)))
            and (not row.targets or target in row.targets)
            and row.arch in ("", arch)
            and row.nvcc in (None, nvcc or by_nvcc(gpus, compiler))
            and all(not (own := versions[key]) or any(meets(one, at) for one in own) for key, at in row.when.items())
        )

    return tuple(row for row in known_failures(release) if concerns(row))


def meets(number: str, condition: str) -> bool:
    """Whether a version meets a condition such as ">=12,<14"; a candidate of 14 is not below 14.

    As packaging.specifiers has it, whose import takes longer than a plan.
    """
    own, bounds = version(number), {sign: version(bound) for sign, bound in CONDITION.findall(condition)}
    below = "<" not in bounds or base(number) < bounds["<"]
    return below and own >= bounds.get(">=", own) and own == bounds.get("==", own)


def left_out(rows: tuple[Failure, ...], without: Iterable[str]) -> tuple[Failure, ...]:
    """Return the failures without those whose fix the user declines; raises UsageError for one that has no fix here."""
    fixes = [row.id for row in rows if row.fixed]
    if unknown := [name for name in without if name not in fixes]:
        raise UsageError(
            f"--without-fix {unknown[0]}: this build gets no such fix",
            hint=f"it gets: {', '.join(fixes)}" if fixes else "it gets none: leave it out",
        )
    return tuple(row for row in rows if not (row.fixed and row.id in without))


def failure_notes(rows: Iterable[Failure], glibc: str = "") -> Iterator[str]:
    """Yield the notes of a plan: each fix with its reason, and expected failures. `glibc` is "" if not known."""
    for row in rows:
        if row.fixed:
            fix = ", ".join([*row.flags, *(f"an edit of {edit.files}" for edit in row.edits)])
            yield f"fix {row.id}: {row.symptom}: {fix}"
        elif row.expected:
            unknown = [] if glibc else [name for name in row.when if name in ("glibc", "libstdcxx")]
            condition = "".join(f" if the base has {name.replace('xx', '++')} {row.when[name]}" for name in unknown)
            yield f"{KNOWN_TO_FAIL}{condition} ({row.id}): {row.symptom}; workaround: {row.workaround}"
        elif row.untried:
            yield f"not certain ({row.id}): {row.symptom}; workaround: {row.workaround}"
