"""Select rows for CI: every combination that can be planned, in a stable order."""

import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.version import Version

from tfbuild import facts, plan
from tfbuild.context import dockerfile
from tfbuild.context.dockerfile import recipe_digest
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.facts import Facts, releases, targets, toolchains
from tfbuild.plan import Build, Request
from tfbuild.util import files
from tfbuild.util.quantities import counted

WHEELS = ("official", "source")


class Platform(Facts, frozen=True):
    name: str
    cpus: tuple[str, ...]


class System(Facts, frozen=True):
    """A CI system: the most `jobs` of one matrix, and the most `bytes` of its text."""

    name: str
    jobs: int
    bytes: int
    encoding: str


class Runner(Facts, frozen=True, kw_only=True):
    """A machine that a CI system offers to everybody; `cost`: what it is counted against.

    Gigabytes: `disk`, and `removable`, which software takes that the workflow removes before a compile.
    """

    system: str
    platform: str
    label: str
    disk: int
    removable: int = 0
    cost: str

    def room(self, kind: str) -> int:
        """Return the bytes that a build with this kind of wheel can have."""
        return (self.disk + (self.removable if kind == "source" else 0)) * 10**9


class MatrixTable(Facts, frozen=True):
    platform: tuple[Platform, ...]
    system: tuple[System, ...]
    runner: tuple[Runner, ...]


def table() -> MatrixTable:
    """Return the facts about platforms, CI systems and their machines."""
    return facts.load("matrix", MatrixTable)


