"""What TensorFlow's source tree says of its own build, and the facts on its release that follow.

A tree that is newer than the facts is planned with what it says; the rest is that of the newest release before it.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.version import Version

from tfbuild.errors import BadInput
from tfbuild.facts import releases
from tfbuild.facts.release_table import (
    Bazel,
    Config,
    KnownCompiler,
    Python,
    RangeRow,
    ReleaseTable,
    base,
    table,
)
from tfbuild.plan import bazelrc

PIP = "tensorflow/tools/pip_package"
GRAPH_VERSION = "tensorflow/core/public/version.h"
LOCK = re.compile(r"requirements_lock_(\d+)_(\d+)\.txt")
# TensorFlow's own build images name their CUDA and cuDNN; later trees name theirs in .bazelrc.
CUDA_IMAGE = re.compile(r"cuda(\d+\.\d+)(?:\.\d+)?-cudnn(\d+(?:\.\d+)?)")
CUDA_SETTING = re.compile(
    r"(?:--(?:action|repo)_env=)?(?:TF|HERMETIC)_(CUDA|CUDNN|CUDA_COMPUTE)_(?:VERSION|CAPABILITIES)=(.+)"
)
# The CUDA that `--config=cuda` stands for, and another major version's.
CUDA_CONFIG = re.compile(r"cuda(\d+)_version")
# The compiler of the official builds.
CLANG = re.compile(r"--repo_env=BAZEL_COMPILER=/usr/lib/llvm-(\d+)/bin/clang")
# What packs the wheel: the first one that the tree has. 2.16 has an unused older one too.
PACKERS = tuple(f"{PIP}/{name}" for name in ("v2/build_pip_package.py", "build_pip_package.py", "build_pip_package.sh"))
# The settings of the official builds, and of all builds.
PYWRAP = (".bazelrc", *(f"ci/official/envs/{name}" for name in ("linux_arm64", "linux_x86", "linux_x86_cuda")))
LLVM = tuple(
    f"{place}/llvm/workspace.bzl"
    for place in ("third_party/xla/third_party", "third_party/xla/third_party/tsl/third_party", "third_party")
)
# Questions that a Linux build never meets: those of other systems, or after a "yes" that is never given.
NEVER = re.compile(
    "ANDROID_.*|MPI_HOME|HOST_C(XX)?_COMPILER|TF_(OVERRIDE_EIGEN_STRONG_INLINE|CONFIGURE_IOS|TENSORRT_VERSION)|"
    "COMPUTECPP_TOOLKIT_PATH|TRISYCL_INCLUDE_DIR|TF_NEED_COMPUTECPP"
)
FOR_CUDA = re.compile(
    "(TF|HERMETIC|LOCAL)_(CUDA|CUDNN|NCCL)_.*|TF_NEED_TENSORRT|CLANG_CUDA_COMPILER_PATH|GCC_HOST_COMPILER_PATH"
)
LLVM_COMMIT = re.compile(r'LLVM_COMMIT = "([0-9a-f]{40})"')
RESTORE = "--source takes the tree as TensorFlow has it: restore that file (git checkout)"
FOR_CPU = ("TF_NEED_CLANG", "CLANG_COMPILER_PATH")

# A file's text by its path, None where the tree has no such file.
Read = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What one tree says.

    `version`: as the tree has it; `dated`: the day of the last change of TF_GRAPH_DEF_VERSION; `bazelversion`: the
    first line of .bazelversion; `oldest_bazel` and `newest_bazel`: what configure.py insists on; `configs`: what each
    config of .bazelrc stands for; `questions`: the variables that answer configure.py's; `reads`: the other variables
    that it reads; `wheel_targets`: those known that are there; `lock_files`: Pythons with a file of pinned packages;
    `pythons`: those that setup.py names; `guard`: CPU features in the order of TensorFlow's message;
    `cpu_numbers`: NAME=NUMBER of its enum CPUFeature; `host_tools`:
    those known that it calls; `cuda`: "CUDA/cuDNN" of its build images and of .bazelrc; `capabilities`: the lists of
    CUDA compute capabilities in .bazelrc, and configure.py's default; `system_libs`: what TF_SYSTEM_LIBS may name;
    `pywrap`: those of PYWRAP that switch the rules on; `clang`: the Clang of the official builds, as in "clang-18";
    `llvm`: the commit of LLVM that it is built with.
    """

    version: str
    dated: str
    bazelversion: str
    oldest_bazel: str
    newest_bazel: str
    configs: Mapping[str, tuple[str, ...]]
    wheel_targets: tuple[str, ...]
    questions: tuple[str, ...]
    reads: tuple[str, ...]
    lock_files: tuple[str, ...]
    pythons: tuple[str, ...]
    guard: tuple[str, ...]
    cpu_numbers: tuple[str, ...]
    host_tools: tuple[str, ...]
    cuda: tuple[str, ...]
    capabilities: tuple[str, ...]
    system_libs: tuple[str, ...]
    pywrap: tuple[str, ...]
    clang: str = ""
    llvm: str = ""


