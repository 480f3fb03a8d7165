"""What the engine tells of a push or a pull, layer by layer, as one share and one line."""

from collections.abc import Iterable
from typing import Any

from tfbuild.engine.progress import Step
from tfbuild.errors import TfbuildError

MOVING = ("Pushing", "Downloading")


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry."""

    exit_code = 26


def follow(events: Iterable[dict[str, Any]], step: Step) -> None:
    """Shows the events of a transfer in `step` until its end; TransferFailed with the engine's reason."""
    layers: dict[str, tuple[int, int]] = {}
    for event in events:
        if "error" in event:
            raise TransferFailed(str(event["error"]).strip(), hint=_hint(str(event["error"])))
        detail = event.get("progressDetail") or {}
        if event.get("status") in MOVING and detail.get("total"):
            layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
            done, total = (sum(part) for part in zip(*layers.values(), strict=True))
            step.share = min(1.0, done / total)
            step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"


def _hint(error: str) -> str:
    """What to do about the engine's most common refusals; its words are free text."""
    known = {
        "no basic auth": "docker login",
        "unauthorized": "docker login",
        "denied": "docker login as somebody who may; does the repository exist?",
        "toomanyrequests": "docker login raises the limit, or try again later",
        "x509": "the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt",
        "no space left": "make room on the engine's disk: docker system df",
    }
    found = next((hint for words, hint in known.items() if words in error.lower()), "")
    return found or "the same command goes on where it stopped: layers that arrived are kept"
