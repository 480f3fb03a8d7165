"""The facts of all releases against real source trees: data/trees.json, which `python -m tests.trees` makes of them.

Every release to 2.15.0 has its own tree there. A newer one is held against the trees of master before and after it:
what both say is the fact; where they differ, the fact is what one of them says, or is not certain.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests import trees
from tests.trees import Facts, Tree
from tfbuild import plan
from tfbuild.errors import TfbuildError, UncertainFact
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import table

ALL = tuple(row.version for row in releases.releases())
EXACT = tuple(release for release in ALL if trees.of(release))
LATER = tuple(release for release in ALL if release not in EXACT)
# Questions that a build for Linux never meets: of another system, or behind a "yes" that is never given.
NEVER = re.compile(
    "ANDROID_.*|MPI_HOME|HOST_C(XX)?_COMPILER|TF_(OVERRIDE_EIGEN_STRONG_INLINE|CONFIGURE_IOS|TENSORRT_VERSION)|"
    "COMPUTECPP_TOOLKIT_PATH|TRISYCL_INCLUDE_DIR|TF_NEED_COMPUTECPP"
)
CUDA = re.compile(
    "(TF|HERMETIC|LOCAL)_(CUDA|CUDNN|NCCL)_.*|TF_NEED_TENSORRT|CLANG_CUDA_COMPILER_PATH|GCC_HOST_COMPILER_PATH"
)
CPU = {"TF_NEED_CLANG", "CLANG_COMPILER_PATH"}


def each(release: str) -> tuple[Facts, ...]:
    return tuple(tree.facts for tree in trees.around(release))


def told(release: str, value: Callable[[Facts], Any]) -> list[Any]:
    """What the trees around a release say, each answer once."""
    answers = [value(facts) for facts in each(release)]
    return [answer for place, answer in enumerate(answers) if answer not in answers[:place]]


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_release_to_2_15_0_has_its_own_tree_and_the_later_ones_lie_between_two() -> None:
    assert ALL[: len(EXACT)] == EXACT
    assert EXACT[-1] == "2.15.0"
    assert all(len(trees.around(release)) == 2 for release in LATER)
    dates = [tree.facts.dated for tree in trees.trees() if not tree.exact]
    assert dates == sorted(set(dates))


@pytest.mark.parametrize("tree", [tree for tree in trees.trees() if tree.exact], ids=lambda tree: tree.name)
def test_a_trees_commit_and_version_are_the_releases(tree: Tree) -> None:
    row = releases.get(tree.name)
    assert (row.sure, row.commit) == ("exact", tree.commit)
    assert tree.facts.version == tree.name


def test_the_table_is_what_its_trees_would_write_again() -> None:
    assert trees.dump(trees.trees()) == trees.FILE.read_text(encoding="utf-8")


# --- Bazel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
def test_bazel_is_the_trees_own_and_within_what_configure_accepts(release: str) -> None:
    row = releases.row(table().bazel, release)
    versions = told(release, lambda facts: facts.bazelversion)
    try:
        assert releases.bazel(release) in versions or versions == [""]
    except UncertainFact:
        assert sorted(row.candidates) == sorted(versions)
    (bounds,) = told(release, lambda facts: (facts.oldest_bazel, facts.newest_bazel))
    assert (row.oldest, row.newest) == bounds
    if bounds[0]:
        assert Version(bounds[0]) <= Version(releases.bazel(release)) <= Version(bounds[1])


# --- configs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", trees.CONFIGS)
def test_a_config_is_there_exactly_where_its_rows_say(name: str) -> None:
    for release in ALL:
        there = told(release, lambda facts: name in facts.config_names)
        known = releases.config(name, release)
        assert known is None or known in there, release
        assert known is not None or len(there) == 2, release


@pytest.mark.parametrize("name", trees.CONFIGS)
def test_a_config_stands_for_what_its_rows_say(name: str) -> None:
    for release in ALL:
        for row in releases.rows(table().config, release, name):
            expected = tuple(shlex.split(" ".join(row.expands)))
            found = told(release, lambda facts: facts.configs.get(name))
            if row.sure == "unknown":  # what the plan passes in place of the config: nothing that it did not stand for
                assert any(set(expected) <= set(flags or ()) for flags in found), release
            else:
                assert not expected or expected in found, release


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("platform", plan.PLATFORMS)
@pytest.mark.parametrize("release", ALL)
def test_every_config_of_a_default_plan_stands_in_the_tree(release: str, platform: str, target: str) -> None:
    try:
        threading = releases.threading(release, plan.PLATFORMS[platform]) if target == "mkl" else ""
        configs = releases.configs(release, target, plan.PLATFORMS[platform], threading)
    except TfbuildError:
        return
    there = [set(configs) <= set(facts.config_names) for facts in each(release)]
    assert any(there)
    assert all(there) or release in LATER


# --- the wheel, Python -----------------------------------------------------------------------------------------------


def test_host_tools_are_generic_though_a_tree_gives_them_the_targets_configuration() -> None:
    shared = "--distinct_host_configuration=false"
    trees_own = {name for name in EXACT if any(shared in facts.configs.get("linux", ()) for facts in each(name))}
    assert {"2.6.0", "2.12.1"} <= trees_own
    assert not {"2.5.3", "2.13.0"} & trees_own
    for release in trees_own:
        assert toolchains.host_apart_flags(releases.bazel(release, "x86_64")) == ("--distinct_host_configuration=true",)


@pytest.mark.parametrize("release", ALL)
def test_the_wheels_target_is_in_its_build_file(release: str) -> None:
    there = each(release)
    fitting = [facts for facts in there if releases.wheel_target(release) in facts.wheel_targets]
    assert fitting == list(there) or release in LATER
    assert fitting


@pytest.mark.parametrize("release", ALL)
def test_pythons_of_a_hermetic_build_have_a_lock_file(release: str) -> None:
    locked = told(release, lambda facts: set(facts.lock_files))
    assert releases.hermetic(release) == any(locked)
    if releases.hermetic(release):
        assert any(set(releases.pythons(release)) <= names for names in locked)
        assert release in LATER or [set(releases.pythons(release))] == locked


# --- configure.py ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["gcc-12", "clang-18"])
@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("release", ALL)
def test_every_question_that_configure_asks_is_answered(release: str, target: str, compiler: str) -> None:
    answered = {name for name, _ in releases.configure_env(release, target, compiler=compiler)}
    other = "GCC_HOST" if compiler.startswith("clang") else "CLANG"
    asked = [
        {
            name
            for name in facts.questions
            if not NEVER.fullmatch(name)
            and not (name in CPU if target == "cuda" else CUDA.fullmatch(name))
            and not (name.startswith(other) and name.endswith("COMPILER_PATH"))
        }
        for facts in each(release)
    ]
    assert any(names <= answered for names in asked), [sorted(names - answered) for names in asked]
    assert release in LATER or all(names <= answered for names in asked)


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("release", EXACT)
def test_no_variable_is_set_that_configure_does_not_know(release: str, target: str) -> None:
    (facts,) = each(release)
    for compiler in ("gcc-12", "clang-18"):
        answered = {name for name, _ in releases.configure_env(release, target, compiler=compiler)}
        assert answered <= {*facts.questions, *facts.reads}


# --- the reader ------------------------------------------------------------------------------------------------------

CONFIGURE = """
_TF_MIN_BAZEL_VERSION = '1.0.0'
_TF_MAX_BAZEL_VERSION = '2.0.0'
def get_var(environ_cp, var_name, query):
  var = environ_cp.get(var_name)
