"""What TensorFlow's source tree says of its own build, and how that differs from the facts on its release.

A tree that is newer than the facts is planned with what it says; the rest is that of the newest release before it.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.version import Version

from tfbuild.errors import BadInput
from tfbuild.facts import release_table, releases
from tfbuild.facts.release_table import RangeRow, ReleaseTable, base, is_version, table
from tfbuild.util.files import read_regular

PIP = "tensorflow/tools/pip_package"
LOCK = re.compile(r"requirements_lock_3_(\d+)\.txt")
CUDA_SETTING = re.compile(
    r"(?:--(?:action|repo)_env=)?(?:TF|HERMETIC)_(CUDA|CUDNN|CUDA_COMPUTE)_(?:VERSION|CAPABILITIES)=(.+)"
)
# Another CUDA than that of `--config=cuda`.
CUDA_CONFIG = re.compile(r"cuda(\d+)_version")
# The compiler of the official builds.
CLANG = re.compile(r"--repo_env=BAZEL_COMPILER=/usr/lib/llvm-(\d+)/bin/clang")
# configure.py asks for NAME in get_var(environ_cp, 'NAME', ...); other names in quotes may be read.
ENV_QUESTION = re.compile(r"\(\s*(\w+),\s*(?:\w+=)?['\"]([A-Z]+_\w+)['\"]")
QUOTED_NAME = re.compile(r"['\"]([A-Z]+(?:_[A-Z0-9]+)+|CC|CXX)['\"]")
# TensorFlow's files have 60 KB. The time of shlex grows with the square of a line's length.
MOST_TEXT, LONGEST_LINE = 1 << 20, 10_000
RESTORE_HINT = "--source takes the tree as TensorFlow has it: restore that file (git checkout)"

# Returns a file's text by its path, None where the tree has no such file.
ReadText = Callable[[str], str | None]


# --- Bazel's rc files: https://bazel.build/run/bazelrc ----------------------------------------------------------------


def parse_rc(text: str) -> dict[str, tuple[str, ...]]:
    """Return the words of an rc file by the command in front of them: "build", "build:CONFIG", "try-import" ...

    Raises ValueError with a line that Bazel could not read either.
    """
    options: defaultdict[str, list[str]] = defaultdict(list)
    for line in text.replace("\\\n", " ").splitlines():
        if len(line) > LONGEST_LINE:
            raise ValueError(f".bazelrc: a line of {len(line)} characters: {line.strip()[:80]}")
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f".bazelrc: {error}: {line.strip()[:80]}") from error
        if words:
            options[words[0]] += words[1:]
    return {name: tuple(words) for name, words in options.items()}


# --- the tree's files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What one tree says.

    `version`: as the tree has it. `bazelversion`: the first line of .bazelversion. `configs`: what each config of
    .bazelrc stands for. `questions`: the variables that answer configure.py's; `reads`: the others that it names.
    `lock_files`: the Pythons from 3.11 on with a file of pinned packages. `clang`: the official builds' compiler, such
    as "clang-18".
    """

    version: str
    bazelversion: str
    configs: Mapping[str, tuple[str, ...]]
    questions: tuple[str, ...]
    reads: tuple[str, ...]
    lock_files: tuple[str, ...]
    clang: str = ""


