"""Pushes and pulls as the engine reports them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import urllib3

from tfbuild.engine.faults import disk_full
from tfbuild.errors import TfbuildError, without_secrets
from tfbuild.oci import refusals
from tfbuild.util.progress import Progress, Step
from tfbuild.util.terminal import cause

MOVING = ("Pushing", "Downloading")
# The engine itself has tried each layer five times by then.
TRIES = 3
WAIT_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A `phrase` in the engine's error text, what to do about it, and whether a retry may help (`passing`).

    `expires`: a retry may help if some data had been moved, because the credentials expired meanwhile.
    """

    phrase: str
    hint: str
    passing: bool = False
    expires: bool = False


# The first match decides.
REFUSALS = (
    Refusal(phrase="toomanyrequests", hint=refusals.TOO_MANY, passing=True),
    Refusal(phrase="too many requests", hint=refusals.TOO_MANY, passing=True),
    Refusal(phrase="immutable", hint=refusals.IMMUTABLE),
    Refusal(phrase="name unknown", hint=refusals.UNKNOWN_NAME),
    # After the rate limits, because some of these phrases also appear in quotas of requests.
    *(Refusal(phrase=phrase, hint=refusals.FULL) for phrase in refusals.SPACE),
    Refusal(phrase="413 request entity too large", hint=refusals.FULL),
    Refusal(phrase="no basic auth", hint="docker login"),
    Refusal(phrase="unauthorized", hint="docker login", expires=True),
    Refusal(phrase="denied", hint="docker login as a user with access; does the repository exist?"),
    Refusal(phrase="x509", hint="the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt"),
    Refusal(
        phrase="http response to https client",
        hint="serve that registry with TLS, or add it to the engine's insecure-registries",
    ),
)
UNKNOWN = Refusal(phrase="", hint="the same command continues where it stopped: complete layers are kept", passing=True)
NOT_BEGUN = Refusal(phrase="", hint="does the engine reach that registry, and does it have the image?")


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry, by `refusal`. `passing`: a retry may succeed."""

    exit_code = 26

    def __init__(self, error: str, *, begun: bool = False, otherwise: Refusal = UNKNOWN) -> None:
        """`begun`: some data had been moved by then; `otherwise`: for an error that no row knows."""
        rows = (row for row in REFUSALS if row.phrase in error.lower())
        self.refusal = next(rows, otherwise)
        self.passing = self.refusal.passing or (self.refusal.expires and begun)
        super().__init__(without_secrets(error.strip(), foreign=True), hint=self.refusal.hint)


def again(transfer: Callable[[], None], progress: Progress) -> None:
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
    """Turn the refusal of an engine to begin a pull into TransferFailed. A full disk stays an error of the SDK's."""
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
                failures.append(full or TransferFailed(error, begun=bool(layers)))
            detail = event.get("progressDetail") or {}
            if event.get("status") in MOVING and detail.get("total"):
                layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
                done, total = (sum(part) for part in zip(*layers.values(), strict=True))
                step.share = min(1.0, done / total)
                step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"
    except urllib3.exceptions.ReadTimeoutError:
        failures.append(TransferFailed("the transfer stalled: the engine reports no progress"))
    except (urllib3.exceptions.HTTPError, docker.errors.StreamParseError, OSError) as broken:
        failures.append(TransferFailed(f"the engine aborted the transfer: {cause(broken)}"))
    if failures:
        raise failures[0]
