"""Pushes and pulls as the engine reports them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import docker
import urllib3

from tfbuild.engine.faults import disk_full
from tfbuild.errors import TfbuildError, without_secrets
from tfbuild.oci import transport
from tfbuild.util.progress import Progress, Step
from tfbuild.util.terminal import cause

MOVING_STATUSES = ("Pushing", "Downloading")
# The engine itself has tried each layer five times by then.
TRIES = 3
WAIT_SECONDS = 2.0


# A phrase in the engine's error text, what to do about it, and whether a retry may help. The first match decides.
REFUSALS = (
    ("toomanyrequests", transport.TOO_MANY, True),
    ("too many requests", transport.TOO_MANY, True),
    ("immutable", transport.IMMUTABLE, False),
    ("name unknown", transport.UNKNOWN_NAME, False),
    # After the rate limits, because some of these phrases also appear in quotas of requests.
    *((phrase, transport.FULL, False) for phrase in transport.SPACE),
    ("413 request entity too large", transport.FULL, False),
    ("no basic auth", "docker login", False),
    # It may have expired during the transfer; then the engine gets a new token.
    ("unauthorized", "docker login", True),
    ("denied", "docker login as a user with access; does the repository exist?", False),
    ("expired or is not yet valid", "if the clock of the engine's machine is right, renew that certificate", False),
    ("x509", "the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt", False),
    (
        "http response to https client",
        "serve that registry with TLS, or add it to the engine's insecure-registries",
        False,
    ),
    # What an older engine says of a layer that is compressed by zstd.
    ("invalid tar header", "zstd layers need Docker 23.0 or newer", False),
    ("unexpected eof", "the same command continues where it stopped; zstd layers need Docker 23.0 or newer", True),
)
UNKNOWN = ("", "the same command continues where it stopped: complete layers are kept", True)
NOT_BEGUN = ("", "does the engine reach that registry, and does it have the image?", False)


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry. `passing`: a retry may succeed."""

    exit_code = 26

    def __init__(self, error: str, *, otherwise: tuple[str, str, bool] = UNKNOWN) -> None:
        """`otherwise`: the row for an error that no other knows."""
        rows = (row for row in REFUSALS if row[0] in error.lower())
        _, hint, self.passing = next(rows, otherwise)
        super().__init__(without_secrets(error.strip(), foreign=True), hint=hint)


def retried(transfer: Callable[[], None], progress: Progress) -> None:
    """Run a transfer, and retry it if that can help."""
    for attempt in range(1, TRIES + 1):
        try:
            transfer()
            return
        except TransferFailed as error:
            if attempt == TRIES or not error.passing:
                raise
            progress(f"{error.reason}; trying again")
            time.sleep(WAIT_SECONDS * attempt)


@contextmanager
def beginning() -> Iterator[None]:
    """Raise TransferFailed if the engine refuses to begin a pull; a full disk stays an error of the SDK's."""
    try:
        yield
    except docker.errors.APIError as error:
        if disk_full(error.explanation):
            raise
        raise TransferFailed(error.explanation or str(error), otherwise=NOT_BEGUN) from error


def follow(events: Iterable[dict[str, Any]], step: Step, *, pushing: bool) -> None:
    """Show the events of a transfer in `step` until it ends. Raises TransferFailed with the engine's reason.

    That includes an engine that breaks off, where the SDK passes on what the layers below it raise. Raises DiskFull if
    a pull fills the engine's disk; the engine then removes what it has of the image.
    """
    layers: dict[str, tuple[int, int]] = {}
    # Read to the end, so that the connection to the engine is released.
    failures: list[TfbuildError] = []
    try:
        for event in events:
            if "error" in event:
                error = str(event["error"])
                full = None if pushing else disk_full(error)
                failures.append(full or TransferFailed(error))
            detail = event.get("progressDetail") or {}
            if event.get("status") in MOVING_STATUSES and detail.get("total"):
                layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
                done, total = (sum(part) for part in zip(*layers.values(), strict=True))
                step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"
    except urllib3.exceptions.ReadTimeoutError:
        failures.append(TransferFailed("the transfer stalled: the engine reports no progress"))
    except (urllib3.exceptions.HTTPError, docker.errors.StreamParseError, OSError) as broken:
        failures.append(TransferFailed(f"the engine aborted the transfer: {cause(broken)}"))
    if failures:
        raise failures[0]
