"""Run the builder: what it gets beside its context, and what a failed compile means.

It gets all of that as BuildKit secrets, which are not part of cache keys: a change of machine or mirror recompiles
nothing.
"""

import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.cpu import Cpu, detect
from tfbuild.engine import faults
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BuildFailed, DiskFull, TfbuildError, TimeUp, Unsupported, UsageError, reason_of
from tfbuild.in_container.smoke import probes
from tfbuild.pipeline import bundle, diagnosis
from tfbuild.pipeline.bazel import BazelWatch
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build
from tfbuild.plan import remote_cache as remotes
from tfbuild.util.files import remove, temporary_folder
from tfbuild.util.progress import Progress, duration
from tfbuild.util.quantities import counted

# Bazel is told to stop at the limit; this much later, everything is stopped.
GRACE_SECONDS = 90.0
# A context with overriding repositories has gigabytes, which the client sends again.
FETCH_SECONDS = 300.0
USELESS = (
    f"does it accept the property {remotes.SILO} (BuildGrid: wildcard-property-keys), and do its workers run in the "
    "image of the Dockerfile's stage `toolchain`? Without --remote-executor, the build continues from what is compiled"
)


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What runs the builder's stages: an engine, or this machine (host.py), which only writes files.

    `make`: makes the image of a stage, or writes its files. `cpus`, `memory` (bytes): those of its machine, whose CPU
    `cpu` reads; `local`: it is this one. `data_root`: the folder whose disk fills up, None if it is not here. `where`:
    its name in messages; `reach`, `free_disk`, `empty_caches`: what to do about a server that its steps cannot reach, a
    full disk, and damaged caches.
    """

    make: Callable[[Path, BuildSettings], None]
    cpus: int
    memory: int
    data_root: Path | None
    local: bool = True
    cpu: Callable[[], Cpu] = detect
    where: str = "the engine"
    reach: str = "The build's steps must reach it (--network host for one on this machine). "
    free_disk: str = faults.PRUNE
    empty_caches: str = diagnosis.EMPTY_CACHES


# --- how much of a machine Bazel may use ------------------------------------------------------------------------------

# One of TensorFlow's C++ actions takes up to about this much; Bazel's server takes about as much as one action.
ACTION_BYTES = 2 << 30
SERVER_BYTES = 2 << 30
# BOLT took 9.2 GB to instrument 2.22's core library.
BOLT_BYTES = 10 * 10**9
# Actions given to an executor at once: it queues what its workers cannot take yet, and tells nobody how many it has.
REMOTE_JOBS = 100
NO_LIMITS = (math.inf, math.inf)


@dataclass(frozen=True, kw_only=True)
class Share:
    """Bazel's `--jobs` and `--local_ram_resources` (in MiB), and why; its `flags` for this machine change no result."""

    jobs: int
    ram: int
    reason: str
    flags: tuple[str, ...] = ()

    def bazelrc(self) -> str:
        lines = (f"--jobs={self.jobs}", f"--local_ram_resources={self.ram}", *self.flags)
        return "".join(f"build {line}\n" for line in lines)


