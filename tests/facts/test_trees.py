"""The facts of all releases, compared with real trees: data/trees.json, written by `python -m tests.facts.trees`.

Every release up to 2.15.0 has its own tree there. For one between two trees, both values count if they differ.
"""

import re
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from tests.facts import trees
from tests.facts.trees import Tree, TreeRecord
from tests.rows import each
from tfbuild import plan
from tfbuild.errors import Unsupported
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import table
from tfbuild.plan import configuration, source

ALL = tuple(row.version for row in releases.releases())
CONFIGS = sorted({row.name for row in table().config})
EXACT = tuple(release for release in ALL if trees.of(release))
# Not known more closely than by the trees before and after them.
BRACKETED = tuple(release for release in ALL if len(trees.around(release)) == 2)


def facts_around(release: str) -> tuple[TreeRecord, ...]:
    return tuple(tree.facts for tree in trees.around(release))


def values_around(release: str, value: Callable[[TreeRecord], Any]) -> list[Any]:
    """Return the different values of a fact in the trees around a release."""
    values = [value(facts) for facts in facts_around(release)]
    return [value for index, value in enumerate(values) if value not in values[:index]]


# --- the table -------------------------------------------------------------------------------------------------------


def hermetic(release: str) -> bool:
    return bool(releases.rows(table().hermetic_python, release))


def test_a_release_has_its_own_tree_or_lies_between_two() -> None:
    trees_of = {"exact": 1, "near-exact": 1, "bracketed": 2}
    without = [row for row in releases.releases() if len(trees.around(row.version)) < trees_of.get(row.sure, 1)]
    assert not without, f"read their trees with python -m tests.facts.trees: {without}"
    assert EXACT[: ALL.index("2.15.1")] == ALL[: ALL.index("2.15.1")]
    dates = [tree.facts.dated for tree in trees.trees() if not tree.exact]
    assert dates == sorted(set(dates))


@each("tree", [tree for tree in trees.trees() if tree.exact])
def test_a_trees_commit_and_version_are_the_releases(tree: Tree) -> None:
    row = releases.get(tree.name)
    assert (row.sure, row.commit) == ("exact", tree.commit)
    assert tree.facts.version == tree.name


def test_dumping_the_trees_writes_the_same_table() -> None:
    assert trees.dump(trees.trees()) == trees.FILE.read_text(encoding="utf-8")


# What the facts say of a release, and what a tree says. Only the Windows branch of 2.14's script calls rsync.
Said = tuple[Callable[[str], Any], Callable[[TreeRecord, str], Any]]
COMPARED: dict[str, Said] = {
    "Bazel": (releases.bazel, lambda tree, _: tree.bazelversion),
    "wheel": (lambda _: True, lambda tree, release: releases.wheel(release).target in tree.wheel_targets),
    "programs": (
        lambda release: tuple(row.name for row in releases.rows(table().host_tool, release)),
        lambda tree, release: tuple(
            name for name in tree.host_tools if name != "rsync" or not release.startswith("2.14.")
        ),
    ),
    "Pythons": (
        lambda release: {*releases.pythons(release)},
        lambda tree, release: {*tree.pythons, *releases.official_pythons(release, "x86_64")},
    ),
    "hermetic Python": (hermetic, lambda tree, _: bool(tree.lock_files)),
    "hermetic CUDA": (
        lambda release: releases.cuda(release).hermetic,
        lambda tree, _: "HERMETIC_CUDA_VERSION" in tree.questions,
    ),
    "libraries": (
        lambda release: {row.name for row in source.library_rows() if row.covers(release)},
        lambda tree, _: {*tree.system_libs},
    ),
    # In the order of the guard's message.
    "guard": (lambda release: tuple(row.name for row in releases.guard(release)), lambda tree, _: tree.guard),
    "numbers": (
        lambda _: True,
        lambda tree, release: (
            {f"{row.name.replace('.', '_')}={row.number}" for row in releases.guard(release)} <= {*tree.cpu_numbers}
        ),
    ),
}


@each("name", COMPARED)
@each("release", ALL)
def test_a_fact_is_what_a_tree_around_its_release_says(name: str, release: str) -> None:
    own, of_tree = COMPARED[name]
    assert own(release) in values_around(release, lambda tree: of_tree(tree, release))


