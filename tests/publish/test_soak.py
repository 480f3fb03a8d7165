"""What the soak of pulls notices, and that no fault of it alone makes a pull choose wrongly."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.publish import soak
from tests.publish.soak import FAULTS, Fault, Findings, Place
from tests.rows import each
from tfbuild.oci import transport


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(transport, "TRIES", 0)
    place, server = soak.serve(tmp_path, "7")
    yield place
    server.shutdown()
    server.server_close()


@each("name", [name for name, fault in FAULTS.items() if not fault.slow])
def test_no_fault_alone_makes_a_pull_choose_wrongly(name: str, place: Place) -> None:
    """By turns with right answers, so that it strikes at any point of a pull."""
    findings = Findings()
    place.liar.faults = {"nothing": FAULTS["nothing"], name: Fault(answer=FAULTS[name].answer, weight=110)}
    for _ in range(4):
        findings.check(name, place, *soak.in_process(place)[:2], 0)
    assert findings.found == []


@pytest.mark.parametrize(
    ("code", "digest", "seconds", "output", "finding"),
    [
        (0, "sha256:0", 1, "", "chooses sha256:0"),
        (0, "too large", 1, "", "chooses too large"),
        (1, "", 1, "", "ends with 1"),
        (26, "", 601, "", "takes 601 s"),
        (26, "", 1, "Traceback (most recent call last):", "has a traceback"),
        (26, "", 1, "this CPU lacks avx\udc9b31m", "prints bytes for a terminal"),
    ],
)
def test_a_wrong_end_is_found(code: int, digest: str, seconds: float, output: str, finding: str, place: Place) -> None:
    findings = Findings()
    truth = dataclasses.replace(place, truth={**place.truth, "too large": "x86-64-v4"})
    findings.check("pull", truth, code, digest, seconds, output)
    assert findings.found == [f"pull {finding}"]


def test_an_honest_registry_must_give_the_best_image(place: Place) -> None:
    findings = Findings()
    place.liar.honest = True
    for way in soak.WAYS.values():
        findings.check("pull", place, *way(place)[:2], 1)
    assert findings.found == []
    findings.check("pull", place, 26, "", 1)
    assert findings.found == ["pull has no best image from an honest registry, but 26"]