def machine_share(
    *, cpus: int, memory: int, limits: tuple[float, float] = NO_LIMITS, jobs: int = 0, remote: bool = False
) -> Share:
    """Return Bazel's share of a machine with `cpus` and `memory` bytes; `jobs`: the user's choice, 0 for none.

    `limits`: the processors and bytes that the cgroup allows.
    With `remote`, an executor runs the actions; the share only limits those that run here nevertheless.
    """
    usable = int(min(memory, limits[1]))
    by_memory = max(1, (usable - SERVER_BYTES) // ACTION_BYTES)
    by_cpus = max(1, int(min(cpus, limits[0])))
    count = jobs or (REMOTE_JOBS if remote else min(by_cpus, by_memory))
    why = f"{by_cpus} by processors, {by_memory} by {usable / (1 << 30):.1f} GiB of memory at 2 GiB an action"
    if limits[0] < cpus or limits[1] < memory:
        why += ", within this cgroup's limits"
    if remote:
        why = f"the executor queues what its workers cannot take yet; local actions: {why}"
    reason = f"--jobs={count}: {'as requested; ' if jobs else ''}{why}"
    return Share(jobs=count, ram=max(usable // 2, usable - SERVER_BYTES) >> 20, reason=reason)


# --- a run of the builder ---------------------------------------------------------------------------------------------


def run_builder(builder: Builder, build: Build, run: Run, context: Path, settings: BuildSettings) -> None:
    """Make the image of a stage, or write its files.

    A failed compile becomes the error that names its cause, and Bazel's own files of the run go beside the log. Raises
    TimeUp at the time limit, BadMirror where the mirror lacked a download, BuildFailed with a setting to change where
    memory ran out or a remote cache did not answer, and all that the builder raises.
    """
    progress, watch, left = settings.progress, BazelWatch(), _left(run)
    compiles = build.toolchain is not None and not run.reuse and settings.stage not in bundle.STAGES.values()
    share = _share(builder, build, run, progress) if compiles else None
    arguments = {**settings.build_args, **({"LIBTENSORFLOW": "1"} if run.libtensorflow else {})}
    with temporary_folder() as folder:
        secrets = _secrets(build, run, share, folder)
        settings = replace(settings, build_args=arguments, network=run.network, secrets=secrets)
        limited = compiles and run.seconds > 0
        watched = replace(settings, watch=watch.show, seconds=left + GRACE_SECONDS if limited else None)
        try:
            builder.make(context, watched)
        except (TimeoutError, DiskFull, BuildFailed) as error:
            # Fall back to the clock, in case the builder truncated Bazel's output.
            late = watch.out_of_time or (limited and _left(run) <= 0)
            _keep(builder, context, settings, watch, share)
            for line in watch.first:
                progress(f"failed first: {line}")
            if isinstance(error, DiskFull):
                raise
            if late or isinstance(error, TimeoutError):
                raise _time_up(run, watch) from None
            answer = _answer(builder, run, share, error, watch)
            if watch.began and answer is error:
                answer = _known(build, error, settings.log, progress)
            raise answer from None
        if watch.summary:
            progress(f"bazel: {watch.summary}")
        _keep(builder, context, settings, watch, share)
        if watch.alone and run.remote:
            progress(f"lost the remote {run.remote.name}; compiled the rest locally")


def _share(builder: Builder, build: Build, run: Run, progress: Progress) -> Share:
    """Return what the compile may take of the machine, and report how it will run. Raises what _refuse_bolt() does."""
    executor = bool(run.remote and run.remote.executor)
    limits = (probes.quota() or math.inf, probes.memory() * 2**20) if builder.local else NO_LIMITS
    if build.request.bolt:
        _refuse_bolt(builder, build, run, min(builder.memory, limits[1]))
    share = machine_share(cpus=builder.cpus, memory=builder.memory, limits=limits, jobs=run.jobs, remote=executor)
    progress(f"bazel {share.reason}")
    flags = build.toolchain.machine_flags if build.toolchain else ()
    # None if others may run actions, or this machine lacks a feature.
    if executor or not flags or lacking_features(build, builder.cpu) != ():
        flags = ()
    if flags:
        progress("bazel compiles host tools and target once: this machine runs what it compiles")
    if run.remote:
        progress(f"remote {run.remote.name}")
    return replace(share, flags=flags)


def _refuse_bolt(builder: Builder, build: Build, run: Run, memory: float) -> None:
    """Refuse before the compile what --bolt would fail at after it. Raises UsageError or Unsupported."""
    if run.libtensorflow:
        raise UsageError("--bolt changes the wheel alone, not the C library", hint="leave one of them out")
    if lacks := lacking_features(build, builder.cpu):
        why = f"--bolt runs what is compiled, and the CPU of {builder.where} lacks {' '.join(lacks)}"
        raise Unsupported(why, hint="leave it out, or compile on a CPU that has it")
    if memory < BOLT_BYTES:
        why = f"--bolt needs {BOLT_BYTES / 1e9:.0f} GB of memory, and {builder.where} has {memory / 1e9:.1f} GB"
        raise Unsupported(why, hint="leave it out, or give it more")


def _secrets(build: Build, run: Run, share: Share | None, folder: Path) -> dict[str, Path]:
    """Write the builder's secrets into files of `folder`, which only this user can read, and return them by name."""
    secrets = {"ca": run.ca} if run.ca else {}
    texts = {"mirror": f"{run.mirror}\n" if run.mirror else ""}
    if share is not None:
        texts["machine"] = share.bazelrc()
        # For compile.sh: a second of this machine's clock.
        texts["deadline"] = f"{time.time() + _left(run):.0f}\n" if run.seconds else ""
        if run.remote:
            texts["remote"] = run.remote.bazelrc(build.bazel)
            secrets |= run.remote.files
    for name, text in texts.items():
        if text:
            secrets[name] = folder / name
            secrets[name].touch(mode=0o600)
            secrets[name].write_text(text, encoding="utf-8")
    return secrets


def _keep(builder: Builder, context: Path, settings: BuildSettings, watch: BazelWatch, share: Share | None) -> None:
    """Copy Bazel's own files of this run, its log and its profile, beside the log. A failure is only noted."""
    if not watch.began or share is None:
        return
    folder, progress = settings.log.parent, settings.progress
    try:
        for old in (*folder.glob("profile.json*"), folder / "bazel.log"):
            remove(old)
        with temporary_folder("bazel-", folder) as place:
            quiet = replace(settings, log=folder / "kept.log", progress=Progress(io.StringIO()), seconds=FETCH_SECONDS)
            # RUN_ID keeps this stage itself from being cached.
            arguments = {**settings.build_args, "RUN_ID": str(time.time_ns())}
            kept = replace(quiet, stage="kept", output=place / "kept", build_args=arguments, no_cache=False)
            builder.make(context, kept)
            for file in (path for path in (place / "kept").iterdir() if not path.is_symlink()):
                file.replace(folder / file.name)
    except (TfbuildError, OSError) as error:
        why = (reason_of(error).splitlines() or [repr(error)])[0]
        progress(f"note: cannot get Bazel's profile ({why}): {folder / 'kept.log'}")
        return
    # An analysis that fails leaves only its log.
    for path in folder.glob("profile.json*"):
        progress(f"profile: {path} (chrome://tracing and ui.perfetto.dev show it)")


def _answer(builder: Builder, run: Run, share: Share | None, error: BuildFailed, watch: BazelWatch) -> TfbuildError:
    """Return the error with what to do about it, where that is known."""
    # Programs call a full disk anything: apt calls signatures invalid. Bazel removes a half-written output at once.
    # With an executor, the line may be about a worker's disk.
    executor = bool(run.remote and run.remote.executor)
    if (watch.full and not executor) or faults.disk_is_full(builder.data_root):
        return DiskFull(f"{builder.where}'s disk is full\n{error.reason}", hint=f"{builder.free_disk}; {error.hint}")
    if share is not None and (watch.killed or "exit code: 137" in error.reason):
        why = f"a compiler or Bazel was killed, most likely because memory ran out ({share.reason})\n{error.reason}"
        workers = f"give the executor's workers more memory, or {builder.where} if Bazel itself was killed"
        hint = workers if executor else memory_hint(share, builder.where)
        return BuildFailed(why, hint=f"{hint}; what is compiled is kept. {error.hint}")
    if watch.no_use:
        return BuildFailed(f"the remote executor cannot be used: {watch.no_use}\n{error.reason}", hint=USELESS)
    if watch.no_remote and run.remote:
        return BuildFailed(
            f"the remote {run.remote.name} cannot be used\n{error.reason}",
            hint=f"is it up, and does it accept the credentials? {builder.reach}Without it, the build continues from "
            f"what is compiled so far. {error.hint}",
        )
    explained = diagnosis.explain(error, builder.empty_caches)
    # A cause of its own kind says more than the mirror, and the mirror says more than any other failure.
    if run.mirror and type(explained) is BuildFailed:
        return diagnosis.explain_mirror(error, run.mirror) or explained
    return explained


def lacking_features(build: Build, machine: Callable[[], Cpu]) -> tuple[str, ...] | None:
    """Return the build's features that the machine's CPU lacks; None if its CPU is not known."""
    try:
        return tuple(sorted(set(build.instruction_set.features) - set(machine().features)))
    except Unsupported:
        return None


def _known(build: Build, error: BuildFailed, log: Path, progress: Progress) -> BuildFailed:
    """Return the error, with the workaround if the log shows a known failure of the release."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    rows = [row for row in build.toolchain.known_failures if row.matches(text)] if build.toolchain else []
    if not rows:
        progress(f"the log shows no known failure of TensorFlow {build.release}")
        return error
    for row in rows:
        progress(f"known failure of TensorFlow {build.release} ({row.id}): {row.symptom}; workaround: {row.workaround}")
    return BuildFailed(error.reason, hint=f"a known failure ({rows[0].id}): {rows[0].workaround}; {error.hint}")


def _left(run: Run) -> float:
    """Return the seconds to the time limit, whatever was done to the clock meanwhile."""
    return run.started + run.seconds - time.monotonic()


def memory_hint(share: Share, where: str) -> str:
    """Return what to change where memory ran out."""
    if share.jobs == 1:
        return f"one action at a time is already too much: give {where} more memory (a cgroup's limit counts too)"
    return f"--jobs {share.jobs // 2}"


def _time_up(run: Run, watch: BazelWatch) -> TimeUp:
    so_far, more = "; what is compiled is kept", ""
    if watch.failed:
        so_far = f", after {counted(watch.failed, 'action')} failed (ERROR in the log){so_far}"
    if watch.counted is None:
        so_far = ", before anything was compiled"
        more = "give it more time: each run begins with Bazel's analysis; "
    message = f"stopped at the time limit of {duration(run.seconds)}{so_far}"
    return TimeUp(message, hint=f"{more}the same command continues from there")
