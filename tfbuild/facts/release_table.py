"""The rows of facts/releases.toml: their types, and what must be true of them together.

tfbuild/facts/releases.py answers questions with them.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Literal

import msgspec
from packaging.version import Version

from tfbuild import facts
from tfbuild.facts import Facts

Sure = Literal["tree", "docs", "wheel", "index", "packagers", "reports", "measured", "unknown"]
# What such a row says is planned, with a note.
UNCERTAIN = ("reports", "unknown")
Step = Literal["run", "build"]


@cache
def version(text: str) -> Version:
    return Version(text)


class Release(Facts, frozen=True, kw_only=True):
    """`commit`: whole, abbreviated (a prefix), or "" where it was not seen."""

    version: str
    sure: Literal["exact", "near-exact", "bracketed", "inherited"]
    commit: str = ""

    @property
    def tag(self) -> str:
        return f"v{self.version}"


class RangeRow(Facts, frozen=True, kw_only=True):
    """A fact that holds for the releases in [since, before), without `before` for all from `since` on."""

    since: str = msgspec.field(name="from")
    before: str = ""
    sure: Sure = "tree"
    note: str = ""

    @property
    def key(self) -> str:
        """Rows of one table with the same key exclude each other."""
        return ""

    def covers(self, release: str) -> bool:
        asked = version(release)
        return version(self.since) <= asked and (not self.before or asked < version(self.before))


class Sourced(RangeRow, frozen=True, kw_only=True):
    """A row that names its own source (the others' is in the file, above their table)."""

    source: str


class Config(RangeRow, frozen=True, kw_only=True):
    """A config that .bazelrc has; `expands`: the flags it stands for, where that matters here."""

    name: str
    expands: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name


class OfficialPython(RangeRow, frozen=True, kw_only=True):
    arch: str
    versions: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.arch


class Python(Sourced, frozen=True, kw_only=True):
    versions: tuple[str, ...]


class Bazel(Sourced, frozen=True, kw_only=True):
    """`oldest` and `newest`: what configure.py accepts ("": everything). `aarch64`: the version there, if another."""

    version: str = ""
    aarch64: str = ""
    candidates: tuple[str, ...] = ()
    oldest: str = ""
    newest: str = ""


class ReleaseCompiler(Sourced, frozen=True, kw_only=True):
    """`wheel`: what the official wheels of the releases `measured` were built with."""

    documented: str
    wheel: str
    measured: tuple[str, ...]


class KnownCompiler(Sourced, frozen=True, kw_only=True):
    """What a release can be built with; `patches`: what others changed for it."""

    name: str
    patches: str = ""

    @property
    def key(self) -> str:
        return self.name

    @property
    def certain(self) -> bool:
        return self.sure not in UNCERTAIN


class BuilderImage(Sourced, frozen=True, kw_only=True):
    """The system of TensorFlow's own build images."""

    image: str = ""
    candidates: tuple[str, ...] = ()


class WheelTarget(Sourced, frozen=True, kw_only=True):
    """How a wheel comes out: by the program `script` that `target` builds, or as `target` itself in folder `output`.

    `cpu` and `gpu` are the options that name the wheel tensorflow_cpu or tensorflow; `flags` go to bazel besides.
    """

    target: str
    step: Literal["script", "bazel"]
    script: str = ""
    output: str = ""
    cpu: str
    gpu: str = ""
    flags: tuple[str, ...] = ()


class HermeticPython(Sourced, frozen=True, kw_only=True):
    variable: str


class HostTool(Sourced, frozen=True, kw_only=True):
    name: str

    @property
    def key(self) -> str:
        return self.name


class Constraint(Sourced, frozen=True, kw_only=True):
    """A pip requirement that holds a package back when the wheel is installed ("run") or built ("build")."""

    requirement: str
    applies: tuple[Step, ...]

    @property
    def key(self) -> str:
        return self.requirement


class OneDnn(Sourced, frozen=True, kw_only=True):
    """Whether a build for `arch` has oneDNN in it without any --config; it is on by default on CPUs with `on_with`."""

    arch: str
    compiled: bool
    on_with: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.arch


class Threading(Sourced, frozen=True, kw_only=True):
    """The config that puts oneDNN on each of two runtimes ("": there is none), and the one to take ("": not known)."""

    arch: str
    default: Literal["", "openmp", "threadpool"] = ""
    openmp: str = ""
    threadpool: str = ""

    @property
    def key(self) -> str:
        return self.arch


class ThreadEnv(Facts, frozen=True, kw_only=True):
    threading: Literal["openmp", "threadpool"]
    variable: str
    value: str
    source: str


class OnednnEnv(Sourced, frozen=True, kw_only=True):
    """A variable that an image sets whose target promises oneDNN."""

    variable: str
    value: str

    @property
    def key(self) -> str:
        return self.variable


class Package(Sourced, frozen=True, kw_only=True):
    """The folder of a wheel that holds TensorFlow's libraries, and the one of them that has the CPU guard."""

    folder: str
    framework: str


class Configure(RangeRow, frozen=True, kw_only=True):
    """A variable that answers a question of configure.py; `compiler`: only for builds with that one.

    `cuda`: only asked of builds with CUDA (true), or of those without (false). A target's own answer beats `value`.
    `overridden`: why a config of the tree's .bazelrc wins over configure's answer ("": none does).
    """

    variable: str
    value: str
    cuda: bool | None = None
    compiler: Literal["", "gcc", "clang"] = ""
    overridden: str = ""

    @property
    def key(self) -> str:
        asked = {None: "", True: "cuda", False: "without cuda"}[self.cuda]
        return " ".join((self.variable, asked, self.compiler))


class Opt(Sourced, frozen=True, kw_only=True):
    """What configure.py makes of --config=opt: the default CC_OPT_FLAGS, and what host tools get."""

    default: str
    host: str


class Cuda(Sourced, frozen=True, kw_only=True):
    """The release's own CUDA and cuDNN, and `others` that it takes by the `evidence`."""

    version: str
    cudnn: str
    capabilities: str
    hermetic: bool = False
    others: tuple[str, ...] = ()
    others_cudnn: tuple[str, ...] = ()
    evidence: str = ""


class ReleaseGuard(Sourced, frozen=True, kw_only=True):
    """TensorFlow's message about unused features; group 1 of `pattern` (multi-line) holds their names."""

    message: str
    pattern: str
    place: Literal["first op", "import"]


class WheelRow(Sourced, frozen=True, kw_only=True):
    arch: str
    cpu: str
    gpu: str = ""
    features: tuple[str, ...]
    flags: tuple[str, ...] = ()
    manylinux: str
    onednn: bool

    @property
    def key(self) -> str:
        return self.arch


class ReleaseTable(Facts, frozen=True, kw_only=True):
    """The file, as it is."""

    known_until: str
    release: tuple[Release, ...]
    config: tuple[Config, ...]
    official_python: tuple[OfficialPython, ...]
    python: tuple[Python, ...]
    bazel: tuple[Bazel, ...]
    compiler: tuple[ReleaseCompiler, ...]
    known_compiler: tuple[KnownCompiler, ...]
    builder: tuple[BuilderImage, ...]
    wheel_target: tuple[WheelTarget, ...]
    hermetic_python: tuple[HermeticPython, ...]
    host_tool: tuple[HostTool, ...]
    constraint: tuple[Constraint, ...]
    onednn: tuple[OneDnn, ...]
    threading: tuple[Threading, ...]
    thread_env: tuple[ThreadEnv, ...]
    onednn_env: tuple[OnednnEnv, ...]
    package: tuple[Package, ...]
    configure: tuple[Configure, ...]
    opt: tuple[Opt, ...]
    cuda: tuple[Cuda, ...]
    guard: tuple[ReleaseGuard, ...]
    official_wheel: tuple[WheelRow, ...]


# Tables with a row for every release.
WHOLE = (
    "python",
    "bazel",
    "compiler",
    "known_compiler",
    "builder",
    "wheel_target",
    "opt",
    "cuda",
    "guard",
    "package",
)


def check(found: ReleaseTable) -> None:
    """ValueError where rows overlap, leave a release out, or cannot hold for any; it names the file and the row."""
    try:
        _check_releases(found)
        for name in ReleaseTable.__struct_fields__:
            if name != "known_until":
                _check_table(name, [row for row in getattr(found, name) if isinstance(row, RangeRow)], found)
    except ValueError as error:  # InvalidVersion is one too
        raise ValueError(f"releases.toml: {error}") from error


def _check_releases(found: ReleaseTable) -> None:
    known = [version(row.version) for row in found.release]
    if known != sorted(set(known)):
        raise ValueError("[[release]]: not in ascending order, or twice the same")
    if known[-1] >= version(found.known_until):
        newest = found.release[-1].version
        raise ValueError(
            f"[[release]] {newest}: known_until is {found.known_until}, and rows without `before` end there"
        )


def _check_table(name: str, rows: list[RangeRow], found: ReleaseTable) -> None:
    for key in {row.key for row in rows}:
        check_ranges(f"[[{name}]] {key}".strip(), [row for row in rows if row.key == key])
    if name in WHOLE:
        _check_whole(name, rows, [row.version for row in found.release])


def check_ranges(what: str, rows: Sequence[RangeRow]) -> None:
    """ValueError where a range is empty, or two of them overlap."""
    rows = sorted(rows, key=lambda row: version(row.since))
    for row in rows:
        if row.before and version(row.since) >= version(row.before):
            raise ValueError(f"{what}: the range from {row.since} before {row.before} is empty")
    for one, two in pairwise(rows):
        if not one.before or version(two.since) < version(one.before):
            end = f" before {one.before}" if one.before else ", which has no end"
            raise ValueError(f"{what}: the row from {two.since} overlaps the one from {one.since}{end}")


def _check_whole(what: str, rows: list[RangeRow], known: list[str]) -> None:
    for release in known:
        if not any(row.covers(release) for row in rows):
            raise ValueError(f"[[{what}]]: no row holds for {release}")


@cache
def table() -> ReleaseTable:
    """The facts, read and checked once a process."""
    found: ReleaseTable = facts.load("releases", ReleaseTable)
    check(found)
    return found
