"""What the user asked of a run, beside what is to be built: where and how it is done. Nothing here acts.

`RunRequest` holds the words of the command line, `Run` what they mean; it goes unchanged from there to the engine.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tfbuild.context import remote_cache as remotes
from tfbuild.context.remote_cache import Remote
from tfbuild.engine import selection
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import UsageError
from tfbuild.pipeline import bundle as bundles
from tfbuild.pipeline.bundle import Bundle
from tfbuild.util.quantities import COUNT, gigabytes, limit_seconds

WORK = Path("build")
REPORTS = Path("reports")


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The options of the verbs that make images, word for word, in the order in which messages name them."""

    engine: str = ""
    builder: str = ""
    base: str = "auto"
    mirror: str = ""
    network: str = ""
    jobs: str = ""
    time_limit: str = ""
    need_disk: str = ""
    remote_cache: str = ""
    remote_executor: str = ""
    remote_instance: str = ""
    remote_header_file: str = ""
    remote_client_cert: str = ""
    remote_client_key: str = ""
    remote_property: tuple[str, ...] = ()
    remote_readonly: bool = False
    no_cache: bool = False
    no_verify: bool = False
    no_throughput: bool = False
    reverify: bool = False

    def for_compiling(self) -> tuple[str, ...]:
        """Return the options given that say how to compile: of no use where nothing is compiled."""
        names = ("jobs", *(name for name in RunRequest.__dataclass_fields__ if name.startswith("remote_")))
        return tuple(f"--{name.replace('_', '-')}" for name in names if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What holds for everything that one command makes.

    `mirror`: a URL; `bundle` takes its place, and is filled from it where `recording`. `jobs`: 0 for as many as fit;
    `seconds`: 0 for no time limit, counted from `started`. `disk`: bytes that must be free, None for the usual.
    `work`: contexts and logs; `reports`: the proofs. `throughput`: whether verification compares speeds.
    """

    engine: EngineChoice = USUAL
    base: str = "auto"
    mirror: str = ""
    bundle: Bundle | None = None
    recording: bool = False
    network: str = ""
    ca: Path | None = None
    remote: Remote | None = None
    jobs: int = 0
    seconds: float = 0.0
    disk: int | None = None
    no_cache: bool = False
    verify: bool = True
    throughput: bool = True
    reverify: bool = False
    work: Path = WORK
    reports: Path = REPORTS
    started: float = field(default_factory=time.time)


def run_of(asked: RunRequest, ca: Path | None) -> Run:
    """Read the words of a request; `ca`: a company's CA certificates. Raises UsageError, BadMirror, EngineMissing."""
    engine = selection.choose(asked.engine, asked.builder)
    elsewhere = asked.mirror.startswith(("http://", "https://"))
    if asked.jobs and not COUNT.fullmatch(asked.jobs):
        raise UsageError(f"--jobs {asked.jobs!r} is no count", hint="--jobs 4")
    if asked.network not in ("", "host", "none", "default"):
        raise UsageError(f"unknown network {asked.network!r}", hint="one of: default, host, none")
    return Run(
        engine=engine,
        base=asked.base,
        mirror=_address(asked.mirror) if elsewhere else "",
        bundle=None if elsewhere else _bundle(asked.mirror, asked.network),
        network=asked.network,
        ca=ca,
        remote=_remote(asked),
        jobs=int(asked.jobs or 0),
        seconds=limit_seconds(asked.time_limit),
        disk=gigabytes(asked.need_disk),
        no_cache=asked.no_cache,
        verify=not asked.no_verify,
        throughput=not asked.no_throughput,
        reverify=asked.reverify,
    )


def _address(mirror: str) -> str:
    if "@" in urlsplit(mirror).netloc:
        raise UsageError(
            "--mirror holds a user or a password, which builds would print",
            hint="a mirror that everybody in its network may read, or a folder that `invoke bundle` filled",
        )
    return mirror.rstrip("/")


def _bundle(mirror: str, network: str) -> Bundle | None:
    if not mirror:
        return None
    if not Path(mirror).is_dir():
        raise UsageError(
            f"--mirror {mirror!r} is neither a folder nor an http:// or https:// address",
            hint="invoke bundle makes such a folder",
        )
    found = bundles.read(Path(mirror))
    if network not in ("", "host"):
        raise UsageError(
            f"a folder as --mirror is served on this machine, which --network {network} cannot reach",
            hint="leave out --network",
        )
    return found


def _remote(asked: RunRequest) -> Remote | None:
    """The remote cache or executor that the options name."""
    return remotes.options(
        cache=asked.remote_cache,
        executor=asked.remote_executor,
        instance=asked.remote_instance,
        properties=asked.remote_property,
        readonly=asked.remote_readonly,
        header_file=asked.remote_header_file,
        certificate=asked.remote_client_cert,
        key=asked.remote_client_key,
    )
