"""What a compile gets beside its context, what it leaves beside its log, and what becomes of one that fails."""

import io
import re
import time
from contextlib import nullcontext
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import clock
from tests.cpu.machines import machine
from tests.pipeline.memory_engine import COMPILED, OFFICIAL, MemoryEngine, chosen, digest, engine_at, maker, row
from tests.pipeline.memory_engine import engine as engine
from tests.rows import each
from tfbuild import cpu
from tfbuild.context import labels
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BadMirror, BuildFailed, DiskFull, TfbuildError, TimeUp, Unsupported, UsageError
from tfbuild.pipeline import bazel, compiling
from tfbuild.pipeline.compiling import NO_LIMITS, machine_share, memory_hint
from tfbuild.pipeline.run import Run
from tfbuild.plan.remote_cache import Remote
from tfbuild.util.progress import Progress, Step

CACHE = Remote(name="cache grpc://cache:1", flags=("--remote_cache=grpc://cache:1",))
EXECUTOR = Remote(name="executor grpc://farm:1", executor=True)


def watching(*lines: str, error: BaseException | None = None) -> Any:
    """A compile that prints these lines, and fails."""

    def work(settings: BuildSettings) -> None:
        for line in ("Analyzing: target //x (1 packages loaded)", *lines):
            settings.watch(Step("build"), line)
        if error is not None:
            raise error

    return work