# --- configs ---------------------------------------------------------------------------------------------------------


@each("name", CONFIGS)
def test_a_config_exists_exactly_where_its_rows_say(name: str) -> None:
    for release in ALL:
        exists = values_around(release, lambda facts: name in facts.configs)
        assert releases.config(name, release) in exists, release


@each("arch", ["x86_64", "aarch64"])
@each("release", ALL)
def test_threading_is_what_its_config_compiles(release: str, arch: str) -> None:
    """Configs with build_with_openmp are for OpenMP, others for the thread pool."""
    for runtime in ("openmp", "threadpool"):
        try:
            names = configuration.configs(release, "mkl", arch, configuration.threading(release, arch, runtime))
        except Unsupported:
            assert runtime == "openmp"
            continue
        flags_around = [
            [flag for name in names for flag in facts.configs.get(name, ())] for facts in facts_around(release)
        ]
        openmp = ["--define=build_with_openmp=true" in flags for flags in flags_around if flags]
        assert (runtime == "openmp") in openmp
        assert len(set(openmp)) == 1 or release in BRACKETED


@each("target", targets.names())
@each("platform", plan.PLATFORMS)
@each("release", ALL)
def test_every_config_of_a_default_plan_is_in_the_tree(release: str, platform: str, target: str) -> None:
    threading = configuration.threading(release, plan.PLATFORMS[platform]) if target == "mkl" else ""
    configs = configuration.configs(release, target, plan.PLATFORMS[platform], threading)
    in_tree = [set(configs) <= set(facts.configs) for facts in facts_around(release)]
    assert any(in_tree)
    assert all(in_tree) or release in BRACKETED


# --- the wheel, Python -----------------------------------------------------------------------------------------------


def test_host_tools_are_generic_though_a_tree_gives_them_the_targets_configuration() -> None:
    shared = "--distinct_host_configuration=false"
    sharing = {name for name in EXACT if any(shared in facts.configs.get("linux", ()) for facts in facts_around(name))}
    assert sharing == {"2.12.0", "2.12.1"}
    for release in sharing:
        flags = toolchains.host_configuration(releases.bazel(release), "true")
        assert flags == ("--distinct_host_configuration=true",)


@each("release", ALL)
def test_pythons_of_a_hermetic_build_have_a_lock_file(release: str) -> None:
    locked = values_around(release, lambda facts: set(facts.lock_files))
    flags = configuration.wheel_flags(release, "cpu", "x86_64", "3.11")
    assert any(flag.endswith("PYTHON_VERSION=3.11") for flag in flags) == bool(
        releases.rows(table().hermetic_python, release)
    )
    if bool(releases.rows(table().hermetic_python, release)):
        assert any(set(releases.pythons(release)) <= names for names in locked)
        assert release in BRACKETED or [set(releases.pythons(release))] == locked


@each("release", ALL)
def test_pywrap_rules_are_switched_on_where_the_official_builds_do_so(release: str) -> None:
    """But for CUDA builds of 2.19, which fail with them."""
    builds = {("x86_64", "cpu"): "linux_x86", ("x86_64", "cuda"): "linux_x86_cuda", ("aarch64", "cpu"): "linux_arm64"}
    for (arch, target), env in builds.items():
        files = [facts.pywrap for facts in facts_around(release)]
        asked = [f"ci/official/envs/{env}" in names and ".bazelrc" not in names for names in files]
        failing = (Version(release).minor, target) == (19, "cuda")
        passed = any("USE_PYWRAP_RULES" in flag for flag in releases.wheel_flags(release, target, arch))
        assert passed in ([False] if failing else asked), (arch, target)


# --- CUDA, the guard -------------------------------------------------------------------------------------------------


@each("release", ALL)
def test_cuda_and_cudnn_are_a_pair_that_the_tree_builds_with(release: str) -> None:
    """For 2.14 the documentation has a newer cuDNN, 8.7, than the images in its tree, 8.6."""
    row = releases.cuda(release)
    cudnn = "8.6" if release.startswith("2.14.") and row.cudnn == "8.7" else row.cudnn
    pairs = [tuple(pair.split("/")) for facts in facts_around(release) for pair in facts.cuda]
    assert any(f"{row.version}.".startswith(f"{one}.") and f"{cudnn}.".startswith(f"{two}.") for one, two in pairs)
    assert any(row.capabilities in facts.capabilities for facts in facts_around(release))


