"""What stands in the tree of TensorFlow 2.14.1 is what the table of trees and the facts say.

tests/facts/test_trees.py compares the other facts with the table.
"""

import ast
import re
from dataclasses import replace

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.contract import plans
from tests.contract.archive import RELEASE, Tree
from tests.facts import trees
from tfbuild import facts
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.plan import Build, failures
from tfbuild.plan.tree import parse_rc

GUARD = "tensorflow/core/platform/cpu_feature_guard.cc"
HERMETIC = "tensorflow/tools/toolchains/python/python_repo.bzl"

# Of the Pythons that the tree builds for, those that tfbuild still plans: 3.11 and newer.
OLDEST = 11


def test_the_table_of_trees_says_of_it_what_it_says_itself(tree: Tree) -> None:
    listed = trees.of(RELEASE)
    texts = {name: content.decode() for name, content in tree.contents.items()}
    assert listed is not None
    read = trees.stored(trees.read_record(texts.get, tree.names))
    # The table has them from configure.py's syntax tree: which variables are questions, and which are read elsewhere.
    # What plans ask of a tree is whether a variable is there at all.
    known = {name for name in listed.facts.questions + listed.facts.reads if name.startswith("TF_")}
    assert known <= {*read.questions, *read.reads}
    assert replace(read, questions=(), reads=()) == replace(listed.facts, questions=(), reads=())


def test_what_configure_writes_is_read_after_all_of_bazelrc_that_every_build_takes(tree: Tree) -> None:
    assert parse_rc(tree.text(".bazelrc"))["try-import"][0] == "%workspace%/.tf_configure.bazelrc"
    after = parse_rc(tree.text(".bazelrc").partition("try-import")[2])
    assert "build" not in after


@pytest.mark.parametrize("python", releases.pythons(RELEASE))
def test_numpy_of_the_lock_file_meets_the_constraints(python: str, tree: Tree) -> None:
    (locked,) = re.findall(r"^numpy==([0-9.]+) ", tree.text(f"requirements_lock_{python.replace('.', '_')}.txt"), re.M)
    requirements = [
        Requirement(text) for text in (*releases.constraints(RELEASE), *releases.constraints(RELEASE, step="build"))
    ]
    assert [one for one in requirements if one.name == "numpy"]
    assert [one for one in requirements if one.name == "numpy" if Version(locked) not in one.specifier] == []


def test_the_wheels_own_numpy_bound_is_the_constraint(tree: Tree) -> None:
    (bound,) = re.findall(r"'(numpy .+)'", tree.text("tensorflow/tools/pip_package/setup.py"))
    for version in ("1.23.5", "1.26.4", "2.0.0", "2.3.1"):
        constraints = [Requirement(text) for text in releases.constraints(RELEASE) if text.startswith("numpy")]
        assert all(version in one.specifier for one in constraints) is (version in Requirement(bound).specifier)


@pytest.mark.parametrize("build", plans.every("cpu"))
def test_the_variable_of_the_hermetic_python_is_the_one_that_the_tree_reads(build: Build, tree: Tree) -> None:
    (variable,) = re.findall(r'os\.environ\.get\("(\w+)"', tree.text(HERMETIC))
    assert f"--repo_env={variable}={build.python}" in build.bazel_flags
    assert HERMETIC.partition("/")[0] in tree.text("WORKSPACE")
    assert f'load(\n    "//{HERMETIC.rpartition("/")[0]}:python_repo.bzl"' in tree.text("WORKSPACE")


def test_a_python_without_lock_file_is_silently_another_one_in_this_release(tree: Tree) -> None:
    (known,) = re.findall(r"^VERSIONS = (\[.+\])$", tree.text(HERMETIC), re.M)
    assert [one for one in ast.literal_eval(known) if int(one[2:]) >= OLDEST] == list(releases.pythons(RELEASE))
    symptoms = {row.id: row.symptom for row in failures.known_failures(RELEASE)}
    assert "lock-file-python" not in symptoms
    assert symptoms["python-default"].partition(":")[0] in re.sub(r"\s+", " ", tree.text(HERMETIC))


# --- oneDNN and the guard --------------------------------------------------------------------------------------------


def test_onednn_is_compiled_in_and_on_by_default_as_the_rows_say(tree: Tree) -> None:
    rows = {row.arch: row for row in releases.rows(table().onednn, RELEASE)}
    (always,) = re.findall(
        r"def if_mkl\(.*?return select\(\{(.*?)\}\)", tree.text("tensorflow/tsl/mkl/build_defs.bzl"), re.S
    )
    assert ("tsl:linux_x86_64" in always) is rows["x86_64"].compiled
    assert ("tsl:linux_aarch64" in always) is rows["aarch64"].compiled
    policy = tree.text("tensorflow/core/util/port.cc").partition("DefaultOneDnnPolicy")[2].partition("#else")[0]
    assert tuple(re.findall(r"port::CPUFeature::(\w+)", policy)) == rows["x86_64"].on_with


def test_the_guard_asks_for_the_macros_of_the_features_but_for_amx(tree: Tree) -> None:
    stops = re.findall(r'^#ifdef (\w+)\n    CheckFeatureOrDie\(CPUFeature::(\w+), "([^"]+)"\);', tree.text(GUARD), re.M)
    tells = re.findall(
        r'^#ifndef (\w+)\n    CheckIfFeatureUnused\(CPUFeature::(\w+), "([^"]+)"', tree.text(GUARD), re.M
    )
    assert stops == tells
    assert len(stops) == len(releases.guard(RELEASE))
    macros = {row.tensorflow: row.macro for row in facts.features("x86_64") if row.tensorflow}
    wrong = {name for macro, _, name in stops if macro != macros.get(name, f"__{name}__")}
    assert wrong == {"AMX_TILE", "AMX_INT8", "AMX_BF16"}
    assert releases.guard_judged(RELEASE) == {row.name for row in releases.guard(RELEASE)} - wrong
