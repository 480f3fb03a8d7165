"""What TensorFlow's source trees say of their own build, read once and kept in data/trees.json.

    python -m tests.facts.trees SOURCE=FOLDER[@REVISION] ...

adds trees to the table, or replaces them; without the file it begins a new one. FOLDER is a tree, or a git directory
where a revision is named; SOURCE says where it is from. The table holds each fact as [first, last, value] over trees in
a row.
"""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.contract import bazelrc
from tfbuild.context import dockerfile
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.plan import failures

FILE = Path(__file__).parents[1] / "data" / "trees.json"
PIP = "tensorflow/tools/pip_package"
# What the facts say something about, and --config=linux, which gives host tools the target's flags in some releases.
CONFIGS = tuple(sorted({row.name for row in table().config} | {"linux"}))
TARGETS = tuple(sorted({row.target for row in table().wheel_target}))
# What fixes change, by name: an edit's text and the files that it is looked for in; a patch.
EDITS = {f"{row.id} {edit.files}": edit for row in failures.table().failure for edit in row.edits}
TREE_PATCHES = dockerfile.TEMPLATES / "patches"
PATCHES = {row.id: TREE_PATCHES / f"{row.id}.patch" for row in failures.table().failure if row.patch}
GRAPH_VERSION = "tensorflow/core/public/version.h"
LOCK = re.compile(r"requirements_lock_(\d+)_(\d+)\.txt")
# TensorFlow's own build images name their CUDA and cuDNN; later trees name theirs in .bazelrc.
CUDA_IMAGE = re.compile(r"cuda(\d+\.\d+)(?:\.\d+)?-cudnn(\d+(?:\.\d+)?)")
CUDA_SETTING = re.compile(
    r"(?:--(?:action|repo)_env=)?(?:TF|HERMETIC)_(CUDA|CUDNN|CUDA_COMPUTE)_(?:VERSION|CAPABILITIES)=(.+)"
)
# What packs the wheel: the first one that the tree has. 2.16 has an unused older one too.
PACKERS = tuple(f"{PIP}/{name}" for name in ("v2/build_pip_package.py", "build_pip_package.py", "build_pip_package.sh"))
# The settings of the official builds, and of all builds.
PYWRAP = (".bazelrc", *(f"ci/official/envs/{name}" for name in ("linux_arm64", "linux_x86", "linux_x86_cuda")))
# Since this day nobody updates TF_GRAPH_DEF_VERSION: a tree of 2026-06 still has it.
FROZEN = "2026-01-16"
HOST_TOOLS = tuple(sorted({row.name for row in table().host_tool}))

# A file's text by its path, None where the tree has no such file.
Read = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`version`: as the tree has it, with "-dev"; `dated`: the day of the last change of TF_GRAPH_DEF_VERSION,
    after FROZEN the day on which the tree was copied from master.

    `oldest_bazel` and `newest_bazel`: what configure.py insists on; `questions`: the variables that answer it;
    `reads`: the other variables that it reads; `configs`: what each of CONFIGS stands for, where .bazelrc has it;
    `wheel_targets`: those of TARGETS that are there; `lock_files`: Pythons with a file of pinned packages; `pythons`:
    those that setup.py names; `guard`: CPU features in the order of TensorFlow's message; `cpu_numbers`:
    NAME=NUMBER of its enum CPUFeature; `host_tools`: those of HOST_TOOLS that it calls; `cuda`: "CUDA/cuDNN" of its
    build images and of .bazelrc; `capabilities`: the lists of CUDA compute capabilities in .bazelrc, and
    configure.py's default; `system_libs`: what TF_SYSTEM_LIBS may name;
    `pywrap`: those of PYWRAP that switch the rules on.
    """

    version: str
    dated: str
    bazelversion: str
    oldest_bazel: str
    newest_bazel: str
    config_names: tuple[str, ...]
    configs: dict[str, tuple[str, ...]]
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


@dataclass(frozen=True, kw_only=True)
class Tree:
    """`exact`: the commit is the release's own; `fixes`: how many files each of EDITS and PATCHES would change."""

    name: str
    source: str
    commit: str
    exact: bool
    facts: Facts
    fixes: Mapping[str, int]


# --- the table -------------------------------------------------------------------------------------------------------


