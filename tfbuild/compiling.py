"""What a run of the builder gets beside its context, and what a failed compile means.

All of it goes in as BuildKit secrets. They shape no cache key: another machine or mirror compiles nothing again.
"""

import io
import re
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild import profile, resources, trouble
from tfbuild.bazel import Watch
from tfbuild.engine import Engine
from tfbuild.engine.build import Settings
from tfbuild.engine.progress import Progress, duration
from tfbuild.errors import BuildFailed, TfbuildError, TimeUp, UsageError
from tfbuild.plan import Build

LIMIT = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
# Bazel is asked to stop at the limit; this much later everything is stopped.
GRACE_SECONDS = 90.0
FETCH_SECONDS = 60.0
# The slowest actions that are told on the terminal.
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """`mirror`: URL; `jobs`: 0 for as many as fit; `seconds`: 0 for no time limit, counted from `started`."""

    mirror: str = ""
    network: str = ""
    jobs: int = 0
    seconds: float = 0.0
    ca: Path | None = None
    started: float = field(default_factory=time.time)


def options(*, mirror: str, network: str, jobs: str, time_limit: str, ca: Path | None) -> Options:
    """The command line's words; UsageError where one cannot be read."""
    if mirror and not mirror.startswith(("http://", "https://")):
        raise UsageError(
            f"--mirror {mirror!r} is no http:// or https:// address", hint="serve the folder, and name that"
        )
    if jobs and not (jobs.isdigit() and int(jobs)):
        raise UsageError(f"--jobs {jobs!r} is no count", hint="--jobs 4")
    if network not in ("", "host", "none", "default"):
        raise UsageError(f"unknown network {network!r}", hint="one of: default, host, none")
    return Options(
        mirror=mirror.rstrip("/"), network=network, jobs=int(jobs or 0), seconds=limit_seconds(time_limit), ca=ca
    )


def limit_seconds(text: str) -> float:
    """ "5h30m", "90m", "45s" as seconds; 0 for no limit."""
    found = LIMIT.fullmatch(text)
    if found is None or (text and not any(found.groups())):
        raise UsageError(f"--time-limit {text!r} cannot be read", hint="--time-limit 5h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise UsageError(f"--time-limit {text!r} leaves no time", hint="--time-limit 5h30m")
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

    The secrets' files go beside the log, and so does what Bazel left of its run, which `fetch` brings into a folder.
    Raises TimeUp at the time limit, BuildFailed with a setting to change where memory ran out, and all that the builder
    raises.
    """
    watch, progress, folder = Watch(), settings["progress"], settings["log"].parent / "settings"
    secrets = {"ca": given.ca} if given.ca else {}
    if given.mirror:
        secrets["mirror"] = _file(folder / "mirror", given.mirror)
    share = None
    if build.wheel.kind == "source":
        limits = resources.of_this_process(local=engine.local)
        share = resources.share(cpus=engine.cpus, memory=engine.memory, limits=limits, jobs=given.jobs)
        progress(f"bazel {share.reason}")
        secrets["machine"] = _file(folder / "machine", share.bazelrc())
        if given.seconds:
            secrets["deadline"] = _file(folder / "deadline", f"{given.started + given.seconds:.0f}\n")
    left = given.started + given.seconds + GRACE_SECONDS - time.time() if given.seconds else None
    settings = {**settings, "secrets": secrets, "network": given.network}
    try:
        start({**settings, "watch": watch, "seconds": left})
    except TimeoutError:
        _keep(watch, settings, fetch)
        raise _time_up(given) from None
    except BuildFailed as error:
        # Should the builder have cut off Bazel's words, the clock tells it too.
        late = watch.out_of_time or (given.seconds > 0 and time.time() >= given.started + given.seconds)
        _keep(watch, settings, fetch)
        if late:
            raise _time_up(given) from None
        if watch.killed and share is not None:
            fewer = max(1, share.jobs // 2)
            raise BuildFailed(
                f"a compiler or Bazel was killed, most likely for want of memory ({share.reason})\n{error.reason}",
                hint=f"--jobs {fewer}; what is compiled is kept. {error.hint}",
            ) from None
        raise trouble.explain(error) from None
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


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _time_up(given: Options) -> TimeUp:
    return TimeUp(
        f"stopped at the time limit of {duration(given.seconds)}; what is compiled is kept in the engine's cache",
        hint="the same command goes on from there",
    )
