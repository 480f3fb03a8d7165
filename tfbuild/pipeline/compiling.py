"""What a run of the builder gets beside its context, and what a failed compile means.

All of it goes in as BuildKit secrets. They shape no cache key: another machine or mirror compiles nothing again.
"""

import io
import tempfile
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.context import remote_cache as remotes
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BadMirror, BuildFailed, TfbuildError, TimeUp
from tfbuild.pipeline import bazel_profile, diagnosis, resources
from tfbuild.pipeline import mirror as mirrors
from tfbuild.pipeline.bazel_output import BazelWatch
from tfbuild.pipeline.mirror import Mirror, Upstream
from tfbuild.pipeline.resources import MachineShare
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, failures
from tfbuild.util.progress import Progress, duration

# Bazel is asked to stop at the limit; this much later everything is stopped.
GRACE_SECONDS = 90.0
FETCH_SECONDS = 60.0
# The slowest actions that are told on the terminal.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class BuilderWork:
    """What the builder is to make of a context: an image called `tag`, or `stage`, whose files go to `output`."""

    context: Path
    tag: str = ""
    stage: str = ""
    output: Path | None = None

    def start(self, engine: Engine, settings: BuildSettings) -> None:
        if self.output is None:
            engine.build(self.context, settings, tag=self.tag)
        else:
            engine.export(self.context, settings, stage=self.stage, output=self.output)


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One run of the builder, and what is known of it before its start.

    `machine_flags`: Bazel's, for this machine alone; they shape how the work is done, not what comes out of it.
    `served`: the mirror that this process has for it; `share`: of the machine, None where nothing is compiled.
    """

    build: Build
    asked: Run
    engine: Engine
    settings: BuildSettings
    work: BuilderWork
    machine_flags: tuple[str, ...] = ()
    served: Mirror | None = None
    share: MachineShare | None = None


def run(one: Compile) -> None:
    """Runs the builder, and turns what a compile says of its end into the error that helps.

    What Bazel left of its run goes beside the log. Raises TimeUp at the time limit, BadMirror where a download failed
    for want of something there, BuildFailed with a setting to change where memory ran out or a remote cache did not
    answer, and all that the builder raises.
    """
    asked = one.asked
    if asked.bundle is None:
        _run(one)
        return
    upstream = Upstream(base=asked.mirror, ca=asked.ca) if asked.recording else None
    with mirrors.serve(asked.bundle, upstream) as mirror:
        _run(replace(one, asked=replace(asked, mirror=mirror.url, network="host"), served=mirror))


def _run(one: Compile) -> None:
    asked, watch = one.asked, BazelWatch()
    if one.build.wheel.kind == "source":
        one = replace(one, share=_share(one))
        _introduce(one)
    left = asked.started + asked.seconds + GRACE_SECONDS - time.time() if asked.seconds else None
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        settings = replace(one.settings, secrets=_secrets(one, Path(folder)), network=asked.network)
        one = replace(one, settings=settings)
        try:
            one.work.start(one.engine, replace(settings, watch=watch, seconds=left))
        except TimeoutError:
            _keep(one, watch)
            raise _time_up(asked, watch) from None
        except BuildFailed as error:
            # Should the builder have cut off Bazel's words, the clock tells it too.
            late = watch.out_of_time or (asked.seconds > 0 and time.time() >= asked.started + asked.seconds)
            _keep(one, watch)
            answer = _time_up(asked, watch) if late else _answer(error, watch, one)
            if watch.began and answer is error:
                answer = _known(one.build.release, error, settings.log, settings.progress)
            raise answer from None
        if watch.alone and asked.remote:
            settings.progress(f"the remote {asked.remote.name} went away; from there on all was compiled here")
        if watch.summary:
            settings.progress(f"bazel: {watch.summary}")
        _keep(one, watch)


def _share(one: Compile) -> MachineShare:
    """What of the engine's machine the compile takes."""
    engine, limits = one.engine, resources.of_this_process(local=one.engine.local)
    return resources.share(cpus=engine.cpus, memory=engine.memory, limits=limits, jobs=one.asked.jobs)


def _introduce(one: Compile) -> None:
    """Tells how the compile is going to be done."""
    progress, asked = one.settings.progress, one.asked
    assert one.share is not None  # something is compiled
    progress(f"bazel {one.share.reason}")
    if one.machine_flags:
        progress("bazel compiles host tools and target once: this machine runs what it compiles")
    if one.engine.builder and not asked.jobs:
        progress(f"note: that is the engine's machine; for another of {one.engine.builder}, give --jobs")
    for line in [f"remote {asked.remote.name}", *remotes.notes(asked.remote, one.build.bazel)] if asked.remote else []:
        progress(line)