# --- configure.py ----------------------------------------------------------------------------------------------------


# Questions that a Linux build never meets: those of other systems, or after a "yes" that is never given.
NEVER = re.compile(
    "ANDROID_.*|MPI_HOME|HOST_C(XX)?_COMPILER|TF_(OVERRIDE_EIGEN_STRONG_INLINE|CONFIGURE_IOS|TENSORRT_VERSION)|"
    "COMPUTECPP_TOOLKIT_PATH|TRISYCL_INCLUDE_DIR|TF_NEED_COMPUTECPP|TF_DOWNLOAD_CLANG"
)
FOR_CUDA = "(TF|HERMETIC|LOCAL)_(CUDA|CUDNN|NCCL)_.*|TF_NEED_TENSORRT|CLANG_CUDA_COMPILER_PATH|GCC_HOST_COMPILER_PATH"


@each("compiler", ["gcc-12", "clang-18"])
@each("target", targets.names())
@each("release", ALL)
def test_every_question_that_configure_asks_is_answered(release: str, target: str, compiler: str) -> None:
    answered = {name for name, _ in configuration.configure_env(release, target, compiler, (), "", "")}
    others = "GCC_HOST_COMPILER_PATH" if compiler.startswith("clang") else "CLANG.*_COMPILER_PATH"
    unmet = re.compile(f"{'TF_NEED_CLANG|CLANG_COMPILER_PATH' if target == 'cuda' else FOR_CUDA}|{others}")
    left = [
        [name for name in facts.questions if not (name in answered or NEVER.fullmatch(name) or unmet.fullmatch(name))]
        for facts in facts_around(release)
    ]
    assert [] in left, left
    assert release in BRACKETED or not any(left)
    if release in EXACT:
        (facts,) = facts_around(release)
        assert answered <= {*facts.questions, *facts.reads}


# --- the reader -------------------------------------------------------------------------------------------------------


def test_what_the_table_has_beyond_the_product_is_read() -> None:
    files = {
        ".bazelrc": "build:cuda --repo_env=HERMETIC_CUDA_VERSION=12.5.1 --repo_env=HERMETIC_CUDNN_VERSION=9.3.0\n"
        'build:cuda --repo_env HERMETIC_CUDA_COMPUTE_CAPABILITIES="sm_60,compute_90"\n'
        "build:rbe_cuda --repo_env=TF_CUDA_VERSION=11.0 --repo_env=TF_CUDNN_VERSION=8.0\n",
        "configure.py": "_DEFAULT_CUDA_COMPUTE_CAPABILITIES = '3.5,7.0'\n",
        "tensorflow/tools/pip_package/build_pip_package.sh": "# patch -p1\n  patchelf --shrink-rpath x\n",
        "tensorflow/tools/pip_package/setup.py": "'Programming Language :: Python :: 3.9',\n"
        "'Programming Language :: Python :: 3.12',\n",
        "tensorflow/tools/Dockerfile.cuda12.3-cudnn9.1-ubuntu22.04": "",
        # The first check is that of Windows builds.
        "tensorflow/core/platform/cpu_feature_guard.cc": "".join(
            f'CheckIfFeatureUnused(CPUFeature::{name},\n  "{name}", missing);\n'
            for name in ("AVX", "SSE", "AVX", "FMA")
        ),
        "third_party/xla/third_party/tsl/tsl/platform/cpu_info.h": "enum CPUFeature {\n  // x\n  SSE = 1,\n",
        "tensorflow/core/public/version.h": "#define TF_GRAPH_DEF_VERSION 7  // Updated: 2024/7/9\n",
    }
    facts = trees.read_record(files.get, files)
    assert (facts.dated, facts.pythons, facts.host_tools) == ("2024-07-09", ("3.12",), ("patchelf",))
    assert (facts.guard, facts.cpu_numbers) == (("SSE", "AVX", "FMA"), ("SSE=1",))
    assert (facts.cuda, facts.capabilities) == (("12.3/9.1", "12.5.1/9.3.0"), ("3.5,7.0", "sm_60,compute_90"))
