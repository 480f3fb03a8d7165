"""Rows for CI: every combination that can be planned, in a stable order, as GitHub, GitLab and bake want them."""

import itertools
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.version import Version

from tfbuild import facts, pipeline, plan
from tfbuild.context import dockerfile
from tfbuild.context.digests import recipe_digest
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.facts import Facts, base_images, releases, targets
from tfbuild.plan import Build, Request

SCHEMA = "tfbuild.matrix/1"
FORMATS = ("github", "gitlab", "bake", "json")
WHEELS = ("official", "source")
# The job in .gitlab-ci.yml that each row of a child pipeline extends.
GITLAB_JOB = ".tfbuild"


class Platform(Facts, frozen=True):
    name: str
    cpus: tuple[str, ...]


class System(Facts, frozen=True):
    """A CI system: the most `jobs` of one matrix, and `bytes` of its text."""

    name: str
    jobs: int
    bytes: int
    encoding: str


class Runner(Facts, frozen=True):
    """A machine that a CI system has for everybody; `disk` in gigabytes."""

    system: str
    platform: str
    label: str
    disk: int


class MatrixTable(Facts, frozen=True):
    platform: tuple[Platform, ...]
    system: tuple[System, ...]
    runner: tuple[Runner, ...]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What rows are made of; an empty field means the usual ones. `only`: globs on identifiers, any of which fits.

    `images`: the platform and instruction set of each of a fleet's images, built from source, in place of the product
    of `wheels`, `platforms` and `cpus`.
    """

    releases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A combination that is no row, and why."""

    request: Request
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """`rows` sorted by release (oldest first), target, Python, platform and identifier; each identifier once."""

    rows: tuple[Build, ...]
    refused: tuple[Refused, ...]


def select(asked: Asked) -> Matrix:
    """All combinations that can be planned; UsageError where `only` leaves none, or a word is unknown."""
    if bad := next((wheel for wheel in asked.wheels if wheel not in WHEELS), None):
        raise UsageError(f"unknown wheel {bad!r}", hint=f"one of: {', '.join(WHEELS)}")
    rows: dict[str, Build] = {}
    refused: list[Refused] = []
    for request in _requests(asked):
        try:
            build = plan.select(request, None)
        except TfbuildError as error:
            refused.append(Refused(request=request, reason=error.reason))
        else:
            rows[build.id] = build
    chosen = [build for build in rows.values() if not asked.only or any(fnmatchcase(build.id, g) for g in asked.only)]
    if not chosen:
        why = f"--only {' '.join(asked.only)} fits none of {len(rows)} rows" if rows else refused[0].reason
        raise UsageError(f"the matrix is empty: {why}", hint="invoke matrix --format json lists them all")
    return Matrix(rows=tuple(sorted(chosen, key=_order)), refused=tuple(refused))


def _order(build: Build) -> tuple[Version, str, Version, str, str]:
    return Version(build.release), build.target, Version(build.python), build.platform, build.id


def _requests(asked: Asked) -> Iterable[Request]:
    for request in _of_fleet(asked) if asked.images else _usual(asked):
        yield from (replace(request, python=python) for python in asked.pythons or _pythons(request))


def _of_fleet(asked: Asked) -> Iterable[Request]:
    some = itertools.product(asked.targets or targets.of_matrix(), asked.releases or ("",), asked.images)
    for target, release, (platform, cpu) in some:
        yield Request(target=target, release=release, platform=platform, cpu=cpu)


def _usual(asked: Asked) -> Iterable[Request]:
    table = facts.load("matrix", MatrixTable)
    platforms = [row for row in table.platform if not asked.platforms or row.name in asked.platforms]
    for name in asked.platforms:
        plan.choose_platform(Request(platform=name))  # an unknown one is refused
    some = itertools.product(
        asked.wheels or WHEELS, asked.targets or targets.of_matrix(), asked.releases or ("",), platforms
    )
    for wheel, target, release, platform in some:
        request = Request(target=target, release=release, platform=platform.name)
        if wheel == "official":
            yield replace(request, wheel="official")
        else:
            yield from (replace(request, cpu=cpu) for cpu in asked.cpus or platform.cpus)