def _keep(one: Compile, watch: BazelWatch) -> None:
    """Puts what Bazel left of this run beside the log, and tells of the slowest actions. It hinders nothing."""
    if not watch.began:
        return
    folder, progress = one.settings.log.parent, one.settings.progress
    table = folder / "slowest.txt"
    for old in (*folder.glob("profile.json*"), folder / "bazel.log", table):
        old.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bazel-", dir=folder) as scratch:
            _fetch(one, Path(scratch), folder / "kept.log")
            for file in Path(scratch).iterdir():
                file.replace(folder / file.name)
        path = next(folder.glob("profile.json*"), folder / "profile.json")
        found = bazel_profile.read(path)
        table.write_text(bazel_profile.table(found), encoding="utf-8")
    except (TfbuildError, OSError, EOFError, zlib.error) as error:
        why = (str(error).splitlines() or [repr(error)])[0]
        progress(f"note: Bazel's profile cannot be had ({why}): {folder / 'kept.log'}")
        return
    progress(f"profile: {path} (chrome://tracing and ui.perfetto.dev show it); the slowest actions, more in {table}:")
    for line in bazel_profile.lines(found, SHOWN):
        progress(line)


def _fetch(one: Compile, output: Path, log: Path) -> None:
    """Takes what Bazel left out of the builder's cache; by its argument, this stage is never taken from a cache."""
    quietly = replace(
        one.settings,
        log=log,
        progress=Progress(io.StringIO()),
        build_args={**one.settings.build_args, "RUN_ID": str(time.time_ns())},
        no_cache=False,
        seconds=FETCH_SECONDS,
    )
    one.engine.export(one.work.context, quietly, stage="kept", output=output)


def _known(release: str, error: BuildFailed, log: Path, progress: Progress) -> BuildFailed:
    """The error with what helps, where the log of a failed compile shows a known failure of its release."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    found = failures.matching(release, text)
    if not found:
        progress(f"the log shows no known failure of TensorFlow {release}")
        return error
    for row in found:
        progress(f"known of TensorFlow {release} ({row.id}): {row.symptom}; what helps: {row.workaround}")
    return BuildFailed(error.reason, hint=f"a known failure ({found[0].id}): {found[0].workaround}; {error.hint}")


def _secrets(one: Compile, folder: Path) -> dict[str, Path]:
    """What the builder is handed, by name, each in a file; `folder` is this user's alone and goes away with the run."""
    asked = one.asked
    secrets = {"ca": asked.ca} if asked.ca else {}
    kind = ("recording" if asked.recording else "bundle") if asked.bundle else ""
    texts = {"mirror": f"{asked.mirror}\n{kind}\n" if asked.mirror else ""}
    if one.share is not None:
        texts["machine"] = one.share.bazelrc() + "".join(f"build {flag}\n" for flag in one.machine_flags)
        texts["deadline"] = f"{asked.started + asked.seconds:.0f}\n" if asked.seconds else ""
        if asked.remote:
            texts["remote"] = remotes.bazelrc(asked.remote, one.build.bazel)
            secrets |= asked.remote.secrets()
    for name, text in texts.items():
        if text:
            secrets[name] = folder / name
            secrets[name].touch(mode=0o600)
            secrets[name].write_text(text, encoding="utf-8")
    return secrets


def _answer(error: BuildFailed, watch: BazelWatch, one: Compile) -> TfbuildError:
    """The error with what to do about it, where that is known."""
    asked, share = one.asked, one.share
    if watch.killed and share is not None:
        return BuildFailed(
            f"a compiler or Bazel was killed, most likely for want of memory ({share.reason})\n{error.reason}",
            hint=f"{less(share)}; what is compiled is kept. {error.hint}",
        )
    if watch.no_remote and asked.remote:
        return BuildFailed(
            f"the remote {asked.remote.name} cannot be used\n{error.reason}",
            hint="is it up, and does it know the credentials? Its address is that of the build's steps (--network host "
            f"for one on this machine); or go on without it, with what is compiled so far. {error.hint}",
        )
    explained = diagnosis.explain(error)
    # A cause with a name of its own says more than the mirror, and the mirror more than any other failure.
    if not asked.mirror or type(explained) is not BuildFailed:
        return explained
    answer = one.served.explain(error) if one.served else mirrors.explain(error, asked.mirror)
    if isinstance(answer, BadMirror) and watch.refused:
        return BadMirror("\n  ".join((answer.reason, *watch.refused)), hint=answer.hint)
    return answer


def less(share: MachineShare) -> str:
    """What to change where memory ran out."""
    if share.jobs == 1:
        return "one action at a time is too much already: give the engine more memory (a cgroup's limit counts too)"
    return f"--jobs {share.jobs // 2}"


def _time_up(asked: Run, watch: BazelWatch) -> TimeUp:
    if watch.share is None:
        return TimeUp(
            f"stopped at the time limit of {duration(asked.seconds)}, before anything was compiled",
            hint="the same command goes on from there; each run begins with Bazel's analysis: give it more time",
        )
    return TimeUp(
        f"stopped at the time limit of {duration(asked.seconds)}; what is compiled is kept in the engine's cache",
        hint="the same command goes on from there",
    )
