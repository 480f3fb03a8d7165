"""Builds from source on a real engine, with real Bazel and a real compiler, of the test double in tests/data/double.

Nothing here is TensorFlow: what is proven is the way from a plan to machine code. The builder reaches nothing but the
distribution's packages and a mirror on loopback.
"""

import difflib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine import mirror, objectcode
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.objectcode import Double
from tfbuild import cpu, facts, plan
from tfbuild.cli.options import certificates
from tfbuild.context.labels import read_labels
from tfbuild.cpu import isa
from tfbuild.engine import Engine
from tfbuild.errors import Unsupported
from tfbuild.facts import toolchains
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import run_of
from tfbuild.plan import Request, RunRequest
from tfbuild.plan import source as sources
from tfbuild.publish import sbom

RELEASE = "2.20.0"
TREE = ROOT / "tests" / "data" / "double"
# Features whose instructions no compiler writes by itself, or only in AVX's encoding where there is AVX.
NEVER_WRITTEN = {"lahf_lm", "xsave"}
UNDER_AVX = {"sse3", "ssse3", "sse4_1"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command(cpu: str, output: Path, *options: str, version: str = mirror.BAZEL, release: str = RELEASE) -> list[str]:
    start = [sys.executable, "-m", "invoke", "wheel", "--target", "mkl", "--release", release]
    return [*start, "--bazel", version, "--cpu", cpu, "--output", str(output), "--json", *options]


@pytest.fixture(scope="module")
def wheel(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs `invoke wheel` for a CPU, as a user would; the tree is the double where no --source is among the options."""

    def run(cpu: str, *options: str, code: int = 0, version: str = mirror.BAZEL) -> "subprocess.CompletedProcess[str]":
        words = command(cpu, tmp_path_factory.mktemp("dist"), *site.options(), *options, version=version)
        if "--source" not in options and code == 0:
            words += ["--source", str(TREE)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done

    return run


@pytest.fixture(scope="module")
def compiled(wheel: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Double]:
    @cache
    def made(cpu: str) -> Double:
        answer = json.loads(wheel(cpu).stdout)
        return objectcode.read(Path(answer["wheel"]), tmp_path_factory.mktemp("unpacked"))

    return made


KERNELS = 4
# An action that outlasts every test: a build of this tree does not end by itself.
ENDLESS = """
genrule(
    name = "endless",
    outs = ["endless.h"],
    cmd = "sleep 900; touch $@",
)
"""


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """The double with small kernels that no cache has, and the same with no end."""

    tree: Path
    endless: Path


# In place of the double's kernel, where what is tested is not machine code: Eigen takes seconds to compile.
SMALL_KERNEL = """// {new}
#define JOIN(a, b) a##b
#define NAME(prefix, number) JOIN(prefix, number)

extern "C" void NAME(double_add_, KERNEL)(const float* in, float* out, long n) {{
  for (long i = 0; i < n; i++) out[i] = in[i] + KERNEL;
}}
"""


def small(tree: Path, new: str) -> Path:
    """Copy the double to `tree`, with kernels that compile in no time and that no cache has."""
    shutil.copytree(TREE, tree)
    (tree / "tensorflow/double/kernel.cc").write_text(SMALL_KERNEL.format(new=new))
    return tree


# No CPU has all of AMD's and Intel's own features.
COPTS = {
    "bulldozer": ["--copt=-march=x86-64-v2", "--copt=-mfma4", "--copt=-mlzcnt"],
    "x86-64-v4": ["--copt=-march=x86-64-v4"],
}


@dataclass(frozen=True, kw_only=True)
class SmallWheel:
    """What `invoke wheel` answered and said of a tree with small kernels, compiled for a CPU that this one is not."""

    cpu: str
    tree: Path
    answer: Any
    said: str


@pytest.fixture(scope="module")
def small_wheel(wheel: Run, tmp_path_factory: pytest.TempPathFactory) -> SmallWheel:
    tree = small(tmp_path_factory.mktemp("small") / "tree", uuid.uuid4().hex)
    here = set(cpu.detect().features)
    lacking = next(name for name in COPTS if features(name) - here)
    done = wheel(lacking, "--source", str(tree), *NAMED)
    return SmallWheel(cpu=lacking, tree=tree, answer=json.loads(done.stdout), said=done.stderr)


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    return fresh_trees(tmp_path)


def fresh_trees(folder: Path) -> Fresh:
    new = uuid.uuid4().hex
    trees = Fresh(tree=small(folder / "tree", new), endless=small(folder / "endless", new))
    build = trees.endless / "tensorflow/double/BUILD"
    rules = build.read_text().replace('"features.cc", ', '"features.cc", "endless.h", ')
    build.write_text(rules + ENDLESS)
    return trees


def features(cpu: str) -> frozenset[str]:
    return frozenset(isa.resolve(cpu, arch="x86_64").features)


# --- machine code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", ["westmere", pytest.param("x86-64-v3", marks=pytest.mark.nightly)])
def test_the_wheel_is_compiled_for_the_planned_cpu_and_nothing_beyond(
    cpu: str, compiled: Callable[[str], Double]
) -> None:
    planned, found = features(cpu), compiled(cpu)
    assert found.macros == {facts.feature(name).macro for name in planned}
    assert found.inspected <= found.used <= planned
    assert planned - found.used <= NEVER_WRITTEN | (UNDER_AVX if "avx" in planned else set())


def test_the_planned_flags_reach_the_compiler_and_host_tools_stay_generic(
    small_wheel: SmallWheel, tmp_path: Path
) -> None:
    found = objectcode.read(Path(small_wheel.answer["wheel"]), tmp_path)
    assert found.macros == {facts.feature(name).macro for name in features(small_wheel.cpu)}
    assert found.host_macros == frozenset()


# --- the tree, changed by the user ------------------------------------------------------------------------------------

# What a patch makes of the double: it calls a repository and a library of the system.
CHANGES = (
    ("linkshared = 1,", 'linkshared = 1,\n    linkopts = ["-Wl,--no-as-needed", "-lsnappy"],'),
    ("number for number in KERNELS],", 'number for number in KERNELS] + ["@ours//:ours"],'),
)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A patch for the double, and the repository that the patched tree asks for."""

    patch: Path
    ours: Path


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    made = Changed(patch=tmp_path / "ours.patch", ours=tmp_path / "ours")
    name = "tensorflow/double/BUILD"
    before = (TREE / name).read_text()
    after = before
    for old, new in CHANGES:
        assert old in after
        after = after.replace(old, new)
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    made.patch.write_text("".join(lines))
    made.ours.mkdir()
    (made.ours / "WORKSPACE").write_text("")
    (made.ours / "BUILD").write_text(
        'cc_library(name = "ours", srcs = ["ours.cc"], alwayslink = 1, visibility = ["//visibility:public"])\n'
    )
    (made.ours / "ours.cc").write_text('extern "C" const char* double_ours() { return "ours"; }\n')
    return made


@pytest.mark.nightly
def test_a_patch_a_repository_and_a_system_library_are_compiled_in_and_its_package_is_in_the_image(
    changed: Changed, site: Site, engine: Engine, tmp_path: Path
) -> None:
    python = tmp_path / "python.tar.gz"
    with tarfile.open(python, "w:gz") as archive:
        archive.add(changed.patch, "python/any")
    request = Request(
        target="mkl", release=RELEASE, bazel=mirror.BAZEL, compiler="clang-16",
        cpu="westmere", base=site.base, source=str(TREE), hermetic_python=str(python),
        patch=(str(changed.patch),), override_repository=(f"ours={changed.ours}",),
        system_lib=("snappy=libsnappy-dev",), with_headers=True,
    )  # fmt: skip
    made = maker(site, tmp_path).build(plan.select(request, None))
    script = (
        "import ctypes, glob, tensorflow; "
        "library = ctypes.CDLL(glob.glob(tensorflow.__path__[0] + '/libtensorflow_double.so')[0]); "
        "library.double_ours.restype = ctypes.c_char_p; print(library.double_ours().decode())"
    )
    try:
        run = engine.run(made.image, ["python", "-c", script])
        assert (run.exit_code, run.stdout) == (0, "ours\n"), run.stderr
        query = ["--show", "--showformat", "${db:Status-Status}", "libsnappy1v5"]
        assert engine.run(made.image, query, entrypoint=["dpkg-query"]).stdout == "installed"
        built = sbom.read_contents(engine, made.image).built
        assert built["patch/01-ours.patch"] == sources.digest(changed.patch)
        assert "override/ours" in built
    finally:
        engine.remove(made.image)


def test_a_config_that_the_tree_lacks_is_known_before_anything_is_compiled(wheel: Run) -> None:
    done = wheel("westmere", "--config", "none_such", "--source", str(TREE), code=Unsupported.exit_code)
    assert "this TensorFlow has no --config=none_such; nothing was compiled" in done.stderr


def test_the_sidecar_says_how_the_wheel_was_built(small_wheel: SmallWheel, engine: Engine, site: Site) -> None:
    answer = small_wheel.answer
    document = json.loads(Path(answer["sidecar"]).read_text(encoding="utf-8"))
    assert document["sha256"] == answer["sha256"] == sources.digest(Path(answer["wheel"]))
    assert document["plan"]["copts"] == COPTS[small_wheel.cpu]
    assert document["plan"]["configs"] == ["mkl_threadpool"]
    assert document["compiler"].startswith("Debian clang version 16")
    assert document["bazel"] == mirror.BAZEL
    assert document["base"] == engine.image(site.base).id
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["builder"])


# --- the profile ------------------------------------------------------------------------------------------------------


def test_a_compile_that_fails_leaves_its_profile_and_its_whole_log(wheel: Run, fresh: Fresh) -> None:
    """Far more output than the builder's log takes comes before the error, which is all the same the last word."""
    kernel = fresh.tree / "tensorflow/double/features.cc"
    kernel.write_text(kernel.read_text() + "\n#error this must fail\n")
    build = fresh.tree / "tensorflow/double/BUILD"
    noise = (
        "i=0; while [ $$i -lt 40000 ]; do echo a line of noise of sixty characters, number $$i >&2; i=$$((i + 1)); done"
    )
    build.write_text(build.read_text().replace('cmd = "', f'cmd = "{noise}; '))
    # Bazel itself prints nothing of an action that says more than 1 MiB.
    flag = "--experimental_ui_max_stdouterr_bytes=-1"
    done = wheel("x86-64-v3", "--source", str(fresh.tree), f"--bazel-flag={flag}", code=23)
    assert "#error this must fail" in done.stderr
    assert "clipped" not in log(fresh.tree, bazel_flag=(flag,)).read_text()
    folder = log(fresh.tree, bazel_flag=(flag,)).parent
    assert (folder / "bazel.log").read_text().count("a line of noise") >= 40000
    assert (folder / "profile.json.gz").is_file()
    assert "profile: " in done.stderr


# --- caches, limits, interruptions ------------------------------------------------------------------------------------


def executed(text: str) -> int:
    """The actions that Bazel ran in the sandbox, out of tfbuild's last line about them; all others were cached."""
    (line,) = [line for line in text.splitlines() if line.startswith("bazel: ") and "process" in line]
    match = re.search(r"(\d+) processwrapper-sandbox", line)
    return int(match[1]) if match else 0


# Bazel names each kernel as it begins.
NAMED = ("--jobs", "2", "--bazel-flag=--subcommands")


def log(tree: Path, **options: Any) -> Path:
    """Where `invoke wheel` keeps the log of the double's build: below the plan's own identifier."""
    request = Request(
        target="mkl", release=RELEASE, bazel=mirror.BAZEL, compiler="clang-16", cpu="x86-64-v3", python="3.11",
        platform="linux/amd64",
    )  # fmt: skip
    return ROOT / "build" / plan.select(replace(request, source=str(tree), **options), None).id / "build.log"


def begun(path: Path) -> int:
    text = path.read_text(errors="replace") if path.is_file() else ""
    return len(set(re.findall(r"SUBCOMMAND: # //tensorflow/double:(kernel_\d+) \[action 'Compiling", text)))


def test_a_time_limit_stops_in_good_order_and_keeps_what_is_compiled(wheel: Run, fresh: Fresh) -> None:
    values = {"90s": "1 min 30 s", "5m": "5 min 00 s"}
    for limit, spelled in values.items():
        stopped = wheel("x86-64-v3", "--source", str(fresh.endless), "--time-limit", limit, code=75)
        assert f"stopped at the time limit of {spelled}" in stopped.stderr
        assert "the same command continues from there" in stopped.stderr
        # A busy machine needs longer for the kernels, after which only the endless action runs.
        text = log(fresh.endless).read_text(errors="replace")
        if re.search(r"\] Executing genrule //tensorflow/double:endless; \d+s [\w, -]+$", text, re.MULTILINE):
            break
    assert "hint: the same command continues from there" in stopped.stderr
    done = wheel("x86-64-v3", "--source", str(fresh.tree))
    assert executed(done.stderr) < KERNELS
    sittings = ROOT / "build" / json.loads(done.stdout)["id"] / "sittings.jsonl"
    rows = [json.loads(line) for line in sittings.read_text().splitlines()[-2:]]
    assert [row["why"] for row in rows] == ["time limit", "done"]
    assert [row for row in rows if not (row["cpu_seconds"] > 0 and row["peak_bytes"] > 1 << 20)] == []
    assert 0 < rows[1]["from_cache"] <= rows[1]["processes"]
    assert "Compiling tensorflow/double/" in str(rows[1]["slowest"])
    assert min(stage["disk_bytes"] for row in rows for stage in row["stages"].values()) > 0


# --- the mirror -----------------------------------------------------------------------------------------------------


def test_the_builder_asks_the_mirror_for_everything_and_names_what_it_lacks(wheel: Run, site: Site) -> None:
    """As above, what fails is asked for in every run."""
    site.asked.clear()
    done = wheel("x86-64-v3", "--source", str(TREE), version="7.7.0", code=18)
    assert f"the mirror {site.url} lacks something, or broke off" in done.stderr
    assert "/bazel-7.7.0-linux-x86_64" in done.stderr
    assert "Traceback" not in done.stderr
    version = toolchains.table().bazelisk.version
    for path in (
        "/pypi.org/simple/packaging/",
        f"/github.com/bazelbuild/bazelisk/releases/download/v{version}/bazelisk-linux-amd64",
        "/github.com/bazelbuild/bazel/releases/download/7.7.0/bazel-7.7.0-linux-x86_64",
    ):
        assert path in site.asked


def maker(site: Site, folder: Path) -> Maker:
    run_request = RunRequest(mirror=site.url, network="host", need_disk="5", no_verify=True)
    return Maker(run=replace(run_of(run_request, certificates(""), site.base), work=folder / "work", reports=folder))


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_compiled_wheel_goes_into_the_runtime_image(site: Site, engine: Engine, tmp_path: Path) -> None:
    """The wheel is the file that `invoke wheel` made before, as on CI; it has no headers to slim.

    Of an image of the double nothing is verified, and its name says so.
    """
    request = Request(
        target="mkl", release=RELEASE, bazel=mirror.BAZEL, compiler="clang-16",
        cpu="westmere", base=site.base, source=str(TREE),
        with_headers=True,
    )  # fmt: skip
    build, making = plan.select(request, None), maker(site, tmp_path)
    wheel = making.wheel(build, tmp_path / "dist").wheel
    made = replace(making, run=replace(making.run, reuse=str(wheel))).build(build)
    try:
        assert "compile.sh" not in (tmp_path / "work" / build.id / "build.log").read_text(encoding="utf-8")
        assert engine.image(made.image).labels["io.tfbuild.reused"].startswith(f"{wheel.name}@sha256:")
        assert made.image.endswith("-unverified")
        assert made.report is None
        assert read_labels(engine.image(made.image).labels).get("wheel") == "source"
        run = engine.run(made.image, ["python", "-c", "import tensorflow; print(*tensorflow.macros)"])
        assert run.exit_code == 0, run.stderr
        assert set(run.stdout.split()) == {facts.feature(name).macro for name in features("westmere")}
        built = sbom.read_contents(engine, made.image).built
        assert set(built) >= {"builder", "wheel", "compiler", "bazel"}
        assert built["bazel"] == mirror.BAZEL
        # The base of these tests has a compiler and a Bazel of its own.
        look = "command -v bazelisk; test ! -e /src && test ! -e /opt/bazelisk"
        assert engine.run(made.image, ["-c", look + " && echo none"], entrypoint=["sh"]).stdout == "none\n"
    finally:
        engine.remove(made.image)
