"""A real Bazel reads the tree's .bazelrc, what its configure.py wrote and the plan's own file, as a compile does.

The tree's WORKSPACE needs the network. A small one takes its place: a library, and a tool that makes the library's
header, which is what a host tool is to Bazel. Bazel is Debian's, newer than the one of the release (which is in no
registry that packages come from), and knows all of its options.
"""

import json
import shlex
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.contract import bazelrc, plans, runs
from tests.contract.archive import RELEASE, Tree
from tests.newbazel import OFFLINE
from tfbuild import dockerfile, releases
from tfbuild.engine import Engine
from tfbuild.engine.client import Run
from tfbuild.plan import Build
from tfbuild.release_rows import table

pytestmark = pytest.mark.engine

# The compiler stops where the flags are not the ones that it should get.
SMALL = {
    "WORKSPACE": "",
    "BUILD": """
cc_binary(name = "tool", srcs = ["tool.cc"])
genrule(name = "header", outs = ["made.h"], tools = [":tool"], cmd = "$(location :tool) > $@")
cc_library(name = "library", srcs = ["library.cc", "made.h"])
""",
    "tool.cc": """
#include <cstdio>
#ifdef __AVX2__
#error a host tool is compiled for the target
#endif
int main() { std::puts("#define MADE 1"); }
""",
    "library.cc": """
#include "made.h"
#ifndef __AVX2__
#error the library is not compiled for the target
#endif
int made() { return MADE; }
""",
}
SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One C++ action; `tool`: for the machine that builds."""

    source: str
    tool: bool
    arguments: tuple[str, ...]


def bazel(engine: Engine, image: str, tree: Tree, build: Build, *command: str, ours: str) -> Run:
    """Runs Bazel where configure.py has run with the same variables; `ours`: what the compile stage adds to its rc."""
    env = runs.environment(build)
    written = configured(engine, image, tree, build)
    files = {name: text.encode() for name, text in SMALL.items()}
    files |= {".bazelrc": tree.contents[".bazelrc"], ".tf_configure.bazelrc": written.encode()}
    mounted = {f"src/{name}": content for name, content in files.items()}
    mounted["mnt/bazelrc"] = ours.encode()
    words = shlex.join(["bazel", "--bazelrc=/mnt/bazelrc", command[0], *OFFLINE, *command[1:]])
    return engine.run(image, ["sh", "-c", f"cd /src && exec {words}"], env=env, files=mounted, timeout=SECONDS)


def configured(engine: Engine, image: str, tree: Tree, build: Build) -> str:
    return runs.configure(engine, image, tree, runs.environment(build)).written


def compiles(done: Run) -> dict[str, Compile]:
    """The C++ compiles that `aquery --output=jsonproto` prints, by source."""
    found = json.loads(done.stdout)
    tools = {row["id"] for row in found["configuration"] if row.get("isTool")}
    made = [
        Compile(
            source=row["arguments"][row["arguments"].index("-c") + 1],
            tool=row["configurationId"] in tools,
            arguments=tuple(row["arguments"]),
        )
        for row in found["actions"]
    ]
    return {one.source: one for one in made}


def announced(said: str) -> list[tuple[str, tuple[str, ...]]]:
    """What --announce_rc prints of `build`'s options: each file with its options, in the order of their reading."""
    lines = said.splitlines()
    return [
        (line.rpartition(" from ")[2].rstrip(":"), tuple(shlex.split(options.partition("options: ")[2])))
        for line, options in pairwise(lines)
        if line.startswith("INFO: Reading rc options for ") and "'build' options: " in options
    ]


def expansions(said: str) -> dict[str, tuple[str, ...]]:
    """What --announce_rc says that each --config stands for."""
    lines = [line.partition("config definition build:")[2] for line in said.splitlines() if "applicable config" in line]
    named = [(line.partition(" ")[0], line.partition(".bazelrc: ")[2]) for line in lines]
    return {name: tuple(shlex.split(options)) for name, options in named}


