"""How and where a build is done: what a `RunRequest` means. Nothing acts here; a `Run` reaches the engine unchanged."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild.errors import UsageError
from tfbuild.pipeline import bundle as bundles
from tfbuild.pipeline.bundle import Bundle
from tfbuild.plan import RunRequest
from tfbuild.plan import remote_cache as remotes
from tfbuild.plan.remote_cache import Remote
from tfbuild.util.files import REPORTS, WORK, access_problem
from tfbuild.util.options import refuse_invalid
from tfbuild.util.quantities import limit_seconds, positive


@dataclass(frozen=True, kw_only=True)
class Run:
    """What applies to everything that one command makes.

    `mirror`: a URL; `bundle` takes the place of all downloads. `jobs`: 0 for as many as fit; `seconds`: the time limit
    from `started` (monotonic) on, 0 for none. `disk`: bytes that must be free, None for the default. `libtensorflow`:
    whether the C library comes with a wheel. `work`: the folder of contexts and logs; `reports`: that of verification
    reports. `throughput`: whether verification compares speeds. `reuse`: the image from which TensorFlow is taken, in
    place of installing it.
    """

    engine: str = ""
    base: str = "auto"
    mirror: str = ""
    bundle: Bundle | None = None
    network: str = ""
    ca: Path | None = None
    remote: Remote | None = None
    jobs: int = 0
    seconds: float = 0.0
    disk: int | None = None
    no_cache: bool = False
    libtensorflow: bool = False
    verify: bool = True
    throughput: bool = True
    reverify: bool = False
    reuse: str = ""
    work: Path = WORK
    reports: Path = REPORTS
    started: float = field(default_factory=time.monotonic)


def run_of(request: RunRequest, ca: Path | None, base: str = "auto") -> Run:
    """Return the run that the options describe. `ca`: a company's CA certificates; `base`: of the build's request.

    Raises UsageError, BadMirror.
    """
    refuse_invalid(request)
    mirror = request.mirror
    is_url = mirror.startswith(("http://", "https://"))
    disk = positive("need-disk", request.need_disk) * 10**9 if request.need_disk.strip("0") else 0
    if request.network not in ("", "host", "none", "default"):
        raise UsageError(f"unknown network {request.network!r}", hint="one of: default, host, none")
    if request.no_verify and request.reverify:
        raise UsageError("--no-verify and --reverify contradict each other", hint="leave out one of the two")
    # Scripts of the build read the address; Bazel, git and pip each parse it.
    if is_url and not remotes.is_address(mirror):
        raise UsageError(f"--mirror {mirror!r} is not a valid address", hint="--mirror https://HOST[:PORT][/PATH]")
    bundle = None if is_url else _bundle(mirror, request.network)
    return Run(
        engine=request.engine,
        base=base,
        mirror=mirror.rstrip("/") if is_url else "",
        bundle=bundle,
        network="none" if bundle else request.network,
        ca=ca,
        remote=remotes.named_remote(request),
        jobs=positive("jobs", request.jobs) if request.jobs else 0,
        seconds=limit_seconds(request.time_limit),
        disk=disk if request.need_disk else None,
        no_cache=request.no_cache,
        verify=not request.no_verify,
        throughput=not request.no_throughput,
        reverify=request.reverify,
        reuse=request.reuse,
    )


def _bundle(mirror: str, network: str) -> Bundle | None:
    if not mirror:
        return None
    path = Path(mirror)
    if not os.path.isfile(mirror):  # false for a name that is too long, too
        raise UsageError(
            f"--mirror {mirror!r} is neither a file nor an http:// or https:// address"
            f" ({access_problem(path) or 'not a file'})",
            hint="invoke bundle writes such a file",
        )
    if network not in ("", "none"):
        raise UsageError("a bundle builds without a network", hint="leave out --network")
    return bundles.read_bundle(path)