@cache
def trees() -> tuple[Tree, ...]:
    """Those in the table: releases in their order, then snapshots of master by their date."""
    table = json.loads(FILE.read_text(encoding="utf-8"))
    names = [row["name"] for row in table["trees"]]
    values: dict[str, dict[str, Any]] = {name: {"configs": {}} for name in names}
    fixes: dict[str, dict[str, int]] = {name: {} for name in names}
    for key, name, value in _spread(table["facts"], names):
        values[name][key] = _frozen(value)
    for key, name, value in _spread(table["configs"], names):
        values[name]["configs"][key] = _frozen(value)
    for key, name, value in _spread(table["fixes"], names):
        fixes[name][key] = value
    return tuple(Tree(**row, facts=Facts(**values[row["name"]]), fixes=fixes[row["name"]]) for row in table["trees"])


def of(release: str) -> Tree | None:
    """The release's own tree."""
    return next((tree for tree in trees() if tree.exact and tree.name == release), None)


def around(release: str) -> tuple[Tree, ...]:
    """The trees that say how a release is, by how its row is known (`sure` in releases.toml).

    That is its own tree, the last one before it ("near-exact"), that and the first one after it (by version and date),
    or those of the release before ("inherited").
    """
    known = [row for row in releases.releases() if Version(row.version) <= Version(release)]
    row = next(row for row in reversed(known) if row.sure != "inherited")
    own = of(row.version)
    if own:
        return (own,)
    in_order = sorted(trees(), key=lambda tree: (_version(tree), tree.exact, tree.facts.dated))
    before = [tree for tree in in_order if _version(tree) <= Version(row.version)]
    after = [tree for tree in in_order if _version(tree) > Version(row.version)]
    return (*before[-1:], *after[:1]) if row.sure == "bracketed" else tuple(before[-1:])


def _version(tree: Tree) -> Version:
    """Master says 2.20.0-dev from the day on which 2.19's branch was cut: before 2.20.0, after 2.19's last patch."""
    return Version(tree.facts.version)


def _spread(runs: dict[str, list[tuple[str, str, Any]]], names: list[str]) -> Iterator[tuple[str, str, Any]]:
    for key, rows in runs.items():
        for first, last, value in rows:
            for name in names[names.index(first) : names.index(last) + 1]:
                yield key, name, value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def dump(trees: Iterable[Tree]) -> str:
    """The table as JSON, a line a run."""
    rows = list(trees)
    names = [tree.name for tree in rows]
    keys = [field.name for field in fields(Facts) if field.name != "configs"]
    columns = {key: [getattr(tree.facts, key) for tree in rows] for key in keys}
    configs = {key: [tree.facts.configs.get(key) for tree in rows] for key in CONFIGS}
    fixes = {key: [tree.fixes.get(key) for tree in rows] for key in (*EDITS, *PATCHES)}
    about = [{key: value for key, value in asdict(tree).items() if key not in ("facts", "fixes")} for tree in rows]
    return (
        '{"trees": [\n'
        + ",\n".join(json.dumps(row) for row in about)
        + '],\n"facts": '
        + _runs(columns, names)
        + ',\n"configs": '
        + _runs(configs, names)
        + ',\n"fixes": '
        + _runs(fixes, names)
        + "}\n"
    )


def _runs(columns: dict[str, list[Any]], names: list[str]) -> str:
    """[first, last, value] for each run of equal values; none for None, and no key without any."""
    shown = []
    for key, values in columns.items():
        groups = [
            list(group) for _, group in itertools.groupby(zip(names, values, strict=True), key=lambda one: one[1])
        ]
        lines = [json.dumps([group[0][0], group[-1][0], group[0][1]]) for group in groups if group[0][1] is not None]
        if lines:
            shown.append(f"{json.dumps(key)}: [\n" + ",\n".join(lines) + "]")
    return "{\n" + ",\n".join(shown) + "}"


# --- a tree ----------------------------------------------------------------------------------------------------------