def _pythons(request: Request) -> Sequence[str]:
    """Those that have a base image and that the release is built for; "" (the plan's choice) where none is known."""
    try:
        build = plan.select(request, None)
        arch = plan.PLATFORMS[build.platform]
        official = request.wheel == "official"
        able = releases.official_wheel(build.release, arch).pythons if official else releases.pythons(build.release)
    except TfbuildError:
        return ("",)
    return [python for python in base_images.pythons() if python in able] or ("",)


def refusals(matrix: Matrix) -> list[str]:
    """One line a reason, with how many combinations it refuses, the most frequent first."""
    counted = Counter(one.reason for one in matrix.refused)
    return [f"{count} combinations are no rows: {reason}" for reason, count in counted.most_common()]


def changed(matrix: Matrix, ref: str, words: Sequence[str], root: Path) -> Matrix:
    """The rows that the repository's state `ref` lacks or makes of other files; `words`: the options of this matrix.

    The other state answers for itself, in a checkout of its own. Raises UsageError where there is no such state.
    """
    if shutil.which("git") is None:
        raise UsageError("--changed needs git, which is not on PATH", hint="apt-get install git")
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        tree = Path(folder) / "tree"
        added = _run(["git", "worktree", "add", "--quiet", "--detach", str(tree), ref], root)
        if added.returncode != 0:
            raise UsageError(
                f"no state {ref!r} of this repository: {added.stderr.strip()}", hint="git fetch, or name another"
            )
        try:
            old = _run([sys.executable, "-m", "invoke", "matrix", "--format", "json", *words], tree)
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], root)
    # A state that knows no matrix, or not these options, has none of the rows.
    known = {row["id"]: row["context"] for row in json.loads(old.stdout)["rows"]} if old.returncode == 0 else {}
    rows = tuple(build for build in matrix.rows if known.get(build.id) != _recipe(build))
    return replace(matrix, rows=rows)


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


# --- the machines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Each row with the label of the machine that it runs on; `notes`: which rows have none, and why."""

    rows: tuple[tuple[Build, str], ...]
    notes: tuple[str, ...]


def schedule(matrix: Matrix, system: str, given: Sequence[str]) -> Schedule:
    """The machines of a CI system for the rows; `given`: the user's own, as WHEEL[:PLATFORM]=LABEL.

    A row that no machine can hold is none: its job would fail. Raises UsageError where that leaves no row.
    """
    own = _own_runners(given)
    hosted = [row for row in facts.load("matrix", MatrixTable).runner if row.system == system]
    rows: list[tuple[Build, str]] = []
    without: Counter[tuple[str, str]] = Counter()
    for build in matrix.rows:
        kind, need = build.wheel.kind, pipeline.DISK[build.wheel.kind]
        able = (row.label for row in hosted if row.platform == build.platform and row.disk * 10**9 >= need)
        label = own.get((kind, build.platform)) or own.get((kind, "")) or next(able, "")
        if label:
            rows.append((build, label))
        else:
            without[kind, build.platform] += 1
    notes = tuple(
        f"{count} rows are left out: no hosted runner of {system}'s for {platform} is known to have the "
        f"{pipeline.DISK[kind] / 10**9:.0f} GB that --wheel {kind} needs; name one: --runner {kind}:{platform}=LABEL"
        for (kind, platform), count in sorted(without.items())
    )
    if notes and not rows:
        raise UsageError(f"the matrix is empty: {notes[0]}", hint="docs/ci.md says which runners fit")
    return Schedule(rows=tuple(rows), notes=notes)


def _own_runners(given: Sequence[str]) -> dict[tuple[str, str], str]:
    """Labels by wheel and platform ("" for any). Raises UsageError where a word cannot be read."""
    found: dict[tuple[str, str], str] = {}
    for word in given:
        what, _, label = word.partition("=")
        wheel, _, platform = what.partition(":")
        if wheel not in WHEELS or not label or (platform and platform not in plan.PLATFORMS):
            raise UsageError(
                f"--runner {word!r} is no runner", hint="--runner source=LABEL, or --runner source:linux/arm64=LABEL"
            )
        found[wheel, platform] = label
    return found


# --- the formats ------------------------------------------------------------------------------------------------------


def options(build: Build) -> str:
    """The options by which `invoke build` makes this row again, as words of a shell."""
    return shlex.join(shlex.split(dockerfile.command(build))[2:])