# --- reading ----------------------------------------------------------------------------------------------------------


def of_folder(folder: Path) -> TreeFacts:
    """Read the tree in `folder`; raises BadInput for a file that cannot be read."""

    def text(path: str) -> str | None:
        try:
            return (folder / path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadInput(f"{folder / path} cannot be read: {why}", hint=RESTORE) from error

    try:
        return read(text, [path.name for path in folder.iterdir()])
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadInput(f"{folder} cannot be planned: {error}", hint=RESTORE) from error


def read(read: Read, names: Iterable[str]) -> TreeFacts:
    """Return the facts of one tree; `names`: the paths of its files.

    Raises ValueError for a .bazelrc that cannot be parsed, SyntaxError or ValueError for such a configure.py.
    """
    names = list(names)
    rc = bazelrc.parse(read(".bazelrc") or "")
    configure = ast.parse(read("configure.py") or "", "configure.py")
    constants = _constants(configure)
    insists = bool(list(_calls(configure, "check_bazel_version")))
    questions, reads = _variables(configure)
    known_targets = sorted({row.target for row in table().wheel_target})
    return TreeFacts(
        version=_version_in(read),
        dated=_graph_date(read),
        bazelversion=(read(".bazelversion") or "").partition("\n")[0].strip(),
        oldest_bazel=constants.get("_TF_MIN_BAZEL_VERSION", "") if insists else "",
        newest_bazel=constants.get("_TF_MAX_BAZEL_VERSION", "") if insists else "",
        configs={name: rc.options.get(f"common:{name}", ()) + rc.build(name) for name in sorted(rc.configs)},
        wheel_targets=tuple(target for target in known_targets if _has_target(read, target)),
        questions=questions,
        reads=reads,
        lock_files=tuple(sorted((f"{one[1]}.{one[2]}" for one in map(LOCK.fullmatch, names) if one), key=Version)),
        pythons=tuple(re.findall(r"Programming Language :: Python :: (\d\.\d+)", _setup(read))),
        guard=_guard(read),
        cpu_numbers=_cpu_numbers(read),
        host_tools=tuple(tool for tool in sorted({row.name for row in table().host_tool}) if _calls_tool(read, tool)),
        cuda=_cuda_versions(rc, names),
        capabilities=_capabilities(rc, constants),
        system_libs=_system_libs(read),
        pywrap=tuple(name for name in PYWRAP if "USE_PYWRAP_RULES" in (read(name) or "")),
        clang=_official_clang(rc),
        llvm=next((match[1] for name in LLVM if (match := LLVM_COMMIT.search(read(name) or ""))), ""),
    )


def _official_clang(rc: bazelrc.Rc) -> str:
    majors = {int(match[1]) for words in rc.options.values() for match in map(CLANG.fullmatch, words) if match}
    return f"clang-{max(majors)}" if majors else ""


def _setup(read: Read) -> str:
    paths = (f"{PIP}/{name}" for name in ("v2/setup.py", "setup.py", "setup.py.tpl"))
    return next((text for text in map(read, paths) if text), "")


def _guard(read: Read) -> tuple[str, ...]:
    """The message's order is that of the checks; up to 2.11 those of Windows builds, with AVX first, precede them."""
    source = read("tensorflow/core/platform/cpu_feature_guard.cc") or ""
    named = re.findall(r'CheckIfFeatureUnused\(CPUFeature::\w+,\s*"([^"]+)"', source)
    return tuple(dict.fromkeys(reversed(named)))[::-1]


def _cpu_numbers(read: Read) -> tuple[str, ...]:
    """`CPUFeature` in cpu_info.h: TensorFlow's own, TSL's, XLA's; a header that only includes another has none."""
    for folder in (
        "tensorflow/core",
        "tensorflow/tsl",
        "third_party/xla/third_party/tsl/tsl",
        "third_party/xla/xla/tsl",
    ):
        if numbers := re.findall(r"^  (\w+) = (\d+),", read(f"{folder}/platform/cpu_info.h") or "", re.MULTILINE):
            return tuple(map("=".join, numbers))
    return ()


def _calls_tool(read: Read, tool: str) -> bool:
    """Whether a shell script runs it at the beginning of a line, or other code as the first word of a list."""
    packer = next((text for text in map(read, PACKERS) if text), "")
    called = re.compile(rf'^ *{tool} -|\["{tool}",', re.M)
    return any(called.search(script) for script in (read("third_party/repo.bzl") or "", packer))


def _cuda_versions(rc: bazelrc.Rc, names: Iterable[str]) -> tuple[str, ...]:
    images = {"/".join(match.groups()) for match in map(CUDA_IMAGE.search, names) if match}
    both = [(values["CUDA"], values["CUDNN"]) for values in _cuda_settings(rc) if {"CUDA", "CUDNN"} <= set(values)]
    return tuple(sorted(images | {f"{cuda}/{cudnn}" for cuda, cudnn in both if "." in cuda}))


def _capabilities(rc: bazelrc.Rc, constants: Mapping[str, str]) -> tuple[str, ...]:
    default = constants.get("_DEFAULT_CUDA_COMPUTE_CAPABILITIES", "")
    return tuple(sorted({values.get("CUDA_COMPUTE", default) for values in _cuda_settings(rc)} | {default}))


def _cuda_settings(rc: bazelrc.Rc) -> Iterator[dict[str, str]]:
    """What each config sets of CUDA, CUDNN and CUDA_COMPUTE, without those of remote builds."""
    for config, options in rc.options.items():
        if "rbe" not in config:
            yield {match[1]: match[2] for match in map(CUDA_SETTING.fullmatch, options) if match}


def _system_libs(read: Read) -> tuple[str, ...]:
    valid = re.search(r"VALID_LIBS = \[(.*?)\]", read("third_party/systemlibs/syslibs_configure.bzl") or "", re.S)
    return tuple(sorted(re.findall(r'"([^"]+)"', valid[1]))) if valid else ()


def _version_in(read: Read) -> str:
    """In setup.py, from 2.20 on in tf_version.bzl."""
    newer = read("tensorflow/tf_version.bzl") or ""
    if match := re.search(r'^TF_VERSION = "(.+)"$', newer, re.M):
        # On master only: a release's branch has the plain version, and no suffix by default.
        return match[1]
    for path in (f"{PIP}/setup.py", f"{PIP}/v2/setup.py"):
        if match := re.search(r"^_VERSION = '(.+)'$", read(path) or "", re.M):
            return match[1]
    return ""


def _graph_date(read: Read) -> str:
    match = re.search(r"Updated: (\d+)/(\d+)/(\d+)", read(GRAPH_VERSION) or "")
    return f"{int(match[1]):04}-{int(match[2]):02}-{int(match[3]):02}" if match else ""


def _has_target(read: Read, target: str) -> bool:
    package, _, name = target.removeprefix("//").partition(":")
    return re.search(rf'^ *name = "{name}",$', read(f"{package}/BUILD") or "", re.M) is not None


def _constants(module: ast.Module) -> dict[str, str]:
    return {
        name.id: text
        for node in module.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
        for text in _text(node.value)
    }


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _variables(module: ast.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables that answer a question of what main() can come to, and the others that are read there.

    A function that takes `environ_cp` and `var_name` or `env_var` asks for that variable; those of `environ_cp` are
    read.
    """
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    reached, left = set[str](), ["main"]
    while left:
        name = left.pop()
        if name in functions and name not in reached:
            reached.add(name)
            left += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    asked, read = set[str](), set[str]()
    for name in reached:
        for node in ast.walk(functions[name]):
            asked |= set(_asked(node, functions))
            read |= set(_read(node))
    return tuple(sorted(asked)), tuple(sorted(read - asked))


def _asked(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions):
        return
    parameters = [argument.arg for argument in functions[node.func.id].args.args]
    if "environ_cp" in parameters:
        given = dict(zip(parameters, node.args, strict=False)) | {word.arg or "": word.value for word in node.keywords}
        yield from _text(given.get("var_name") or given.get("env_var"))


def _read(node: ast.AST) -> Iterator[str]:
    """environ_cp.get('NAME'), environ_cp['NAME'] and 'NAME' in environ_cp."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environment(node.value):
        yield from _text(node.slice)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield from _text(node.left) if _is_environment(node.comparators[0]) else ()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        yield from _text(node.args[0]) if _is_environment(node.func.value) else ()


def _is_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("environ_cp", "env")


def _text(node: ast.AST | None) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


# --- the facts that follow --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Said:
    """A row of the table `name` that a tree puts in place of the one with that `key`; None: its fact is gone."""

    name: str
    key: str
    row: RangeRow | None
    what: str
    file: str


def said(tree: TreeFacts, release: str) -> tuple[Said, ...]:
    """Return what the tree says otherwise than the facts on `release`, or on the newest release before it."""
    since = str(base(release))
    return (
        *_said_bazel(tree, release, since),
        *_said_pythons(tree, release, since),
        *_said_configs(tree, release, since),
        *_said_questions(tree, release),
        *_said_target(tree, release, since),
        *_said_compiler(tree, release, since),
        *_said_cuda(tree, release, since),
    )


def extended(rows: Iterable[Said], release: str) -> ReleaseTable:
    """Return the facts with those of a tree in place of others, from `release` on."""
    own, since = table(), str(base(release))
    changes: dict[str, tuple[RangeRow, ...]] = {}
    for said in rows:
        kept = changes.get(said.name, getattr(own, said.name))
        ended = (_ended(row, since) if row.key == said.key and row.covers(release) else row for row in kept)
        changes[said.name] = (*(row for row in ended if row), *([said.row] if said.row else []))
    return msgspec.structs.replace(own, **changes)


def _ended(row: RangeRow, since: str) -> RangeRow | None:
    return msgspec.structs.replace(row, before=since) if base(row.since) < base(since) else None


def unanswered(tree: TreeFacts, answers: Iterable[str], *, cuda: bool, compiler: str) -> tuple[str, ...]:
    """Return the questions of configure.py that a build meets and that `answers` leaves open."""
    other = "GCC_HOST" if compiler.startswith("clang") else "CLANG"
    left = [name for name in tree.questions if name not in set(answers) and not NEVER.fullmatch(name)]
    met = (name for name in left if not (name in FOR_CPU if cuda else FOR_CUDA.fullmatch(name)))
    return tuple(name for name in met if not (name.startswith(other) and name.endswith("COMPILER_PATH")))


def _said_bazel(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    if tree.bazelversion and tree.bazelversion != releases.row(table().bazel, release).version:
        row = Bazel(since=since, version=tree.bazelversion, source=".bazelversion")
        yield Said(name="bazel", key="", row=row, what=f"Bazel {tree.bazelversion}", file=".bazelversion")


def _said_pythons(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    if tree.lock_files and tree.lock_files != releases.pythons(release):
        files = "requirements_lock_3_*.txt"
        row = Python(since=since, versions=tree.lock_files, source=files)
        yield Said(name="python", key="", row=row, what=f"Python {', '.join(tree.lock_files)}", file=files)


def _said_configs(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    known = {row.name for row in table().config}
    for name in sorted(known | {name for name in tree.configs if CUDA_CONFIG.fullmatch(name)}):
        exists = name in tree.configs
        if exists is not (releases.config(name, release) or False):
            row = Config(since=since, name=name) if exists else None
            what = f"{'' if exists else 'no '}--config={name}"
            yield Said(name="config", key=name, row=row, what=what, file=".bazelrc")


def _said_questions(tree: TreeFacts, release: str) -> Iterator[Said]:
    gone = (row for row in releases.rows(table().configure, release) if row.variable not in tree.questions + tree.reads)
    for row in gone if tree.questions else ():
        yield Said(name="configure", key=row.key, row=None, what=f"no question for {row.variable}", file="configure.py")


def _said_target(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    if tree.wheel_targets and releases.wheel_target(release) not in tree.wheel_targets:
        known = next(row for row in reversed(table().wheel_target) if row.target in tree.wheel_targets)
        source = f"{known.target.removeprefix('//').partition(':')[0]}/BUILD"
        row = msgspec.structs.replace(known, since=since, before="", source=source)
        yield Said(name="wheel_target", key="", row=row, what=f"the wheel's target {row.target}", file=source)


def _said_compiler(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    """Say the Clang of the official builds; the official wheels' compiler of the releases before is not its own."""
    known = releases.compilers(release)
    if not tree.clang or tree.clang in {row.name for row in known}:
        return
    for own in (row for row in known if row.sure == "wheel"):
        yield Said(name="known_compiler", key=own.key, row=None, what=f"not {own.name}", file=".bazelrc")
    source = "the official builds in .bazelrc"
    row = KnownCompiler(since=since, name=tree.clang, sure="packagers", source=source)
    yield Said(name="known_compiler", key=row.key, row=row, what=tree.clang, file=".bazelrc")


def _said_cuda(tree: TreeFacts, release: str, since: str) -> Iterator[Said]:
    """Say the CUDA of `--config=cuda`, and those of other major versions that .bazelrc has configs for."""
    known = releases.cuda(release)
    own = _settings(tree, "cuda_version") or _settings(tree, "cuda")
    pairs = [_settings(tree, name) for name in tree.configs if CUDA_CONFIG.fullmatch(name)]
    if not known.hermetic or not own.get("CUDNN"):
        return
    row = msgspec.structs.replace(
        known,
        since=since,
        before="",
        version=own["CUDA"],
        cudnn=own["CUDNN"],
        capabilities=_settings(tree, "cuda_clang").get("CUDA_COMPUTE", known.capabilities),
        others=_added(known.others, known.version, *(pair["CUDA"] for pair in pairs), but=own["CUDA"]),
        others_cudnn=_added(known.others_cudnn, known.cudnn, *(pair["CUDNN"] for pair in pairs), but=own["CUDNN"]),
        pairs=tuple(f"{pair['CUDA']}/{pair['CUDNN']}" for pair in pairs if pair["CUDA"] != own["CUDA"]),
        sure="tree",
        source=".bazelrc",
    )
    fields = ("version", "cudnn", "capabilities", "others", "others_cudnn", "pairs")
    if any(getattr(row, name) != getattr(known, name) for name in fields):
        more = "".join(f", or {pair.replace('/', ' with ')}," for pair in row.pairs)
        what = f"CUDA {row.version} with cuDNN {row.cudnn}{more} for {row.capabilities}"
        yield Said(name="cuda", key="", row=row, what=what, file=".bazelrc")


def _added(known: tuple[str, ...], *more: str, but: str) -> tuple[str, ...]:
    return tuple(sorted({*known, *more} - {but}, key=Version))


def _settings(tree: TreeFacts, config: str) -> dict[str, str]:
    """Return what a config sets of CUDA, CUDNN and CUDA_COMPUTE, or the one that it stands for."""
    options = tree.configs.get(config, ())
    settings = {match[1]: match[2] for match in map(CUDA_SETTING.fullmatch, options) if match}
    named = [text.removeprefix("--config=") for text in options if text.startswith("--config=")]
    return settings or next((found for name in named if name != config and (found := _settings(tree, name))), {})