def write(var_name, var):
  pass
def check_bazel_version(oldest, newest):
  pass
def unused(environ_cp):
  get_var(environ_cp, 'TF_UNUSED', 'x')
def nested(environ_cp):
  get_var(environ_cp, query='x', var_name='TF_NAMED')
  if 'TF_READ' in environ_cp:
    write('TF_WRITTEN', environ_cp['TF_TAKEN'])
def main():
  check_bazel_version(_TF_MIN_BAZEL_VERSION, _TF_MAX_BAZEL_VERSION)
  get_var(environ_cp, 'TF_ASKED', 'x')
  nested(environ_cp)
"""


def test_a_trees_facts_are_read(tmp_path: Path) -> None:
    files = {
        ".bazelversion": "1.2.3\n# a note\n",
        ".bazelrc": "build:mkl --define=a=1 # so\nbuild:mkl -c opt\ncommon:other --x\ntest:tests --y\n",
        "configure.py": CONFIGURE,
        "tensorflow/tools/pip_package/BUILD": 'py_wheel(\n    name = "wheel",\n)\n',
        "tensorflow/tools/pip_package/setup.py": "_VERSION = '2.18.0'\n",
        "tensorflow/core/public/version.h": "#define TF_GRAPH_DEF_VERSION 7  // Updated: 2024/7/9\n",
        "requirements_lock_3_9.txt": "",
        "requirements_lock_3_10.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = trees.tree("here", str(tmp_path))
    assert (found.name, found.exact) == ("2024-07-09", False)
    facts = found.facts
    assert (facts.version, facts.bazelversion, facts.oldest_bazel, facts.newest_bazel) == (
        "2.18.0",
        "1.2.3",
        "1.0.0",
        "2.0.0",
    )
    assert facts.config_names == ("mkl", "other")
    assert facts.configs == {"mkl": ("--define=a=1", "-c", "opt")}
    assert facts.wheel_targets == ("//tensorflow/tools/pip_package:wheel",)
    assert facts.questions == ("TF_ASKED", "TF_NAMED")
    assert facts.reads == ("TF_READ", "TF_TAKEN")
    assert facts.lock_files == ("3.9", "3.10")


def test_a_tree_of_today_says_its_version_elsewhere() -> None:
    files = {"tensorflow/tf_version.bzl": 'TF_VERSION = "2.22.0"\nMAJOR = TF_VERSION.split(".")[0]\n'}
    assert trees.extract(files.get, []).version == "2.22.0"