def test_a_compile_gets_its_secrets_and_leaves_bazel_s_files_beside_its_log(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> cpu.Cpu:
        raise Unsupported("this CPU is not known")

    monkeypatch.setattr(cpu, "detect", unknown)
    folder = tmp_path / "build" / COMPILED.id
    (folder / ".context-killed").mkdir(parents=True)
    for name in ("profile.json", "bazel.log"):
        (folder / name).write_text("old")
    (tmp_path / "ca.pem").write_text("a company's")
    engine.made["kept"] = {"profile.json.gz": b"a trace", "bazel.log": b"new"}
    modes = set[int]()

    def work(settings: BuildSettings) -> None:
        watching("INFO: 13 processes: 13 local.")(settings)
        modes.update(path.stat().st_mode & 0o777 for name, path in settings.secrets.items() if name != "ca")

    engine.works = work
    run = {"mirror": "http://mirror.site", "ca": tmp_path / "ca.pem", "seconds": 3600.0, "remote": CACHE}
    made, said = maker(engine, tmp_path, jobs=3, network="none", verify=False, **run)
    made.build(COMPILED)
    (_, _, settings, secrets), (stage, _, fetching, _) = engine.jobs
    assert modes == {0o600}
    assert sorted(secrets) == ["ca", "deadline", "machine", "mirror", "remote"]
    assert (secrets["ca"], secrets["mirror"]) == ("a company's", "http://mirror.site\n")
    assert secrets["remote"] == "build --remote_cache=grpc://cache:1\n"
    assert re.fullmatch(r"build --jobs=3\nbuild --local_ram_resources=\d+\n", secrets["machine"])
    now = time.time()
    assert now + 3000 < int(secrets["deadline"]) <= now + 3601
    assert settings.seconds is not None
    assert 3600 < settings.seconds <= 3690
    assert settings.network == "none"
    assert (stage, fetching.log, fetching.seconds, fetching.no_cache) == ("kept", folder / "kept.log", 300, False)
    assert fetching.build_args["RUN_ID"].isdigit()
    left = {path.name for path in folder.iterdir()}
    assert left == {"context", "plan.json", ".lock", "profile.json.gz", "bazel.log"}
    assert (folder / "bazel.log").read_text() == "new"
    lines = said.getvalue().splitlines()
    assert lines[-1].startswith(f"profile: {folder}/profile.json.gz (")
    assert lines[-2] == "bazel: 13 processes: 13 local."
    assert "remote cache grpc://cache:1" in lines
    assert "lost the remote" not in said.getvalue()
    assert [line for line in lines if line.startswith("bazel --jobs=3: as requested")]


def test_an_executor_gets_more_actions_than_this_machine_takes(engine: MemoryEngine, tmp_path: Path) -> None:
    made, _ = maker(engine, tmp_path, verify=False, remote=EXECUTOR)
    made.build(COMPILED)
    assert engine.jobs[0][3]["machine"].startswith("build --jobs=100\n")


@each("error, why", [(BuildFailed("no stage\nkept"), "no stage"), (OSError("x"), "x")])
def test_a_profile_that_cannot_be_had_is_only_noted(
    error: Exception, why: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("x")
    engine = engine_at(folder)
    build = engine.build

    def broken(context: Path, settings: BuildSettings) -> None:
        if settings.stage == "kept":
            raise error
        build(context, settings)

    engine.works, engine.build = watching(), broken  # type: ignore[method-assign]
    made, said = maker(engine, folder, verify=False)
    made.build(COMPILED)
    log = folder / "build" / COMPILED.id / "kept.log"
    assert f"note: cannot get Bazel's profile ({why}): {log}\n" in said.getvalue()


FULL = "ld.lld: error: failed to open bazel-out/k8-opt/bin/x.so: No space left on device"
KILLED = "gcc: fatal error: Killed signal terminated program cc1plus"
GONE = "tfbuild: the remote cache grpc://cache:1 does not answer: Connection refused"
FAILED = BuildFailed("the image could not be built\n  clang crashed", hint="the log")
OUT_OF_MEMORY = BuildFailed("the image could not be built\n  did not complete: exit code: 137", hint="the log")
DOWNLOAD = BuildFailed(
    "the image could not be built\n  curl: (22) The requested URL returned error: 404", hint="the log"
)
DAMAGED = BuildFailed(
    "the image could not be built\n  mkdir: cannot create directory '/mnt/cache/0a': File exists", hint="the log"
)
APT = BuildFailed("the image could not be built\n  apt-get: not found", hint="the log")
BROKEN = (
    "ERROR: /src/x/BUILD:122:27: Compiling x/y.cc failed: (Exit 1): clang failed: error executing CppCompile command"
)
MIRROR = {"mirror": "http://mirror.site"}


@each(
    "lines, error, run, kind, reason, hint",
    [
        ([KILLED], FAILED, {"jobs": 8}, BuildFailed, "a compiler or Bazel was killed", "--jobs 4; what is compiled"),
        ([], OUT_OF_MEMORY, {"jobs": 8}, BuildFailed, "a compiler or Bazel was killed", "--jobs 4; what is compiled"),
        ([KILLED], FAILED, {"remote": EXECUTOR}, BuildFailed, "a compiler or Bazel was killed", "give the executor's"),
        ([FULL], FAILED, {"remote": EXECUTOR}, BuildFailed, "the image could not be built", "the log"),
        ([f"WARNING: {FULL}"], FAILED, {}, BuildFailed, "the image could not be built", "the log"),
        ([FULL, KILLED], FAILED, {}, DiskFull, "the engine's disk is full\nthe image could", "docker builder prune"),
        ([f"{bazel.NO_USE}it runs no action"], FAILED, {"remote": EXECUTOR}, BuildFailed,
         "the remote executor cannot be used: it runs no action\n", "does it accept the property cache-silo-key"),
        ([GONE], FAILED, {"remote": CACHE}, BuildFailed, "the remote cache grpc://cache:1 cannot be used", "is"),
        ([GONE, bazel.ALONE], FAILED, {"remote": CACHE}, BuildFailed, "the image could not be built", "the log"),
        ([], DOWNLOAD, {}, BuildFailed, "a download failed: curl: (22)", "check the network"),
        ([], DOWNLOAD, MIRROR, BadMirror, "the mirror http://mirror.site lacks something, or broke off", "the"),
        ([], FAILED, MIRROR, BuildFailed, "the image could not be built", "the log"),
        ([], DAMAGED, MIRROR, BuildFailed, "a cache of the builder is damaged: mkdir: ",
         "`docker builder prune --filter type=exec.cachemount` empties the builder's caches, and"),
        ([], DiskFull("no space", hint="some"), {}, DiskFull, "no space", "some"),
        ([], APT, MIRROR, Unsupported, "the base image has no apt-get", "--base with an image that is"),
        ([], TimeoutError(), {"seconds": 3600.0}, TimeUp,
         "stopped at the time limit of 1 h 00 min, before anything was compiled", "give it more time"),
        (["[1 / 2] x"], TimeoutError(), {"seconds": 3600.0}, TimeUp,
         "stopped at the time limit of 1 h 00 min; what is compiled is kept", "the same command continues"),
        (["[1 / 2] x", bazel.TIME_LIMIT], FAILED, {"seconds": 3600.0}, TimeUp, "stopped at the time", "the same"),
        (["[1 / 2] x", BROKEN, bazel.TIME_LIMIT], FAILED, {"seconds": 3600.0}, TimeUp,
         "stopped at the time limit of 1 h 00 min, after 1 action failed", "the same"),
    ],
)  # fmt: skip
def test_a_failed_compile_is_the_error_that_names_its_cause(
    lines: list[str],
    error: Exception,
    run: dict[str, Any],
    kind: type[TfbuildError],
    reason: str,
    hint: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("x")
    engine = engine_at(folder)
    engine.works = watching(*lines, error=error)
    made, _ = maker(engine, folder, verify=False, **run)
    with pytest.raises(TfbuildError) as raised:
        made.build(COMPILED)
    assert type(raised.value) is kind
    assert raised.value.reason.startswith(reason)
    assert raised.value.hint.startswith(hint)
    assert [stage for stage, *_ in engine.jobs] == ["", "kept"], "Bazel's files say why"


def test_what_failed_first_is_shown_even_if_its_notes_fill_the_last_lines(engine: MemoryEngine, tmp_path: Path) -> None:
    cause = "x/y.cc:88:20: error: no matching function for call to 'f'"
    before, after = "conftest.c:1:1: error: of a question to the compiler", f"{BROKEN}\nb.cc:1:2: error: of another"
    engine.works = watching("[1 / 2] x", before, BROKEN, cause, *50 * ["note"], *after.splitlines(), error=FAILED)
    made, said = maker(engine, tmp_path, verify=False)
    with pytest.raises(BuildFailed):
        made.build(COMPILED)
    shown = [line for line in said.getvalue().splitlines() if line.startswith("failed first: ")]
    assert shown == [f"failed first: {BROKEN}", f"failed first: {cause}"]


def test_a_full_disk_of_the_engine_s_machine_is_why_a_compile_failed(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.works = watching(error=FAILED)
    monkeypatch.setattr("tfbuild.engine.faults.FULL_BYTES", 1 << 60)
    with pytest.raises(DiskFull, match="the engine's disk is full\nthe image could not be built") as error:
        maker(engine, tmp_path, verify=False)[0].build(COMPILED)
    assert error.value.hint == "docker builder prune --filter type=regular; the log"


def test_a_clock_that_is_set_during_a_compile_does_not_change_its_limit(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = clock.stop(monkeypatch, compiling)
    limit = {"seconds": 3600.0, "started": 400.0}
    begins = stopped.time()

    def passing(seconds: float) -> Any:
        def work(_: BuildSettings) -> None:
            stopped.set_by -= 5 * 3600
            stopped.now += seconds
            raise FAILED

        return work

    for seconds, error in ((10, BuildFailed), (3000, TimeUp)):
        engine.works = passing(seconds)
        with pytest.raises(error):
            maker(engine, tmp_path, verify=False, **limit)[0].build(COMPILED)
    (_, _, settings, secrets) = engine.jobs[0]
    assert int(secrets["deadline"]) == begins + 3000
    assert settings.seconds == 3000 + compiling.GRACE_SECONDS
    # What compiles nothing has no limit: it could not go on from anything.
    engine.jobs.clear()
    with pytest.raises(BuildFailed):
        maker(engine, tmp_path, verify=False, **limit)[0].build(OFFICIAL)
    assert engine.jobs[0][2].seconds is None


def test_a_lost_remote_cache_is_named_and_a_run_that_only_downloads_has_no_profile(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    engine.works = watching(GONE, bazel.ALONE)
    made, said = maker(engine, tmp_path, verify=False, remote=CACHE)
    made.build(COMPILED)
    assert "\nlost the remote cache grpc://cache:1; compiled the rest locally\n" in said.getvalue()
    engine.jobs.clear()
    made.bundle([COMPILED], tmp_path / "bundle.tar", wheel_only=True)
    assert [stage for stage, *_ in engine.jobs] == ["system", "fetch"]


def test_a_failed_analysis_leaves_its_log_and_no_word_of_a_profile(engine: MemoryEngine, tmp_path: Path) -> None:
    """Bazel writes the trace of a compile, and none was begun."""
    engine.works, engine.made["kept"] = watching(error=FAILED), {"bazel.log": b"ERROR: no such target"}
    made, said = maker(engine, tmp_path, verify=False)
    with pytest.raises(BuildFailed):
        made.build(COMPILED)
    assert (tmp_path / "build" / COMPILED.id / "bazel.log").read_text() == "ERROR: no such target"
    assert "profile" not in said.getvalue()


@each(
    "machine_name, local, run, once",
    [
        ("rocky9-zen5", True, {}, True),
        ("rocky9-zen5", True, {"remote": CACHE}, True),
        # The other machine's CPU is read in the build's own base: offline, there may be no other.
        ("rocky9-zen5", False, {}, True),
        # Actions may run on another machine.
        ("rocky9-zen5", True, {"remote": EXECUTOR}, False),
        ("scientificfermi6-bulldozer", True, {}, False),
        ("", True, {}, False),
    ],
)
def test_host_tools_are_compiled_once_only_where_the_machine_runs_the_target(
    machine_name: str, local: bool, run: dict[str, Any], once: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The flags of that reach the compile as a secret."""

    def detect() -> cpu.Cpu:
        if not machine_name:
            raise Unsupported("this CPU is not known")
        return cpu.parse(machine(machine_name).cpuinfo())

    folder, build = tmp_path_factory.mktemp("x"), chosen(release="2.13.1", target="cpu", cpu="x86-64-v3")
    assert build.toolchain is not None
    assert build.toolchain.machine_flags
    engine = engine_at(folder)
    engine.images.registry = {build.base_image: digest("base")}
    engine.images.rows.append(row("tfbuild-base:trixie", Config={"Labels": {labels.BASE: "trixie"}}))
    engine.local, own = local, f"{build.base_image.partition(':')[0]}@{digest('base')}"
    made, said = maker(engine, folder, verify=False, jobs=3, **run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "detect", detect)
        shown = SimpleNamespace(stdout=machine(machine_name or "rocky9-zen5").cpuinfo())
        patch.setattr(engine, "run", lambda image, *_, **__: {own: shown}[image])
        made.build(build)
    given = engine.jobs[0][3]["machine"]
    assert [flag for flag in build.toolchain.machine_flags if (f"build {flag}\n" in given) != once] == []
    assert ("compiles host tools and target once" in said.getvalue()) == once


@each(
    "machine_name, memory, library, error",
    [
        ("rocky9-zen5", 16, False, None),
        ("", 16, False, None),
        ("scientificfermi6-bulldozer", 16, False, Unsupported),
        ("rocky9-zen5", 8, False, Unsupported),
        ("rocky9-zen5", 16, True, UsageError),
    ],
)
def test_what_bolt_would_fail_at_is_refused_before_the_compile(
    machine_name: str, memory: int, library: bool, error: type[TfbuildError] | None
) -> None:
    def detect() -> cpu.Cpu:
        if not machine_name:
            raise Unsupported("this CPU is not known")
        return cpu.parse(machine(machine_name).cpuinfo())

    place: Any = SimpleNamespace(cpus=2, memory=memory * 10**9, local=False, cpu=detect, where="the engine")
    run, progress = Run(libtensorflow=library), Progress(io.StringIO())
    for bolt in (False, True):
        build = chosen(release="2.20.0", cpu="x86-64-v3", bolt=bolt)
        with pytest.raises(error) if bolt and error else nullcontext():
            assert compiling._share(place, build, run, progress).jobs == 2


# --- Bazel's share of a machine ---------------------------------------------------------------------------------------

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cpus", "memory", "limits", "jobs", "ram"),
    [
        (64, 256 * GIB, NO_LIMITS, 64, 254),
        (64, 32 * GIB, NO_LIMITS, 15, 30),
        (16, 64 * GIB, (4.0, inf), 4, 62),
        (16, 64 * GIB, (0.5, inf), 1, 62),
        (16, 64 * GIB, (inf, 8 * GIB), 3, 6),
        (8, 2 * GIB, NO_LIMITS, 1, 1),
    ],
)
def test_jobs_follow_from_processors_and_memory(
    cpus: int, memory: int, limits: tuple[float, float], jobs: int, ram: int
) -> None:
    share = machine_share(cpus=cpus, memory=memory, limits=limits)
    assert share.bazelrc() == f"build --jobs={jobs}\nbuild --local_ram_resources={ram * 1024}\n"
    assert share.reason.endswith(", within this cgroup's limits") == (limits != NO_LIMITS)
    # What is larger than the machine limits nothing.
    assert machine_share(cpus=cpus, memory=memory, limits=(cpus, memory)) == machine_share(cpus=cpus, memory=memory)
    # An executor's jobs are not this machine's.
    remote = machine_share(cpus=cpus, memory=memory, limits=limits, remote=True)
    assert (remote.jobs, remote.ram) == (100, share.ram)


@pytest.mark.parametrize(
    ("jobs", "hint"), [(8, "--jobs 4"), (3, "--jobs 1"), (1, "one action at a time is already too much")]
)
def test_the_user_s_choice_wins_and_where_memory_ran_out_the_hint_is_another(jobs: int, hint: str) -> None:
    share = machine_share(cpus=64, memory=8 * GIB, jobs=jobs)
    assert (share.jobs, share.reason) == (
        jobs, f"--jobs={jobs}: as requested; 64 by processors, 3 by 8.0 GiB of memory at 2 GiB an action"
    )  # fmt: skip
    assert memory_hint(share, "the engine").startswith(hint)
