"""What TensorFlow's source trees say of their own build, read once and kept in data/trees.json.

    python -m tests.facts.trees SOURCE=FOLDER[@REVISION] ...

adds trees to the table, or replaces them; without the file it begins a new one. FOLDER is a tree, or a git directory
where a revision is named; SOURCE says where it is from.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
from packaging.version import Version

from tfbuild import facts
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.plan import failures
from tfbuild.plan import tree as source_tree
from tfbuild.plan.tree import CUDA_SETTING, PIP, ReadText, TreeFacts

FILE = Path(__file__).parents[1] / "data" / "trees.json"
# What the facts say something about, and --config=linux, which gives host tools the target's flags in some releases.
# Of other configs the table has the names.
CONFIGS = tuple(sorted({row.name for row in table().config} | {"linux"}))
GRAPH_VERSION = "tensorflow/core/public/version.h"
# TensorFlow's own build images name their CUDA and cuDNN; later trees name theirs in .bazelrc.
CUDA_IMAGE = re.compile(r"cuda(\d+\.\d+)(?:\.\d+)?-cudnn(\d+(?:\.\d+)?)")
# What packs the wheel: the first one that the tree has. 2.16 has an unused older one too.
PACKERS = tuple(f"{PIP}/{name}" for name in ("v2/build_pip_package.py", "build_pip_package.py", "build_pip_package.sh"))
SETUPS = tuple(f"{PIP}/{name}" for name in ("v2/setup.py", "setup.py", "setup.py.tpl"))
# The settings of the official builds, and of all builds.
PYWRAP = (".bazelrc", *(f"ci/official/envs/{name}" for name in ("linux_arm64", "linux_x86", "linux_x86_cuda")))
# `CPUFeature`: TensorFlow's own, TSL's, XLA's; a header that only includes another has none.
CPU_FOLDERS = ("tensorflow/core", "tensorflow/tsl", "third_party/xla/third_party/tsl/tsl", "third_party/xla/xla/tsl")
CPU_INFO = tuple(f"{folder}/platform/cpu_info.h" for folder in CPU_FOLDERS)
# What fixes change, by name: the edits of the same files.
EDITS = {
    f"{row.id} {files}": [edit for edit in row.edits if edit.files == files]
    for row in facts.rows("failures", failures.Failure)
    for files in dict.fromkeys(edit.files for edit in row.edits)
}
# Since this day nobody updates TF_GRAPH_DEF_VERSION: a tree of 2026-06 still has it.
FROZEN = "2026-01-16"


@dataclass(frozen=True, kw_only=True)
class TreeRecord(TreeFacts):
    """What the product reads of a tree, and what the facts are compared with besides.

    `dated`: the day of the last change of TF_GRAPH_DEF_VERSION; `pythons`: those from 3.11 on that setup.py names;
    `guard`: CPU features in the order of TensorFlow's message; `cpu_numbers`: NAME=NUMBER of its enum CPUFeature;
    `host_tools`: those known that it calls; `cuda`: "CUDA/cuDNN" of its build images and of .bazelrc; `capabilities`:
    the lists of CUDA compute capabilities in .bazelrc, and configure.py's default; `system_libs`: what TF_SYSTEM_LIBS
    may name; `pywrap`: those of PYWRAP that switch the rules on; `wheel_targets`: the known ones that exist.
    """

    wheel_targets: tuple[str, ...]
    dated: str
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
    """`exact`: the commit is the release's own.

    `fixes`: how many files each of EDITS would change; of edits with one name, the fewest.
    """

    name: str
    source: str
    commit: str
    exact: bool
    facts: TreeRecord
    fixes: Mapping[str, int]


# --- the table -------------------------------------------------------------------------------------------------------


@cache
def trees() -> tuple[Tree, ...]:
    """Those in the table: releases in their order, then snapshots of master by their date."""
    return msgspec.json.decode(FILE.read_bytes(), type=tuple[Tree, ...])


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


def dump(trees: Iterable[Tree]) -> str:
    """The table as JSON, a line a tree."""
    return "[\n" + ",\n".join(msgspec.json.encode(tree).decode() for tree in trees) + "\n]\n"


def stored(facts: TreeRecord) -> TreeRecord:
    """Return what the table has of them: of configs that the facts do not name, only that they exist."""
    configs = {name: options if name in CONFIGS else () for name, options in facts.configs.items()}
    return replace(facts, configs=configs, clang="")


# --- reading ---------------------------------------------------------------------------------------------------------


def read_record(read_text: ReadText, names: Iterable[str]) -> TreeRecord:
    """Return the facts of one tree; `names`: the paths of its files."""
    names = list(names)
    rc = source_tree.parse_rc(read_text(".bazelrc") or "")
    default = re.search("^_DEFAULT_CUDA_COMPUTE_CAPABILITIES = '(.+)'", read_text("configure.py") or "", re.M)
    capabilities = default[1] if default else ""
    known_targets = sorted({row.target for row in table().wheel_target})
    return TreeRecord(
        **vars(source_tree.read_tree(read_text, names)),
        wheel_targets=tuple(target for target in known_targets if _has_target(read_text, target)),
        dated=_graph_date(read_text(GRAPH_VERSION) or ""),
        pythons=tuple(re.findall(r"Programming Language :: Python :: (3\.1[1-9])", _first(read_text, SETUPS))),
        guard=_guard(read_text("tensorflow/core/platform/cpu_feature_guard.cc") or ""),
        cpu_numbers=next((found for name in CPU_INFO if (found := _cpu_numbers(read_text(name) or ""))), ()),
        host_tools=_host_tools(read_text),
        cuda=_cuda_versions(rc, names),
        capabilities=tuple(
            sorted({values.get("CUDA_COMPUTE", capabilities) for values in _cuda_settings(rc)} | {capabilities})
        ),
        system_libs=_system_libs(read_text("third_party/systemlibs/syslibs_configure.bzl") or ""),
        pywrap=tuple(name for name in PYWRAP if "USE_PYWRAP_RULES" in (read_text(name) or "")),
    )


def _first(read_text: ReadText, names: Iterable[str]) -> str:
    """The text of the first of these files that the tree has."""
    return next((text for text in map(read_text, names) if text), "")


def _has_target(read_text: ReadText, target: str) -> bool:
    package, _, name = target.removeprefix("//").partition(":")
    return re.search(rf'^ *name = "{name}",$', read_text(f"{package}/BUILD") or "", re.M) is not None


def _graph_date(header: str) -> str:
    match = re.search(r"Updated: (\d+)/(\d+)/(\d+)", header)
    return f"{int(match[1]):04}-{int(match[2]):02}-{int(match[3]):02}" if match else ""


def _guard(source: str) -> tuple[str, ...]:
    """The message's order is that of the checks; those of Windows builds, with AVX first, may precede them."""
    named = re.findall(r'CheckIfFeatureUnused\(CPUFeature::\w+,\s*"([^"]+)"', source)
    return tuple(dict.fromkeys(reversed(named)))[::-1]


