"""What a run of the builder gets beside its context, and what a failed compile means.

All of it goes in as BuildKit secrets. They shape no cache key: another machine or mirror compiles nothing again.
"""

import io
import re
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from tfbuild import bundle as bundles
from tfbuild import failures, profile, resources, trouble
from tfbuild import mirror as mirrors
from tfbuild import remote as remotes
from tfbuild.bazel import Watch
from tfbuild.bundle import Bundle
from tfbuild.engine import Engine
from tfbuild.engine.build import Settings
from tfbuild.engine.progress import Progress, duration
from tfbuild.errors import BadMirror, BuildFailed, TfbuildError, TimeUp, UsageError
from tfbuild.mirror import Upstream
from tfbuild.plan import Build
from tfbuild.remote import Remote
from tfbuild.resources import Share

LIMIT = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)
# Bazel is asked to stop at the limit; this much later everything is stopped.
GRACE_SECONDS = 90.0
FETCH_SECONDS = 60.0
# The slowest actions that are told on the terminal.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """`mirror`: URL; `jobs`: 0 for as many as fit; `seconds`: 0 for no time limit, counted from `started`.

    `bundle` takes the mirror's place, which then, where `recording`, is what the bundle is filled from.
    """

    mirror: str = ""
    bundle: Bundle | None = None
    recording: bool = False
    network: str = ""
    jobs: int = 0
    seconds: float = 0.0
    ca: Path | None = None
    remote: Remote | None = None
    # Bazel's, for this machine alone: they shape how the work is done, not what comes out of it.
    machine_flags: tuple[str, ...] = ()
    started: float = field(default_factory=time.time)


def options(
    *, mirror: str, network: str, jobs: str, time_limit: str, ca: Path | None, remote: Remote | None = None
) -> Options:
    """The command line's words; UsageError where one cannot be read."""
    elsewhere = mirror.startswith(("http://", "https://"))
    if elsewhere and "@" in urlsplit(mirror).netloc:
        raise UsageError(
            "--mirror holds a user or a password, which builds would print",
            hint="a mirror that everybody in its network may read, or a folder that `invoke bundle` filled",
        )
    if mirror and not elsewhere and not Path(mirror).is_dir():
        raise UsageError(
            f"--mirror {mirror!r} is neither a folder nor an http:// or https:// address",
            hint="invoke bundle makes such a folder",
        )
    if jobs and not COUNT.fullmatch(jobs):
        raise UsageError(f"--jobs {jobs!r} is no count", hint="--jobs 4")
    if network not in ("", "host", "none", "default"):
        raise UsageError(f"unknown network {network!r}", hint="one of: default, host, none")
    bundle = bundles.read(Path(mirror)) if mirror and not elsewhere else None
    if bundle and network not in ("", "host"):
        raise UsageError(
            f"a folder as --mirror is served on this machine, which --network {network} cannot reach",
            hint="leave out --network",
        )
    return Options(
        mirror=mirror.rstrip("/") if elsewhere else "",
        bundle=bundle,
        network=network,
        jobs=int(jobs or 0),
        seconds=limit_seconds(time_limit),
        ca=ca,
        remote=remote,
    )


