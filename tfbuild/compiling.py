"""What a run of the builder gets beside its context, and what a failed compile means.

All of it goes in as BuildKit secrets. They shape no cache key: another machine or mirror compiles nothing again.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild import resources
from tfbuild.bazel import Watch
from tfbuild.engine import Engine
from tfbuild.engine.build import Settings
from tfbuild.engine.progress import duration
from tfbuild.errors import BuildFailed, TimeUp, UsageError
from tfbuild.plan import Build

LIMIT = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
# Bazel is asked to stop at the limit; this much later everything is stopped.
GRACE_SECONDS = 90.0


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


def run(build: Build, given: Options, engine: Engine, settings: Settings, start: Callable[[Settings], object]) -> None:
    """Lets `start` run the builder, and turns what a compile says of its end into the error that helps.

    The secrets' files go beside the log. Raises TimeUp at the time limit, BuildFailed with a setting to change where
    memory ran out, and all that the builder raises.
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
    try:
        start({**settings, "secrets": secrets, "network": given.network, "watch": watch, "seconds": left})
    except TimeoutError:
        raise _time_up(given) from None
    except BuildFailed as error:
        if watch.out_of_time:
            raise _time_up(given) from None
        if watch.killed and share is not None:
            fewer = max(1, share.jobs // 2)
            raise BuildFailed(
                f"a compiler or Bazel was killed, most likely for want of memory ({share.reason})\n{error.reason}",
                hint=f"--jobs {fewer}; what is compiled is kept. {error.hint}",
            ) from None
        raise
    if watch.summary:
        progress(f"bazel: {watch.summary}")


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _time_up(given: Options) -> TimeUp:
    return TimeUp(
        f"stopped at the time limit of {duration(given.seconds)}; what is compiled is kept in the engine's cache",
        hint="the same command goes on from there",
    )