def _cpu_numbers(header: str) -> tuple[str, ...]:
    return tuple(map("=".join, re.findall(r"^  (\w+) = (\d+),", header, re.M)))


def _host_tools(read_text: ReadText) -> tuple[str, ...]:
    """Those that a shell script runs at the beginning of a line, or other code as the first word of a list."""
    scripts = (read_text("third_party/repo.bzl") or "") + "\n" + _first(read_text, PACKERS)
    known = sorted({row.name for row in table().host_tool})
    return tuple(tool for tool in known if re.search(rf'^ *{tool} -|\["{tool}",', scripts, re.M))


def _cuda_versions(rc: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> tuple[str, ...]:
    images = {"/".join(match.groups()) for match in map(CUDA_IMAGE.search, names) if match}
    both = [(values["CUDA"], values["CUDNN"]) for values in _cuda_settings(rc) if {"CUDA", "CUDNN"} <= set(values)]
    return tuple(sorted(images | {f"{cuda}/{cudnn}" for cuda, cudnn in both if "." in cuda}))


def _cuda_settings(rc: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """What each config sets of CUDA, CUDNN and CUDA_COMPUTE, without those of remote builds."""
    for config, options in rc.items():
        if "rbe" not in config:
            yield {match[1]: match[2] for match in map(CUDA_SETTING.fullmatch, options) if match}


def _system_libs(rules: str) -> tuple[str, ...]:
    valid = re.search(r"VALID_LIBS = \[(.*?)\]", rules, re.S)
    return tuple(sorted(re.findall(r'"([^"]+)"', valid[1]))) if valid else ()


# --- places ----------------------------------------------------------------------------------------------------------


def tree(source: str, place: str) -> Tree:
    """The tree at FOLDER or FOLDER@REVISION."""
    folder, _, revision = place.partition("@")
    commit = _git(folder, "rev-parse", f"{revision}^{{commit}}").strip() if revision else ""
    facts, fixes = _in_git(folder, commit) if commit else (folder_record(Path(folder)), {})
    own = next((row.commit for row in releases.releases() if row.version == facts.version), "")
    exact = bool(commit and own) and commit.startswith(own)
    name = facts.version if exact else facts.dated
    return Tree(name=name, source=source, commit=commit, exact=exact, facts=facts, fixes=fixes)


def folder_record(folder: Path) -> TreeRecord:
    def read(path: str) -> str | None:
        return (folder / path).read_text(encoding="utf-8") if (folder / path).is_file() else None

    return read_record(read, [path.name for path in folder.iterdir()])


def _in_git(folder: str, commit: str) -> tuple[TreeRecord, dict[str, int]]:
    names = set(_git(folder, "ls-tree", "-r", "--name-only", commit).splitlines())

    def read(path: str) -> str | None:
        return _git(folder, "show", f"{commit}:{path}") if path in names else None

    edited = {name: min(_edited(folder, commit, edit) for edit in edits) for name, edits in EDITS.items()}
    facts = read_record(read, names)
    if facts.dated == FROZEN:
        facts = replace(facts, dated=_git(folder, "log", "-1", "--format=%cs", commit, "--", GRAPH_VERSION).strip())
    return facts, {name: count for name, count in edited.items() if count}


def _edited(folder: str, commit: str, edit: failures.Edit) -> int:
    """How many files the edit changes; git finds those that have any of its lines."""
    found = _git(folder, "grep", "-lFe", edit.find, commit, "--", f":(glob){edit.files}", allowed=1).splitlines()
    return sum(edit.find in _git(folder, "show", name) for name in found)


def _git(folder: str, *arguments: str, allowed: int = 0) -> str:
    """What git says; `allowed`: an exit code that is no failure."""
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
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