def to_json(matrix: Matrix) -> dict[str, object]:
    """The whole matrix, for scripts; `context`: the recipe's digest."""
    return {
        "schema": SCHEMA,
        "rows": [
            {
                **_row(build),
                "features": list(build.instruction_set.features),
                "context": _recipe(build),
            }
            for build in matrix.rows
        ],
        "refused": [
            {
                name: value
                for name, value in (
                    ("release", one.request.release),
                    ("target", one.request.target),
                    ("python", one.request.python),
                    ("platform", one.request.platform),
                    ("cpu", one.request.cpu),
                    ("wheel", one.request.wheel or "source"),
                    ("reason", one.reason),
                )
                if value
            }
            for one in matrix.refused
        ],
    }


def _recipe(build: Build) -> str:
    return recipe_digest(dockerfile.recipe(build))


def _row(build: Build) -> dict[str, str]:
    return {
        "id": build.id,
        "release": build.release,
        "target": build.target,
        "python": build.python,
        "platform": build.platform,
        "instruction_set": build.instruction_set.name,
        "wheel": build.wheel.kind,
        "options": options(build),
    }


def to_github(schedule: Schedule) -> str:
    """`strategy.matrix` for GitHub Actions, in one line, as $GITHUB_OUTPUT takes it; "" where nothing has changed.

    GitHub takes a matrix without rows for an error: the job that has it needs an `if` for that.
    """
    rows = [{**_row(build), "runner": label} for build, label in schedule.rows]
    if not rows:
        return ""
    return _within("github", len(rows), json.dumps({"include": rows}, separators=(",", ":")))


def to_gitlab(schedule: Schedule) -> str:
    """A child pipeline for GitLab (JSON is YAML): one job a row, each extending the repository's own `.tfbuild`.

    GitLab takes a pipeline without jobs for an error: where nothing has changed, one says so.
    """
    if not schedule.rows:
        return json.dumps({"unchanged": {"script": ["echo nothing to build"]}}, indent=2)
    rows = [
        {"TFBUILD_ID": build.id, "TFBUILD_OPTIONS": options(build), "TFBUILD_RUNNER": label}
        for build, label in schedule.rows
    ]
    job = {"extends": GITLAB_JOB, "tags": ["$TFBUILD_RUNNER"], "parallel": {"matrix": rows}}
    return _within("gitlab", len(rows), json.dumps({"include": [{"local": ".gitlab-ci.yml"}], "build": job}, indent=2))


def _within(name: str, rows: int, text: str) -> str:
    """The text, which that CI system can take; UsageError where it cannot."""
    system = next(row for row in facts.load("matrix", MatrixTable).system if row.name == name)
    hint = "narrow it: --only '*-mkl-*', --python 3.12, --release 2.20; or split it by --target"
    if rows > system.jobs:
        raise UsageError(f"{rows} rows are more than the {system.jobs} jobs of one {name} matrix", hint=hint)
    if (size := len(text.encode(system.encoding))) > system.bytes:
        raise UsageError(
            f"these {rows} rows are {size:,} bytes, more than the {system.bytes:,} that {name} takes", hint=hint
        )
    return text


def to_bake(matrix: Matrix, folder: Path) -> str:
    """docker-bake.hcl for the contexts that stand below `folder`; needs no registry's frontend."""
    names = {build.id: target_name(build.id) for build in matrix.rows}
    group = ", ".join(_hcl(name) for name in names.values())
    blocks = [
        f'# Written by tfbuild: docker buildx bake -f FILE [TARGET...]\ngroup "default" {{\n  targets = [{group}]\n}}'
    ]
    for build in matrix.rows:
        fields = (
            ("context", _hcl(str(folder / build.id))),
            ("target", _hcl("runtime")),
            ("tags", f"[{_hcl(f'tfbuild:{build.id}-unverified')}]"),
            ("platforms", f"[{_hcl(build.platform)}]"),
        )
        lines = "\n".join(f"  {name} = {value}" for name, value in fields)
        blocks.append(f"target {_hcl(names[build.id])} {{\n{lines}\n}}")
    return "\n\n".join(blocks)


def target_name(identifier: str) -> str:
    """Bake's targets have letters, digits, "_" and "-" in their names, and no dots."""
    return identifier.replace(".", "_")


def _hcl(text: str) -> str:
    """A quoted HCL string: JSON's, and `${` and `%{` begin no template."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")


def write_contexts(matrix: Matrix, folder: Path, done: Callable[[str], None]) -> None:
    for build in matrix.rows:
        dockerfile.write(build, folder / build.id)
        done(build.id)
