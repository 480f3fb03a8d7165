"""Registries that break off, hang or are in trouble: one message, in bounded time, and the next request goes well."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from tests import broken
from tests.commandline import executable
from tests.oci.fake_registry import FakeRegistry
from tests.oci.fake_registry import fake as fake
from tfbuild.errors import RegistryRefused
from tfbuild.oci import transport
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import INDEX, Malformed
from tfbuild.oci.references import Repository

INDEX_OF_NOTHING = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
PATH = "/v2/us/x/manifests/t"
MOST_WAIT = transport.MOST_WAIT


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(transport, "SECONDS", 0.5)
    monkeypatch.setattr(transport, "TRIES", 1)
    monkeypatch.setattr(transport, "MOST_WAIT", 0)


def registry(port: int) -> Registry:
    return Registry(Repository.parse(f"127.0.0.1:{port}/us/x"))


@pytest.mark.parametrize("fault", broken.FAULTS)
def test_a_broken_answer_is_told_by_its_cause_and_asked_for_again(fault: str) -> None:
    with broken.serve({PATH: INDEX_OF_NOTHING}) as server:
        server.fault = fault
        there, begun = registry(server.port), time.monotonic()
        with pytest.raises(RegistryRefused, match=fault.strip(",") if fault[0].isdigit() else "127.0.0.1") as refusal:
            there.manifest("t")
        assert "\n" not in refusal.value.reason
        assert time.monotonic() - begun < 30
        server.fault = ""
        manifest = there.manifest("t")
    assert manifest is not None
    assert manifest.content == INDEX_OF_NOTHING


@pytest.mark.parametrize("place", ["token server", "proxy", "helper"])
def test_whatever_answers_by_drops_before_a_registry_does_is_given_up(
    place: str, fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PATIENCE", 0.0)
    monkeypatch.setattr(transport, "HELPER_SECONDS", 0.5)
    with broken.serve({}) as server:
        server.fault, fake.needs, fake.realm = "trickle", "Bearer x", f"{server.url}/token"
        host = fake.host
        if place == "proxy":
            monkeypatch.delenv("NO_PROXY")
            monkeypatch.setenv("HTTPS_PROXY", server.url)
            host = "registry.invalid"
        elif place == "helper":
            executable(tmp_path / "docker-credential-slow", "exec sleep 5")
            monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
            (tmp_path / "config.json").write_text('{"credsStore": "slow"}')
        begun = time.monotonic()
        with pytest.raises(RegistryRefused, match="no answer in time"):
            Registry(Repository.parse(f"{host}/us/x")).manifest("t")
        assert time.monotonic() - begun < 10


def test_each_wait_is_about_twice_as_long_as_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(transport, "TRIES", 4)
    monkeypatch.setattr(transport, "BACKOFF", 1.0)
    monkeypatch.setattr(time, "sleep", waited.append)
    with broken.serve({}) as server:
        server.fault = "503,"
        with pytest.raises(RegistryRefused, match="answers 503"):
            registry(server.port).manifest("t")
    assert [2**turn / 2 <= seconds <= 2**turn for turn, seconds in enumerate(waited)] == [True] * 4


def test_a_registry_that_wants_an_hour_of_patience_gets_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(transport, "MOST_WAIT", MOST_WAIT)
    monkeypatch.setattr(time, "sleep", waited.append)
    with broken.serve({}) as server:
        server.fault = "429,"
        with pytest.raises(RegistryRefused, match="answers 429"):
            registry(server.port).manifest("t")
    assert waited == [60]


def test_a_body_may_have_as_much_as_is_read(fake: type[FakeRegistry]) -> None:
    fake.content["x"] = ("text/plain", b"abc")
    address: str = f"http://{fake.host}/v2/us/x/x"
    with requests.get(address, stream=True, timeout=60) as answer:
        assert b"".join(transport.chunks(answer, 3)) == b"abc"
    with requests.get(address, stream=True, timeout=60) as answer, pytest.raises(Malformed, match="more than 2 bytes"):
        list(transport.chunks(answer, 2))


@pytest.mark.parametrize(
    "given_up",
    [
        "transport.within(0.1, lambda: time.sleep(600))",
        # After Ctrl-C.
        "signal.setitimer(signal.ITIMER_REAL, 0.1); transport.parallel(lambda _: time.sleep(600), [1, 2])",
    ],
)
def test_a_command_that_has_given_up_ends_though_something_hangs(given_up: str) -> None:
    script = (
        "import contextlib, signal, time; from tfbuild.oci import transport\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        f"with contextlib.suppress(OSError, KeyboardInterrupt): {given_up}"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
