"""What the engine reports of transfers, and which failed ones are retried."""

from collections.abc import Iterator
from typing import Any

import docker
import pytest
import urllib3

from tfbuild.engine import transfer as transfers
from tfbuild.engine.transfer import TransferFailed, follow
from tfbuild.errors import DiskFull
from tfbuild.oci import transport
from tfbuild.util.progress import Progress, Step


def fail(error: str, step: Step) -> None:
    follow([{"status": "Preparing"}, {"error": error}], step, pushing=True)


@pytest.mark.parametrize(
    ("error", "tries", "hint"),
    [
        ("toomanyrequests: retry-after: 1ms, allowed: 44000/minute", 3, transport.TOO_MANY),
        ("received unexpected HTTP status: 429 Too Many Requests", 3, transport.TOO_MANY),
        ("toomanyrequests: Quota exceeded for requests per minute per project", 3, transport.TOO_MANY),
        ("EOF", 3, "the same command continues where it stopped"),
        (
            "failed to register layer: unexpected EOF",
            3,
            "the same command continues where it stopped; zstd layers need",
        ),
        ("unauthorized: authentication required", 3, "docker login"),
        ("Error processing tar file(exit status 1): archive/tar: invalid tar header", 1, "zstd layers need"),
        ("no basic auth credentials", 1, "docker login"),
        ("denied: requested access to the resource is denied", 1, "docker login as a user with access"),
        (
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            1,
            "the engine must trust",
        ),
        ("x509: certificate has expired or is not yet valid: current time 2026-01-01 is before", 1, "if the clock of"),
        ('Get "https://r.example:5000/v2/": http: server gave HTTP response to HTTPS client', 1, "serve that registry"),
        ("tag invalid: The image tag 'x' cannot be overwritten because the tag is immutable.", 1, transport.IMMUTABLE),
        ("name unknown: The repository with name 'us/x' does not exist in the registry", 1, transport.UNKNOWN_NAME),
        ("denied: quota exceeded", 1, transport.FULL),
        ("denied: adding 1.2 GiB of storage resource will exceed the upper limit of 1.0 GiB.", 1, transport.FULL),
        ("received unexpected HTTP status: 413 Request Entity Too Large", 1, transport.FULL),
        ("unknown: received unexpected HTTP status: 507 Insufficient Storage", 1, transport.FULL),
        ("write /var/lib/docker/tmp/x: no space left on device", 1, transport.FULL),
    ],
)
def test_a_transfer_is_retried_if_that_can_help_and_says_what_to_do(
    error: str, tries: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "WAIT_SECONDS", 0)
    tried = []

    def transfer() -> None:
        tried.append(error)
        with Progress().step("push") as step:
            fail(error, step)

    with pytest.raises(TransferFailed) as failed:
        transfers.retried(transfer, Progress())
    assert len(tried) == tries
    assert failed.value.hint.startswith(hint)


def test_a_pull_that_fills_the_engine_s_disk_is_not_the_registry_s_fault() -> None:
    event = {"error": "failed to register layer: write /x: no space left on device"}
    with pytest.raises(DiskFull, match="the engine's disk is full: failed to register layer: write /x: no space left"):
        follow([event], Step("pull"), pushing=False)


# --- what the engine reports of a transfer ---------------------------------------------------------------------------

BEGUN = {"status": "Downloading", "id": "a", "progressDetail": {"current": 1e6, "total": 2e6}}


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
        follow(broken, step, pushing=False)
    assert error.value.reason == message
    assert error.value.passing
    assert error.value.hint.startswith("the same command continues where it stopped")
    assert step.detail == "1 of 2 MB, as far as is known"


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ("pull access denied for x, repository does not exist", "docker login as a user with access"),
        ("Get http://h/v2/: dial tcp h:80: connect: connection refused", "does the engine reach that registry"),
        ("manifest unknown", "does the engine reach that registry, and does it have the image?"),
    ],
)
def test_a_pull_that_cannot_begin_says_what_to_do(answer: str, hint: str) -> None:
    with pytest.raises(TransferFailed) as error, transfers.beginning():
        raise docker.errors.APIError("500 Server Error", explanation=answer)
    assert (error.value.reason, error.value.passing) == (answer, False)
    assert error.value.hint.startswith(hint)