def their_copts(tree: Tree, written: str) -> list[str]:
    """The copts of TensorFlow's own that a Linux build gets: .bazelrc's, then configure.py's."""
    rc = bazelrc.parse(tree.text(".bazelrc"))
    flags = (*rc.build("linux"), *rc.build("dynamic_kernels"), *bazelrc.parse(written).build())
    return [flag.removeprefix("--copt=") for flag in flags if flag.startswith("--copt=")]


READ = [
    plans.build("cpu", compiler="gcc-12"),
    plans.build("mkl", "openmp", "gcc-12"),
    plans.build("mkl", "threadpool", "clang-16"),
    plans.build("mkl", "openmp", "gcc-12", "linux/arm64"),
    plans.build("mkl", "threadpool", "clang-16", "linux/arm64"),
]


@pytest.mark.parametrize("build", READ, ids=lambda build: f"{build.id}-{build.threading}-{build.compiler}")
def test_our_copts_are_the_last_and_host_tools_are_without_them(
    build: Build, engine: Engine, builder: str, tree: Tree
) -> None:
    ours = dockerfile.files(build)["bazelrc"]
    query = ["--include_commandline", "--output=jsonproto", "mnemonic(CppCompile, deps(//:library))"]
    done = bazel(engine, builder, tree, build, "aquery", "--announce_rc", *query, ours=ours)
    assert done.exit_code == 0, done.stderr

    files = announced(done.stderr)
    assert [name for name, _ in files[-3:]] == ["/src/.bazelrc", "/src/.tf_configure.bazelrc", "/mnt/bazelrc"]
    assert files[-1][1] == bazelrc.parse(ours).build()
    for name in build.configs:
        row = releases.row(table().config, RELEASE, name)
        assert expansions(done.stderr)[name] == tuple(shlex.split(" ".join(row.expands)))

    found = compiles(done)
    library, tool = found["library.cc"], found["tool.cc"]
    assert (library.tool, tool.tool) == (False, True)
    copts = [copt.removeprefix("--copt=") for copt in build.copts]
    theirs = their_copts(tree, configured(engine, builder, tree, build))
    places = [library.arguments.index(flag) for flag in (*theirs, *copts)]
    assert len(theirs) >= 11
    assert places == sorted(places)
    assert [flag for flag in library.arguments if flag.startswith("-m")] == copts
    hosts = [flag.removeprefix("--host_copt=") for flag in files[-1][1] if flag.startswith("--host_copt=")]
    assert [flag for flag in tool.arguments if flag.startswith("-m")] == hosts
    assert not set(copts) & set(tool.arguments)


@pytest.mark.parametrize("compiler", plans.COMPILERS)
def test_what_is_compiled_has_the_plans_features_and_host_tools_have_not(
    compiler: str, engine: Engine, builder: str, tree: Tree
) -> None:
    build = plans.build("mkl", "threadpool", compiler)
    ours = dockerfile.files(build)["bazelrc"]
    done = bazel(engine, builder, tree, build, "build", "//:library", ours=ours)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("flag", "stops"),
    [
        ("", "the library is not compiled for the target"),
        ("build --copt=-mavx2 --host_copt=-mavx2", "a host tool is compiled for the target"),
    ],
)
def test_the_small_tree_does_not_compile_with_other_flags(
    flag: str, stops: str, engine: Engine, builder: str, tree: Tree
) -> None:
    done = bazel(engine, builder, tree, plans.build("cpu"), "build", "//:library", ours=flag)
    assert done.exit_code == 1
    assert stops in done.stderr


@pytest.mark.parametrize("compiler", plans.COMPILERS)
def test_cuda_is_read_as_far_as_the_toolkit_that_is_not_there(
    compiler: str, engine: Engine, builder: str, tree: Tree
) -> None:
    build = plans.build("cuda", compiler=compiler)
    ours = dockerfile.files(build)["bazelrc"]
    done = bazel(engine, builder, tree, build, "build", "--nobuild", "--announce_rc", "//:library", ours=ours)
    assert done.exit_code != 0
    assert announced(done.stderr)[-1] == ("/mnt/bazelrc", bazelrc.parse(ours).build())
    assert expansions(done.stderr)["cuda"] == bazelrc.parse(tree.text(".bazelrc")).build("cuda")
    assert "@local_config_cuda" in done.stderr.partition("ERROR:")[2]