def limit_seconds(text: str, option: str = "--time-limit") -> float:
    """ "5h30m", "90m", "45s" as seconds; 0 for no limit."""
    found = LIMIT.fullmatch(text)
    if found is None or (text and not any(found.groups())):
        raise UsageError(f"{option} {text!r} cannot be read", hint=f"{option} 5h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise UsageError(f"{option} {text!r} leaves no time", hint=f"{option} 5h30m")
    return float(total)


def run(
    build: Build,
    given: Options,
    engine: Engine,
    settings: Settings,
    start: Callable[[Settings], object],
    fetch: Callable[[Path, Settings], object],
) -> None:
    """Lets `start` run the builder, and turns what a compile says of its end into the error that helps.

    What Bazel left of its run goes beside the log; `fetch` brings it into a folder. Raises TimeUp at the time limit,
    BadMirror where a download failed for want of something there, BuildFailed with a setting to change where memory ran
    out or a remote cache did not answer, and all that the builder raises.
    """
    if given.bundle is None:
        _run(build, given, engine, settings, start, fetch, lambda error: mirrors.explain(error, given.mirror))
        return
    upstream = Upstream(base=given.mirror, ca=given.ca) if given.recording else None
    with mirrors.serve(given.bundle, upstream) as mirror:
        _run(
            build,
            replace(given, mirror=mirror.url, network="host"),
            engine,
            settings,
            start,
            fetch,
            mirror.explain,
        )


def _run(
    build: Build,
    given: Options,
    engine: Engine,
    settings: Settings,
    start: Callable[[Settings], object],
    fetch: Callable[[Path, Settings], object],
    of_mirror: Callable[[BuildFailed], TfbuildError],
) -> None:
    watch, progress, share = Watch(), settings["progress"], None
    if build.wheel.kind == "source":
        limits = resources.of_this_process(local=engine.local)
        share = resources.share(cpus=engine.cpus, memory=engine.memory, limits=limits, jobs=given.jobs)
        progress(f"bazel {share.reason}")
        if given.machine_flags:
            progress("bazel compiles host tools and target once: this machine runs what it compiles")
        if engine.builder and not given.jobs:
            progress(f"note: that is the engine's machine; for another of {engine.builder}, give --jobs")
        for line in [f"remote {given.remote.name}", *remotes.notes(given.remote, build.bazel)] if given.remote else []:
            progress(line)
    left = given.started + given.seconds + GRACE_SECONDS - time.time() if given.seconds else None
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        settings = {**settings, "secrets": _secrets(build, given, share, Path(folder)), "network": given.network}
        try:
            start({**settings, "watch": watch, "seconds": left})
        except TimeoutError:
            _keep(watch, settings, fetch)
            raise _time_up(given, watch) from None
        except BuildFailed as error:
            # Should the builder have cut off Bazel's words, the clock tells it too.
            late = watch.out_of_time or (given.seconds > 0 and time.time() >= given.started + given.seconds)
            _keep(watch, settings, fetch)
            answer = _time_up(given, watch) if late else _answer(error, watch, given, share, of_mirror)
            if watch.began and answer is error:
                answer = _known(build.release, error, settings["log"], progress)
            raise answer from None
        if watch.alone and given.remote:
            progress(f"the remote {given.remote.name} went away; from there on all was compiled here")
        if watch.summary:
            progress(f"bazel: {watch.summary}")
        _keep(watch, settings, fetch)


def _keep(watch: Watch, settings: Settings, fetch: Callable[[Path, Settings], object]) -> None:
    """Puts what Bazel left of this run beside the log, and tells of the slowest actions. It hinders nothing."""
    if not watch.began:
        return
    folder, progress = settings["log"].parent, settings["progress"]
    table = folder / "slowest.txt"
    for old in (*folder.glob("profile.json*"), folder / "bazel.log", table):
        old.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bazel-", dir=folder) as scratch:
            quietly: Settings = {**settings, "log": folder / "kept.log", "progress": Progress(io.StringIO())}
            fetch(Path(scratch), {**quietly, "no_cache": False, "seconds": FETCH_SECONDS})
            for file in Path(scratch).iterdir():
                file.replace(folder / file.name)
        path = next(folder.glob("profile.json*"), folder / "profile.json")
        found = profile.read(path)
        table.write_text(profile.table(found), encoding="utf-8")
    except (TfbuildError, OSError, EOFError, zlib.error) as error:
        why = (str(error).splitlines() or [repr(error)])[0]
        progress(f"note: Bazel's profile cannot be had ({why}): {folder / 'kept.log'}")
        return
    progress(f"profile: {path} (chrome://tracing and ui.perfetto.dev show it); the slowest actions, more in {table}:")
    for line in profile.lines(found, SHOWN):
        progress(line)


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


def _secrets(build: Build, given: Options, share: Share | None, folder: Path) -> dict[str, Path]:
    """What the builder is handed, by name, each in a file; `folder` is this user's alone and goes away with the run."""
    secrets = {"ca": given.ca} if given.ca else {}
    kind = ("recording" if given.recording else "bundle") if given.bundle else ""
    texts = {"mirror": f"{given.mirror}\n{kind}\n" if given.mirror else ""}
    if share is not None:
        texts["machine"] = share.bazelrc() + "".join(f"build {flag}\n" for flag in given.machine_flags)
        texts["deadline"] = f"{given.started + given.seconds:.0f}\n" if given.seconds else ""
        if given.remote:
            texts["remote"] = remotes.bazelrc(given.remote, build.bazel)
            secrets |= given.remote.secrets()
    for name, text in texts.items():
        if text:
            secrets[name] = folder / name
            secrets[name].touch(mode=0o600)
            secrets[name].write_text(text, encoding="utf-8")
    return secrets


def _answer(
    error: BuildFailed,
    watch: Watch,
    given: Options,
    share: Share | None,
    of_mirror: Callable[[BuildFailed], TfbuildError],
) -> TfbuildError:
    """The error with what to do about it, where that is known."""
    if watch.killed and share is not None:
        return BuildFailed(
            f"a compiler or Bazel was killed, most likely for want of memory ({share.reason})\n{error.reason}",
            hint=f"{less(share)}; what is compiled is kept. {error.hint}",
        )
    if watch.no_remote and given.remote:
        return BuildFailed(
            f"the remote {given.remote.name} cannot be used\n{error.reason}",
            hint="is it up, and does it know the credentials? Its address is that of the build's steps (--network host "
            f"for one on this machine); or go on without it, with what is compiled so far. {error.hint}",
        )
    explained = trouble.explain(error)
    # A cause with a name of its own says more than the mirror, and the mirror more than any other failure.
    if not given.mirror or type(explained) is not BuildFailed:
        return explained
    answer = of_mirror(error)
    if isinstance(answer, BadMirror) and watch.refused:
        return BadMirror("\n  ".join((answer.reason, *watch.refused)), hint=answer.hint)
    return answer


def less(share: Share) -> str:
    """What to change where memory ran out."""
    if share.jobs == 1:
        return "one action at a time is too much already: give the engine more memory (a cgroup's limit counts too)"
    return f"--jobs {share.jobs // 2}"


def _time_up(given: Options, watch: Watch) -> TimeUp:
    if watch.share is None:
        return TimeUp(
            f"stopped at the time limit of {duration(given.seconds)}, before anything was compiled",
            hint="the same command goes on from there; each run begins with Bazel's analysis: give it more time",
        )
    return TimeUp(
        f"stopped at the time limit of {duration(given.seconds)}; what is compiled is kept in the engine's cache",
        hint="the same command goes on from there",
    )