@dataclass(frozen=True, kw_only=True)
class MatrixRequest:
    """The values to combine; an empty field means the defaults. `only`: globs, one of which an identifier must match.

    `images`: the platform and instruction set of each of a fleet's images, built from source. They replace the product
    of `wheels`, `platforms` and `cpus`. `builds`: a list in place of all combinations, which must be planned as it is.
    """

    releases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    builds: tuple[Request, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A combination that cannot be planned, and why."""

    request: Request
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """`rows` sorted by release (oldest first), target, Python, platform and identifier; each identifier once."""

    rows: tuple[Build, ...]
    refused: tuple[Refused, ...]


def select(request: MatrixRequest) -> Matrix:
    """Return all combinations that can be planned. Raises UsageError if a value is unknown, or no row is left."""
    if unknown := next((wheel for wheel in request.wheels if wheel not in WHEELS), None):
        raise UsageError(f"unknown wheel {unknown!r}", hint=f"one of: {', '.join(WHEELS)}")
    rows: dict[str, Build] = {}
    refused: list[Refused] = []
    for combination in _combinations(request):
        try:
            build = plan.select(combination, None)
        except TfbuildError as error:
            if request.builds:
                error.reason = f"build {request.builds.index(combination) + 1} of the list: {error.reason}"
                raise
            refused.append(Refused(request=combination, reason=error.reason))
        else:
            _refuse_two_of_one_name(rows.get(build.id, build), build, request.builds)
            rows[build.id] = build
    globs = request.only or ("*",)
    kept = [build for build in rows.values() if any(fnmatchcase(build.id, glob) for glob in globs)]
    if not kept:
        reason = f"--only {' '.join(request.only)} matches none of {len(rows)} rows" if rows else refused[0].reason
        raise UsageError(f"the matrix is empty: {reason}", hint="invoke matrix --format json lists all rows")
    return Matrix(rows=tuple(sorted(kept, key=_order)), refused=tuple(refused))


def _refuse_two_of_one_name(first: Build, second: Build, listed: tuple[Request, ...]) -> None:
    """Raise UsageError for two builds of a list with one identifier, but two trees, own Bazels or bases."""
    there, here = _outside(first), _outside(second)
    if name := next((name for name in here if here[name] != there[name]), ""):
        numbers = " and ".join(str(listed.index(build.request) + 1) for build in (first, second))
        raise UsageError(
            f"builds {numbers} of the list are both called {second.id}: {name} {there[name]}, and {here[name]}",
            hint="list one of them in another file",
        )


def _outside(build: Build) -> dict[str, object]:
    """Return what an identifier does not tell apart, by the options that name it."""
    source, bazel = build.source, build.own_bazel
    return {"source": source and source.path, "bazel": bazel and bazel.path, "base": build.base_image}


def _order(build: Build) -> tuple[Version, str, Version, str, str]:
    return Version(build.release), build.target, Version(build.python), build.platform, build.id


def _combinations(request: MatrixRequest) -> Iterator[Request]:
    if request.builds:
        yield from request.builds
        return
    for combination in _of_fleet(request) if request.images else _of_platforms(request):
        yield from (replace(combination, python=python) for python in request.pythons or _pythons(combination))


def _of_fleet(request: MatrixRequest) -> Iterator[Request]:
    product = itertools.product(request.targets or targets.matrix_targets(), request.releases or ("",), request.images)
    for target, release, (platform, cpu) in product:
        yield Request(target=target, release=release, platform=platform, cpu=cpu)


def _of_platforms(request: MatrixRequest) -> Iterator[Request]:
    platforms = [row for row in table().platform if not request.platforms or row.name in request.platforms]
    for name in request.platforms:
        plan.choose_platform(Request(platform=name))  # raises UsageError for an unknown one
    product = itertools.product(
        request.wheels or WHEELS, request.targets or targets.matrix_targets(), request.releases or ("",), platforms
    )
    for wheel, target, release, platform in product:
        combination = Request(target=target, release=release, platform=platform.name)
        if wheel == "official":
            yield replace(combination, wheel="official")
        else:
            yield from (replace(combination, cpu=cpu) for cpu in request.cpus or platform.cpus)


def _pythons(request: Request) -> Sequence[str]:
    """Return the Pythons of the release that have a base image; "" (the plan chooses) if there is none."""
    try:
        build = plan.select(request, None)
        arch = plan.PLATFORMS[build.platform]
        official = request.wheel == "official"
        able = releases.official_pythons(build.release, arch) if official else releases.pythons(build.release)
    except TfbuildError:
        return ("",)
    return [python for python in toolchains.base_pythons() if python in able] or ("",)


def refusals(matrix: Matrix) -> list[str]:
    """Return a line for each reason, with the number of combinations that it refuses, the most frequent first."""
    counts = Counter(refused.reason for refused in matrix.refused)
    return [f"{counted(count, 'combination')} cannot be built: {reason}" for reason, count in counts.most_common()]


# --- rows that differ from another commit -----------------------------------------------------------------------------


def changed(matrix: Matrix, commit: str, options: Iterable[str], root: Path) -> Matrix:
    """Return the rows that `commit` lacks or makes of other files; `options`: those of `invoke matrix` for this matrix.

    `invoke matrix` runs in a worktree of that commit. Raises UsageError if there is no such commit.
    """
    if shutil.which("git") is None:
        raise UsageError("--changed needs git, which is not on PATH", hint="apt-get install git")
    with files.temporary_folder() as folder:
        tree = folder / "tree"
        added = _run(["git", "worktree", "add", "--quiet", "--detach", "--", str(tree), commit], root)
        if added.returncode != 0:
            raise UsageError(
                f"this repository has no commit {commit!r}: {added.stderr.strip()}",
                hint="run git fetch, or name another one",
            )
        try:
            old = _run([sys.executable, "-m", "invoke", "matrix", "--format", "json", *options], tree)
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], root)
    # A commit without this verb or these options has none of the rows.
    contexts = {row["id"]: row["context"] for row in json.loads(old.stdout)["rows"]} if old.returncode == 0 else {}
    rows = tuple(build for build in matrix.rows if contexts.get(build.id) != recipe_digest_of(build))
    return replace(matrix, rows=rows)


def recipe_digest_of(build: Build) -> str:
    """Return the digest of the files of a build's context."""
    return recipe_digest(dockerfile.files(build))


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
