"""What the engine reports of a transfer, and the error that a broken one becomes."""

from collections.abc import Iterator
from typing import Any

import docker
import pytest
import urllib3

from tfbuild.engine import transfer
from tfbuild.engine.transfer import TransferFailed
from tfbuild.oci import refusals
from tfbuild.util.progress import Progress, Step

BEGUN = {"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 2}}


def events(error: Exception | None = None, *more: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield BEGUN
    yield from more
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            events(urllib3.exceptions.ReadTimeoutError(None, "", "Read timed out.")),  # type: ignore[arg-type]
            "the transfer stalled: the engine reports no progress",
        ),
        (
            events(ConnectionResetError(104, "Connection reset by peer")),
            "the engine aborted the transfer: Connection reset by peer",
        ),
        (events(None, {"error": "unexpected EOF"}, BEGUN), "unexpected EOF"),
    ],
)
def test_a_broken_transfer_says_why_and_that_it_goes_on(broken: Iterator[dict[str, Any]], message: str) -> None:
    step = Step("pull")
    with pytest.raises(TransferFailed) as error:
        transfer.follow(broken, step, pushing=False)
    assert error.value.reason == message
    assert error.value.passing
    assert error.value.hint.startswith("the same command continues where it stopped")
    assert step.share == 0.5


def test_a_transfer_is_tried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0)
    tries: list[int] = []

    def broken() -> None:
        tries.append(1)
        raise TransferFailed("unexpected EOF")

    with pytest.raises(TransferFailed):
        transfer.again(broken, Progress())
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("answer", "hint", "passing"),
    [
        (
            "Get https://h/v2/: x509: certificate signed by unknown authority",
            "the engine must trust the registry's CA",
            False,
        ),
        ("Get https://h/v2/: http: server gave HTTP response to HTTPS client", "serve that registry with TLS", False),
        ("pull access denied for x, repository does not exist", "docker login as a user with access", False),
        ("toomanyrequests: You have reached your pull rate limit", refusals.TOO_MANY, True),
        ("Get http://h/v2/: dial tcp h:80: connect: connection refused", "does the engine reach that registry", False),
        ("manifest unknown", "does the engine reach that registry, and does it have the image?", False),
    ],
)
def test_a_pull_that_cannot_begin_says_what_to_do(answer: str, hint: str, passing: bool) -> None:
    with pytest.raises(TransferFailed) as error, transfer.beginning():
        raise docker.errors.APIError("500 Server Error", explanation=answer)
    assert (error.value.reason, error.value.passing) == (answer, passing)
    assert error.value.hint.startswith(hint)
