"""What the engine tells of a push or a pull, layer by layer, as one share and one line."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tfbuild.engine.progress import Progress, Step
from tfbuild.errors import TfbuildError

MOVING = ("Pushing", "Downloading")
# The engine has tried each layer five times by then.
TRIES = 3
WAIT_SECONDS = 2.0
FULL = "the registry's quota or size limit is reached: make room there"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """`words` in the engine's free text, what to do about them, and whether the same transfer may succeed later."""

    words: str
    hint: str
    passing: bool


# The first that fits decides.
REFUSALS = (
    Refusal(words="toomanyrequests", hint="docker login raises the limit, or try again later", passing=True),
    Refusal(words="too many requests", hint="docker login raises the limit, or try again later", passing=True),
    # Behind those above, for some have quotas of requests; Harbor's own has other words.
    Refusal(words="quota", hint=FULL, passing=False),
    Refusal(words="upper limit", hint=FULL, passing=False),
    Refusal(words="413 request entity too large", hint=FULL, passing=False),
    Refusal(words="507 insufficient storage", hint=FULL, passing=False),
    Refusal(words="no basic auth", hint="docker login", passing=False),
    Refusal(words="unauthorized", hint="docker login", passing=False),
    Refusal(words="denied", hint="docker login as somebody who may; does the repository exist?", passing=False),
    Refusal(
        words="x509", hint="the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt", passing=False
    ),
    Refusal(
        words="http response to https client",
        hint="put TLS before that registry, or name it in the engine's own insecure-registries",
        passing=False,
    ),
    Refusal(words="no space left", hint="make room on the engine's disk: docker system df", passing=False),
)
UNKNOWN = Refusal(
    words="", hint="the same command goes on where it stopped: layers that arrived are kept", passing=True
)


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry. `passing`: the same again may succeed."""

    exit_code = 26

    def __init__(self, error: str) -> None:
        found = next((row for row in REFUSALS if row.words in error.lower()), UNKNOWN)
        self.passing = found.passing
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


def follow(events: Iterable[dict[str, Any]], step: Step) -> None:
    """Shows the events of a transfer in `step` until its end; TransferFailed with the engine's reason."""
    layers: dict[str, tuple[int, int]] = {}
    # Read to its end, so that the connection to the engine is given back.
    failures = []
    for event in events:
        if "error" in event:
            failures.append(TransferFailed(str(event["error"])))
        detail = event.get("progressDetail") or {}
        if event.get("status") in MOVING and detail.get("total"):
            layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
            done, total = (sum(part) for part in zip(*layers.values(), strict=True))
            step.share = min(1.0, done / total)
            step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"
    if failures:
        raise failures[0]
