"""Uploads that a registry loses are sent again, a few times, and then are an error."""

import json

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tfbuild.errors import RegistryRefused
from tfbuild.oci import client
from tfbuild.oci.manifests import INDEX

CONTENT = json.dumps({"schemaVersion": 2, "manifests": []}).encode()


@pytest.fixture
def losing(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of what the registry answers to the next uploads, which it then has not."""
    answers: list[int] = []
    put = fake.do_PUT

    def lose(self: FakeRegistry) -> None:
        if not answers:
            return put(self)
        self.requests.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers["Content-Length"]))
        return self.answer(answers.pop(0), "application/json", b"{}")

    monkeypatch.setattr(fake, "do_PUT", lose)
    return answers


def uploads(fake: type[FakeRegistry]) -> int:
    return sum(request.startswith("PUT ") for request in fake.requests)


@pytest.mark.parametrize("answers", [[], [404], [400, 404], [400] * 4])
def test_what_was_lost_is_sent_again(answers: list[int], losing: list[int], fake: type[FakeRegistry]) -> None:
    losing[:] = answers
    connect(fake).put("x", CONTENT, INDEX)
    assert fake.content["manifests/x"] == (INDEX, CONTENT)
    losing[:] = answers
    digest = connect(fake).upload(b"blob")
    assert fake.content[f"blobs/{digest}"][1] == b"blob"
    assert uploads(fake) == 2 * (len(answers) + 1)


def test_before_it_is_sent_again_there_is_a_pause(
    losing: list[int], fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that push at once would else lose to each other again."""
    pauses: list[int] = []
    monkeypatch.setattr(client, "_pause", lambda: pauses.append(uploads(fake)))
    losing[:] = [404, 400]
    connect(fake).put("x", CONTENT, INDEX)
    assert pauses == [1, 2]


def test_after_five_times_it_is_an_error(losing: list[int], fake: type[FakeRegistry]) -> None:
    assert client.UPLOADS == 5
    losing[:] = [404] * 5
    with pytest.raises(RegistryRefused, match="answers 404"):
        connect(fake).put("x", CONTENT, INDEX)
    assert (losing, uploads(fake)) == ([], 5)
    losing[:] = [404] * 5
    with pytest.raises(RegistryRefused, match="keeps losing an upload"):
        connect(fake).upload(b"blob")
    assert (losing, uploads(fake)) == ([], 10)
    losing[:] = [400] * 5
    with pytest.raises(RegistryRefused, match="answers 400"):
        connect(fake).upload(b"blob")


def test_a_blob_that_is_there_is_not_sent(losing: list[int], fake: type[FakeRegistry]) -> None:
    registry = connect(fake)
    registry.upload(b"blob")
    registry.upload(b"blob")
    assert uploads(fake) == 1