def extract(read: Read, names: Iterable[str]) -> Facts:
    """Return the facts of one tree; `names`: the paths of its files."""
    rc = bazelrc.parse(read(".bazelrc") or "")
    configure = ast.parse(read("configure.py") or "")
    constants = _constants(configure)
    insists = bool(list(_calls(configure, "check_bazel_version")))
    questions, reads = _variables(configure)
    return Facts(
        version=_version_in(read),
        dated=_graph_date(read),
        bazelversion=(read(".bazelversion") or "").partition("\n")[0].strip(),
        oldest_bazel=constants.get("_TF_MIN_BAZEL_VERSION", "") if insists else "",
        newest_bazel=constants.get("_TF_MAX_BAZEL_VERSION", "") if insists else "",
        config_names=tuple(sorted(rc.configs)),
        configs={name: rc.options.get(f"common:{name}", ()) + rc.build(name) for name in CONFIGS if name in rc.configs},
        wheel_targets=tuple(target for target in TARGETS if _has_target(read, target)),
        questions=questions,
        reads=reads,
        lock_files=tuple(sorted((f"{one[1]}.{one[2]}" for one in map(LOCK.fullmatch, names) if one), key=Version)),
        pythons=tuple(re.findall(r"Programming Language :: Python :: (\d\.\d+)", _setup(read))),
        guard=_guard(read),
        cpu_numbers=_cpu_numbers(read),
        host_tools=tuple(tool for tool in HOST_TOOLS if _calls_tool(read, tool)),
        cuda=_cuda_versions(rc, names),
        capabilities=_capabilities(rc, constants),
        system_libs=_system_libs(read),
        pywrap=tuple(name for name in PYWRAP if "USE_PYWRAP_RULES" in (read(name) or "")),
    )


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

    A function that takes `environ_cp` and `var_name` asks for that variable; those of `environ_cp` are read.
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
    if {"environ_cp", "var_name"} <= set(parameters):
        given = dict(zip(parameters, node.args, strict=False)) | {word.arg or "": word.value for word in node.keywords}
        yield from _text(given.get("var_name"))


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


# --- places ----------------------------------------------------------------------------------------------------------


def tree(source: str, place: str) -> Tree:
    """The tree at FOLDER or FOLDER@REVISION."""
    folder, _, revision = place.partition("@")
    commit = _git(folder, "rev-parse", f"{revision}^{{commit}}").strip() if revision else ""
    facts, fixes = _in_git(folder, commit) if commit else (_in_folder(Path(folder)), {})
    own = next((row.commit for row in releases.releases() if row.version == facts.version), "")
    exact = bool(commit and own) and commit.startswith(own)
    return Tree(
        name=facts.version if exact else facts.dated,
        source=source,
        commit=commit,
        exact=exact,
        facts=facts,
        fixes=fixes,
    )


def _in_folder(folder: Path) -> Facts:
    def read(path: str) -> str | None:
        file = folder / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    return extract(read, [str(path.relative_to(folder)) for path in folder.rglob("*")])


def _in_git(folder: str, commit: str) -> tuple[Facts, dict[str, int]]:
    names = set(_git(folder, "ls-tree", "-r", "--name-only", commit).splitlines())

    def read(path: str) -> str | None:
        return _git(folder, "show", f"{commit}:{path}") if path in names else None

    edited = {
        name: len(_git(folder, "grep", "-lF", edit.find, commit, "--", f":(glob){edit.files}", allowed=1).splitlines())
        for name, edit in EDITS.items()
    }
    patched = {name: _patched(folder, commit, patch) for name, patch in PATCHES.items()}
    facts = extract(read, names)
    if facts.dated == FROZEN:
        facts = replace(facts, dated=_git(folder, "log", "-1", "--format=%cs", commit, "--", GRAPH_VERSION).strip())
    return facts, {name: count for name, count in {**edited, **patched}.items() if count}


def _patched(folder: str, commit: str, patch: Path) -> int:
    """How many files the patch changes; 0 where it does not apply."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {**os.environ, "GIT_INDEX_FILE": f"{scratch}/index", "GIT_WORK_TREE": scratch}
        _git(folder, "read-tree", commit, env=own)
        applied = ["git", "-C", folder, "apply", "--cached", str(patch)]
        if subprocess.run(applied, capture_output=True, env=own).returncode:
            return 0
        return len(_git(folder, "diff", "--cached", "--name-only", commit, env=own).splitlines())


def _git(folder: str, *arguments: str, allowed: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What git says; `allowed`: an exit code that is no failure."""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, env=env)
    if done.returncode not in (0, allowed):
        raise ChildProcessError(done.stderr)
    return done.stdout


def main(words: list[str]) -> None:
    read = [tree(*word.split("=", 1)) for word in words]
    rows = {row.name: row for row in (*(trees() if FILE.exists() else ()), *read)}
    order = {row.version: place for place, row in enumerate(releases.releases())}
    in_order = sorted(rows.values(), key=lambda row: (not row.exact, order.get(row.name, 0), row.name))
    FILE.write_text(dump(in_order), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
