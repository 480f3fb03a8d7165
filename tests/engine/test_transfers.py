"""How a push changes the engine's names, what the engine reports of transfers, and which failed ones are retried."""

from collections.abc import Iterator
from typing import Any

import docker
import pytest
import urllib3

from tests.pipeline.memory_engine import holding
from tfbuild.cli import publishing
from tfbuild.engine import transfer as transfers
from tfbuild.engine.transfer import TransferFailed, follow
from tfbuild.errors import DiskFull, EngineMissing
from tfbuild.oci import refusals
from tfbuild.publish import pushing
from tfbuild.util.progress import Progress, Step


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ({"mine": "A"}, {"mine": "A"}),
        ({"mine": "A", "other": "B"}, {"mine": "A", "other": "B"}),
        # Left over by a push that was killed.
        ({"mine": "A", "arriving": "A"}, {"mine": "A"}),
        # An image without any other name.
        ({"arriving": "A"}, {"arriving": "A"}),
    ],
)
def test_a_push_removes_its_own_name_but_not_the_image(
    names: dict[str, str], left: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(ref: str, _: Progress) -> None:
        assert engine.image(ref).id == "A"
        raise TransferFailed("EOF")

    engine = holding({f"{name}:1": image for name, image in names.items()})
    monkeypatch.setattr(engine, "push", push)
    with pytest.raises(TransferFailed):
        pushing._transfer(engine, "A", "arriving:1", Progress())
    assert {name[:-2]: image["Id"] for image in engine.images.rows for name in image["RepoTags"]} == left


def attempts(error: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a transfer with this error is tried."""
    monkeypatch.setattr(transfers, "WAIT_SECONDS", 0)
    errors = []

    def transfer() -> None:
        errors.append(error)
        with Progress().step("push") as step:
            fail(error, step)

    with pytest.raises(TransferFailed):
        transfers.again(transfer, Progress())
    return len(errors)


def fail(error: str, step: Step) -> None:
    follow([{"status": "Preparing"}, {"error": error}], step, pushing=True)


@pytest.mark.parametrize(
    ("error", "count"),
    [
        ("toomanyrequests: retry-after: 1ms, allowed: 44000/minute", 3),
        ("received unexpected HTTP status: 429 Too Many Requests", 3),
        ("toomanyrequests: Quota exceeded for requests per minute per project", 3),
        ("EOF", 3),
        ("no basic auth credentials", 1),
        ("denied: requested access to the resource is denied", 1),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", 1),
        ('Get "https://r.example:5000/v2/": http: server gave HTTP response to HTTPS client', 1),
        ("write /var/lib/docker/tmp/x: no space left on device", 1),
        ("tag invalid: The image tag 'x' already exists and cannot be overwritten because the tag is immutable.", 1),
        ("name unknown: The repository with name 'us/x' does not exist in the registry with id '1'", 1),
        ("unauthorized: authentication required", 1),
        ("denied: adding 1.2 GiB of storage resource will exceed the configured upper limit of 1.0 GiB.", 1),
        ("unknown: received unexpected HTTP status: 507 Insufficient Storage", 1),
    ],
)
def test_a_transfer_is_retried_if_that_can_help(error: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts(error, monkeypatch) == count


@pytest.mark.parametrize(
    "error",
    [
        "denied: quota exceeded",
        "denied: adding 1.2 GiB of storage resource will exceed the configured upper limit of 1.0 GiB.",
        "received unexpected HTTP status: 413 Request Entity Too Large",
        "received unexpected HTTP status: 507 Insufficient Storage",
    ],
)
def test_a_full_registry_is_not_mistaken_for_a_missing_login(error: str) -> None:
    assert TransferFailed(error).hint == refusals.FULL
    denied = "denied: requested access to the resource is denied"
    assert TransferFailed(denied).hint != refusals.FULL


def test_whose_disk_is_full_depends_on_the_direction() -> None:
    event = {"error": "failed to register layer: write /x: no space left on device"}
    with pytest.raises(TransferFailed) as failed:
        follow([event], Step("push"), pushing=True)
    assert failed.value.hint == refusals.FULL
    with pytest.raises(DiskFull, match="the engine's disk is full: failed to register layer: write /x: no space left"):
        follow([event], Step("pull"), pushing=False)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("tag invalid: The image tag 'x' cannot be overwritten because the repository is immutable.", "moving ones"),
        ("unknown: Failed to process request due to 'us/x:1' configured as immutable.", "moving ones"),
        ('name unknown: Repository "x" not found', "check that the repository exists"),
    ],
)
def test_a_permanent_failure_says_what_to_do(error: str, hint: str) -> None:
    failed = TransferFailed(error)
    assert not failed.passing
    assert hint in failed.hint


def test_a_login_that_expires_during_a_transfer_is_retried() -> None:
    """The engine then gets a new token. A login that was never valid is not retried."""
    moved: dict[str, Any] = {"status": "Pushing", "id": "a", "progressDetail": {"current": 1, "total": 2}}
    error: dict[str, Any] = {"error": "unauthorized: authentication required"}
    for events, passing in (([moved, error], True), ([error], False)):
        with pytest.raises(TransferFailed) as failed, Progress().step("push") as step:
            follow(events, step, pushing=True)
        assert failed.value.passing == passing
        assert failed.value.hint == "docker login"


def test_the_message_of_a_failed_transfer_has_no_control_characters() -> None:
    with pytest.raises(TransferFailed) as failed, Progress().step("pull") as step:
        fail("denied: \x1b[31mred\x07", step)
    assert failed.value.reason == "denied: [31mred"


def test_a_pull_to_another_machine_uses_the_cpu_of_that_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    options = {
        "engine": "",
        "registry": "127.0.0.1:1/us/x",
        "ca_cert": "",
        "release": "",
        "target": "mkl",
        "python": "",
        "cpuinfo": "",
        "signed": "",
    }
    with pytest.raises(EngineMissing):
        publishing.pull(**options, dry_run=True, json=True)


# --- what the engine reports of a transfer ---------------------------------------------------------------------------

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
        follow(broken, step, pushing=False)
    assert error.value.reason == message
    assert error.value.passing
    assert error.value.hint.startswith("the same command continues where it stopped")
    assert step.share == 0.5


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
    with pytest.raises(TransferFailed) as error, transfers.beginning():
        raise docker.errors.APIError("500 Server Error", explanation=answer)
    assert (error.value.reason, error.value.passing) == (answer, passing)
    assert error.value.hint.startswith(hint)