def read_folder(folder: Path) -> TreeFacts:
    """Read the tree in `folder`; raises BadInput for a file that cannot be read."""

    def read_text(path: str) -> str | None:
        try:
            return read_regular(folder / path, MOST_TEXT).decode().replace("\r\n", "\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadInput(f"{folder / path} cannot be read: {why}", hint=RESTORE_HINT) from error

    try:
        return read_tree(read_text, [path.name for path in folder.iterdir()])
    except ValueError as error:
        raise BadInput(f"{folder} cannot be planned: {error}", hint=RESTORE_HINT) from error


def read_tree(read_text: ReadText, names: Iterable[str]) -> TreeFacts:
    """Return the facts of one tree; `names`: the paths of its files.

    Raises ValueError for a .bazelrc or a version of Bazel that cannot be parsed.
    """
    rc = parse_rc(read_text(".bazelrc") or "")
    configure = read_text("configure.py") or ""
    questions = {name for where, name in ENV_QUESTION.findall(configure) if "env" in where}
    configs = {key.partition(":")[2] for key in rc if key.startswith(("build:", "common:"))}
    bazelversion = (read_text(".bazelversion") or "").partition("\n")[0].strip()
    if bazelversion and not is_version(bazelversion):
        raise ValueError(f".bazelversion: {bazelversion[:50]!r} is not a version of Bazel")
    clangs = [int(match[1]) for words in rc.values() for match in map(CLANG.fullmatch, words) if match]
    return TreeFacts(
        version=_version(read_text),
        bazelversion=bazelversion,
        configs={name: rc.get(f"common:{name}", ()) + rc.get(f"build:{name}", ()) for name in sorted(configs)},
        questions=tuple(sorted(questions)),
        reads=tuple(sorted({*QUOTED_NAME.findall(configure)} - questions)),
        lock_files=tuple(
            sorted((f"3.{one[1]}" for one in map(LOCK.fullmatch, names) if one and int(one[1]) >= 11), key=Version)
        ),
        clang=f"clang-{max(clangs)}" if clangs else "",
    )


def _version(read_text: ReadText) -> str:
    """Return the version in setup.py, from 2.20 on in tf_version.bzl."""
    newer = read_text("tensorflow/tf_version.bzl") or ""
    if match := re.search(r'^TF_VERSION = "(.+)"$', newer, re.M):
        # On master only: a release's branch has the plain version, and no suffix by default.
        return match[1]
    for path in (f"{PIP}/setup.py", f"{PIP}/v2/setup.py"):
        if match := re.search(r"^_VERSION = '(.+)'$", read_text(path) or "", re.M):
            return match[1]
    return ""


# --- what differs from the facts --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact that differs in a tree: `row` replaces the one with that `key` in `table`; None removes it.

    `what`: the difference in words; `file`: where the tree has it.
    """

    table: str
    key: str = ""
    row: RangeRow | None
    what: str
    file: str


def differences(tree: TreeFacts, release: str) -> Iterator[Difference]:
    """Yield where the tree differs from the facts on `release`, or on the newest release before it."""
    since = str(base(release))
    if tree.bazelversion and tree.bazelversion != releases.row(table().bazel, release).version:
        bazel = release_table.Bazel(since=since, version=tree.bazelversion, source=".bazelversion")
        yield Difference(table="bazel", row=bazel, what=f"Bazel {tree.bazelversion}", file=bazel.source)
    if tree.lock_files and tree.lock_files != releases.pythons(release):
        pythons = release_table.Python(since=since, versions=tree.lock_files, source="requirements_lock_3_*.txt")
        yield Difference(table="python", row=pythons, what=f"Python {', '.join(tree.lock_files)}", file=pythons.source)
    yield from _configs(tree, release, since)
    for row in releases.rows(table().configure, release) if tree.questions else ():
        if row.variable not in tree.questions + tree.reads:
            what = f"no question for {row.variable}"
            yield Difference(table="configure", key=row.key, row=None, what=what, file="configure.py")
    yield from _compiler(tree, release, since)
    yield from _cuda(tree, release, since)


def extended(rows: Iterable[Difference], release: str) -> ReleaseTable:
    """Return the facts, in which a tree's rows replace others from `release` on."""
    own, since = table(), str(base(release))
    changes: dict[str, tuple[RangeRow, ...]] = {}
    for difference in rows:
        kept = []
        for row in changes.get(difference.table, getattr(own, difference.table)):
            if row.key != difference.key or not row.covers(release):
                kept.append(row)
            elif not row.since or base(row.since) < base(since):
                kept.append(msgspec.structs.replace(row, before=since))
        changes[difference.table] = (*kept, *([difference.row] if difference.row else []))
    return msgspec.structs.replace(own, **changes)


def remarks(rows: Iterable[Difference], release: str) -> Iterator[str]:
    """Yield a note for each difference between a tree and the facts."""
    known = releases.known(release)
    for row in rows:
        if not known:
            yield f"read from the tree: {row.what} ({row.file})"
        elif row.table in ("bazel", "python"):
            yield f"the tree says {row.what} ({row.file}), unlike TensorFlow {release}"
    if not known:
        yield (
            f"not certain: TensorFlow {release} is newer than this tfbuild; what its tree does not say is taken from "
            f"{releases.nearest(release)}"
        )


def _configs(tree: TreeFacts, release: str, since: str) -> Iterator[Difference]:
    known = {row.name for row in table().config}
    for name in sorted(known | {name for name in tree.configs if CUDA_CONFIG.fullmatch(name)}):
        exists = name in tree.configs
        if exists != releases.config(name, release):
            row = release_table.Config(since=since, name=name) if exists else None
            what = f"--config={name}" if exists else f"no --config={name}"
            yield Difference(table="config", key=name, row=row, what=what, file=".bazelrc")


def _compiler(tree: TreeFacts, release: str, since: str) -> Iterator[Difference]:
    """Yield the Clang of the official builds; the official wheels' compiler of the releases before is not its own."""
    known = releases.compilers(release)
    if not tree.clang or tree.clang in {row.name for row in known}:
        return
    for own in (row for row in known if row.wheels):
        yield Difference(table="known_compiler", key=own.key, row=None, what=f"not {own.name}", file=".bazelrc")
    row = release_table.KnownCompiler(since=since, name=tree.clang, source="the official builds in .bazelrc")
    yield Difference(table="known_compiler", key=row.key, row=row, what=tree.clang, file=".bazelrc")


def _cuda(tree: TreeFacts, release: str, since: str) -> Iterator[Difference]:
    """Yield the CUDA of `--config=cuda`, with those of other major versions that .bazelrc has configs for."""
    known = releases.cuda(release)
    own = _versions(tree, "cuda_version") or _versions(tree, "cuda")
    pairs = [pair for name in tree.configs if CUDA_CONFIG.fullmatch(name) and (pair := _versions(tree, name))]
    if not known.hermetic or not own:
        return
    cudas = {*known.others, known.version, *(pair["CUDA"] for pair in pairs)} - {own["CUDA"]}
    cudnns = {*known.others_cudnn, known.cudnn, *(pair["CUDNN"] for pair in pairs)} - {own["CUDNN"]}
    row = msgspec.structs.replace(
        known,
        since=since,
        before="",
        version=own["CUDA"],
        cudnn=own["CUDNN"],
        capabilities=_settings(tree, "cuda_clang").get("CUDA_COMPUTE", known.capabilities),
        others=tuple(sorted(cudas, key=Version)),
        others_cudnn=tuple(sorted(cudnns, key=Version)),
        pairs=tuple(f"{pair['CUDA']}/{pair['CUDNN']}" for pair in pairs if pair["CUDA"] != own["CUDA"]),
    )
    if row != msgspec.structs.replace(known, since=since, before=""):
        row = msgspec.structs.replace(row, source=".bazelrc")
        more = "".join(f", or {pair.replace('/', ' with ')}," for pair in row.pairs)
        what = f"CUDA {row.version} with cuDNN {row.cudnn}{more} for {row.capabilities}"
        yield Difference(table="cuda", row=row, what=what, file=".bazelrc")


def _versions(tree: TreeFacts, config: str) -> dict[str, str]:
    """Return the CUDA and CUDNN of a config; {} where it does not name the versions of both."""
    settings = _settings(tree, config)
    return settings if all(is_version(settings.get(name, "")) for name in ("CUDA", "CUDNN")) else {}


def _settings(tree: TreeFacts, config: str, through: tuple[str, ...] = ()) -> dict[str, str]:
    """Return what a config sets of CUDA, CUDNN and CUDA_COMPUTE, or the one that it stands for.

    `through`: the configs that stand for it, which it may name itself.
    """
    options = tree.configs.get(config, ())
    settings = {match[1]: match[2] for match in map(CUDA_SETTING.fullmatch, options) if match}
    through = (*through, config)
    named = [text.removeprefix("--config=") for text in options if text.startswith("--config=")]
    others = (found for name in named if name not in through and (found := _settings(tree, name, through)))
    return settings or next(others, {})
