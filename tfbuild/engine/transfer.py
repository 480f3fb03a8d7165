"""What the engine tells of a push or a pull, layer by layer, as one share and one line."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import docker
import urllib3

from tfbuild.engine.sdk_errors import reason
from tfbuild.errors import TfbuildError
from tfbuild.oci import refusals
from tfbuild.util.progress import Progress, Step

MOVING = ("Pushing", "Downloading")
# The engine has tried each layer five times by then.
TRIES = 3
WAIT_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """`words` in the engine's free text, what to do about them, and whether the same transfer may succeed later.

    `expires`: it may, where something had been moved: what was good when it began is out of date. `pushing`: None for
    both directions.
    """

    words: str
    hint: str
    passing: bool = False
    expires: bool = False
    pushing: bool | None = None


# The first that fits decides.
REFUSALS = (
    Refusal(words="toomanyrequests", hint=refusals.BUSY, passing=True),
    Refusal(words="too many requests", hint=refusals.BUSY, passing=True),
    Refusal(words="immutable", hint=refusals.IMMUTABLE),
    Refusal(words="name unknown", hint=refusals.UNKNOWN_NAME),
    Refusal(words="no space left", hint="make room on the engine's disk: docker system df", pushing=False),
    # Behind those above, for some have quotas of requests.
    *(Refusal(words=words, hint=refusals.FULL) for words in refusals.SPACE),
    Refusal(words="413 request entity too large", hint=refusals.FULL),
    Refusal(words="no basic auth", hint="docker login"),
    Refusal(words="unauthorized", hint="docker login", expires=True),
    Refusal(words="denied", hint="docker login as somebody who may; does the repository exist?"),
    Refusal(words="x509", hint="the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt"),
    Refusal(
        words="http response to https client",
        hint="put TLS before that registry, or name it in the engine's own insecure-registries",
    ),
)
UNKNOWN = Refusal(
    words="", hint="the same command goes on where it stopped: layers that arrived are kept", passing=True
)


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry. `passing`: the same again may succeed."""

    exit_code = 26

    def __init__(self, error: str, *, pushing: bool, begun: bool = False) -> None:
        """`begun`: something had been moved by then."""
        rows = (row for row in REFUSALS if row.words in error.lower() and row.pushing in (None, pushing))
        found = next(rows, UNKNOWN)
        self.passing = found.passing or (found.expires and begun)
        super().__init__(error.strip(), hint=found.hint)


def again(transfer: Callable[[], None], progress: Progress) -> None:
    """Tries a transfer again where that can help."""
    for attempt in range(1, TRIES + 1):
        try:
            transfer()
            return
        except TransferFailed as error:
            if attempt == TRIES or not error.passing:
                raise
            progress(f"{error.reason}; trying again")
            time.sleep(WAIT_SECONDS * attempt)


def follow(events: Iterable[dict[str, Any]], step: Step, *, pushing: bool) -> None:
    """Shows the events of a transfer in `step` until its end; TransferFailed with the engine's reason.

    Of an engine that breaks off too: the SDK hands on what the layers below it raise there.
    """
    layers: dict[str, tuple[int, int]] = {}
    # Read to its end, so that the connection to the engine is given back.
    failures = []
    try:
        for event in events:
            if "error" in event:
                failures.append(TransferFailed(str(event["error"]), pushing=pushing, begun=bool(layers)))
            detail = event.get("progressDetail") or {}
            if event.get("status") in MOVING and detail.get("total"):
                layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
                done, total = (sum(part) for part in zip(*layers.values(), strict=True))
                step.share = min(1.0, done / total)
                step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"
    except (urllib3.exceptions.HTTPError, docker.errors.StreamParseError, OSError) as error:
        failures.append(TransferFailed(f"the engine broke off: {reason(error)}", pushing=pushing))
    if failures:
        raise failures[0]
