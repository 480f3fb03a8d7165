"""A real Bazel reads the tree's .what its configure.py wrote and the plan's own file, as a compile does.

The tree's WORKSPACE needs the network. A small one takes its place: a library, and a tool that makes the library's
header, which is what a host tool is to Bazel. Bazel is Debian's, newer than the one of the release (which is in no
registry that packages come from), and knows all of its options.
"""

import json
import shlex
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.contract import plans, runs
from tests.contract.archive import Tree
from tests.contract.newbazel import OFFLINE
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.plan import Build
from tfbuild.plan.tree import parse_rc

pytestmark = pytest.mark.engine

SMALL = {
    "WORKSPACE": "",
    "BUILD": """
cc_binary(name = "tool", srcs = ["tool.cc"])
genrule(name = "header", outs = ["made.h"], tools = [":tool"], cmd = "$(location :tool) > $@")
cc_library(name = "library", srcs = ["library.cc", "made.h"])
""",
    "tool.cc": "",
    "library.cc": "",
}
SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One C++ action; `tool`: for the machine that builds."""

    source: str
    tool: bool
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command of Bazel's where configure.py has run for a build."""

    build: Build
    command: tuple[str, ...]

    def request(self, tree: Tree) -> dict[str, object]:
        """What DRIVER reads of it."""
        command = ["bazel", "--bazelrc=/mnt/bazelrc", self.command[0], *OFFLINE, *self.command[1:]]
        env = runs.environment(self.build)
        return {
            "env": env,
            "rc": tree.text(".bazelrc"),
            "small": SMALL,
            "ours": dockerfile.files(self.build)["bazelrc"],
            "command": command,
        }


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a case; `written`: by configure.py."""

    exit_code: int
    stdout: str
    stderr: str
    written: str


# Each case has the folder to itself, and all have one server of Bazel's, which takes as long to start as a case does.
DRIVER = """
import json, os, pathlib, shutil, subprocess, sys

def fresh(files):
    for path in source.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, text in files.items():
        (source / name).write_text(text)

source = pathlib.Path("/src")
source.mkdir()
for case in json.load(sys.stdin):
    env = {**os.environ, **case["env"]}
    fresh({})
    shutil.copytree("/tree", source, dirs_exist_ok=True)
    subprocess.run(["sh", "-c", "$PYTHON_BIN_PATH configure.py <&- > /tmp/said 2>&1"], cwd=source, env=env)
    written = (source / ".tf_configure.bazelrc").read_text()
    fresh({**case["small"], ".bazelrc": case["rc"], ".tf_configure.bazelrc": written})
    pathlib.Path("/mnt/bazelrc").write_text(case["ours"])
    nothing = subprocess.DEVNULL
    done = subprocess.run(case["command"], cwd=source, env=env, stdin=nothing, capture_output=True, text=True)
    answer = {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr, "written": written}
    print(json.dumps(answer), flush=True)
"""


def cases() -> dict[str, Case]:
    """All that is asked here of Bazel, by name."""
    query = ("--include_commandline", "--output=jsonproto", "mnemonic(CppCompile, deps(//:library))")
    results = {
        f"read {name_of(build)}": Case(build=build, command=("aquery", "--announce_rc", *query)) for build in READ
    }
    for compiler in plans.COMPILERS:
        cuda = plans.build("cuda", compiler=compiler)
        results[f"cuda {compiler}"] = Case(build=cuda, command=("build", "--nobuild", "--announce_rc", "//:library"))
    return results


@pytest.fixture(scope="module")
def answers(engine: Engine, builder: str, tree: Tree) -> dict[str, Answer]:
    requests = cases()
    files = {f"tree/{name}": content for name, content in tree.contents.items() if name.startswith(runs.READ)}
    done = engine.run(
        builder,
        [plan.BUILD_PYTHON, "-c", DRIVER],
        files=files,
        stdin=json.dumps([case.request(tree) for case in requests.values()]).encode(),
        timeout=len(requests) * SECONDS,
        limit=100 * 1024 * 1024,
    )
    assert done.exit_code == 0, done.stderr
    lines = [Answer(**json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(requests, lines, strict=True))


def compiles(done: Answer) -> dict[str, Compile]:
    """The C++ compiles that `aquery --output=jsonproto` prints, by source."""
    document = json.loads(done.stdout)
    tools = {row["id"] for row in document["configuration"] if row.get("isTool")}
    made = [
        Compile(
            source=row["arguments"][row["arguments"].index("-c") + 1],
            tool=row["configurationId"] in tools,
            arguments=tuple(row["arguments"]),
        )
        for row in document["actions"]
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
    rc = parse_rc(tree.text(".bazelrc"))
    flags = (*rc["build:linux"], *rc["build:dynamic_kernels"], *parse_rc(written)["build"])
    return [flag.removeprefix("--copt=") for flag in flags if flag.startswith("--copt=")]


READ = [
    plans.build("cpu", compiler="gcc-12"),
    plans.build("mkl", "openmp", "gcc-12"),
    plans.build("mkl", "threadpool", "clang-16"),
    plans.build("mkl", "openmp", "gcc-12", "linux/arm64"),
    plans.build("mkl", "threadpool", "clang-16", "linux/arm64"),
]


def name_of(build: Build) -> str:
    return f"{build.id}-{build.threading}-{build.compiler}"


@pytest.mark.parametrize("build", READ, ids=name_of)
def test_our_copts_are_the_last_and_host_tools_are_without_them(
    build: Build, answers: dict[str, Answer], tree: Tree
) -> None:
    ours = dockerfile.files(build)["bazelrc"]
    done = answers[f"read {name_of(build)}"]
    assert done.exit_code == 0, done.stderr

    files = announced(done.stderr)
    assert [name for name, _ in files[-3:]] == ["/src/.bazelrc", "/src/.tf_configure.bazelrc", "/mnt/bazelrc"]
    assert files[-1][1] == parse_rc(ours)["build"]
    for name in build.configs:
        assert expansions(done.stderr)[name] == parse_rc(tree.text(".bazelrc"))[f"build:{name}"]

    found = compiles(done)
    library, tool = found["library.cc"], found["tool.cc"]
    assert (library.tool, tool.tool) == (False, True)
    copts = [copt.removeprefix("--copt=") for copt in build.copts]
    theirs = their_copts(tree, done.written)
    places = [library.arguments.index(flag) for flag in (*theirs, *copts)]
    assert len(theirs) >= 11
    assert places == sorted(places)
    assert [flag for flag in library.arguments if flag.startswith("-m")] == copts
    hosts = [flag.removeprefix("--host_copt=") for flag in files[-1][1] if flag.startswith("--host_copt=")]
    assert [flag for flag in tool.arguments if flag.startswith("-m")] == hosts
    assert not set(copts) & set(tool.arguments)


@pytest.mark.parametrize("compiler", plans.COMPILERS)
def test_cuda_is_read_as_far_as_the_toolkit_that_is_not_there(
    compiler: str, answers: dict[str, Answer], tree: Tree
) -> None:
    ours = dockerfile.files(plans.build("cuda", compiler=compiler))["bazelrc"]
    done = answers[f"cuda {compiler}"]
    assert done.exit_code != 0
    assert announced(done.stderr)[-1] == ("/mnt/bazelrc", parse_rc(ours)["build"])
    assert expansions(done.stderr)["cuda"] == parse_rc(tree.text(".bazelrc"))["build:cuda"]
    assert "@local_config_cuda" in done.stderr.partition("ERROR:")[2]
