"""The same answers of each verb by a registry that has the referrers API and by one that has not.

Images are pushed with SBOM, provenance and signature, pulled, verified, listed, yanked and altered.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.with_engine import registry as registries
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, cpuinfo, made
from tests.with_engine.test_supply import UNLOGGED, UNLOGGED_CHECK, cosign
from tfbuild.engine import Engine
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.publish import attachments, pushing, signing
from tfbuild.util.progress import Progress

__all__ = ["cosign", "made"]  # fixtures
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
BEST, SECOND = build("x86-64-v4"), build("x86-64-v3")
# What cosign 2 attaches.
SIGNATURE = "application/vnd.dev.cosign.artifact.sig.v1+json"
SECONDS = re.compile(r" \([\d.]+ s\)")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def without_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with registries.serve(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def with_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = registries.with_referrers(tmp_path_factory.mktemp("go"))
    with registries.serve(tmp_path_factory.mktemp("registry"), program) as server:
        yield server


class Trial:
    """One registry, and what each command on it answered: its exit code, its output and its messages.

    Without the registry's address and the seconds that a step took, which differ each time.
    """

    def __init__(self, server: Server, invoke: Run, folder: Path) -> None:
        self.place = server.place()
        self.answers: list[tuple[str, int, Any, str]] = []
        self._invoke, self._cpuinfo = invoke, f"--cpuinfo={folder / 'cpuinfo'}"
        # `images` lists the registry alone where no engine answers.
        self._no_engine = {**os.environ, "DOCKER_HOST": f"unix://{folder}/none.sock"}

    def run(self, verb: str, *words: str, code: int = 0) -> Any:
        """The command's JSON."""
        host = {"pull": (self._cpuinfo,), "images": ()}.get(verb, ())
        options = {"env": self._no_engine} if verb == "images" else {}
        place = f"--registry={self.place.repository}"
        done = self._invoke(verb, *words, place, *host, "--json", code=code, **options)
        document = json.loads(done.stdout.replace(self.place.repository.host, "HOST") or "null")
        said = SECONDS.sub("", done.stderr.replace(self.place.repository.host, "HOST"))
        self.answers.append((" ".join((verb, *words)), code, document, said))
        return document

    def attached(self, name: str) -> list[str]:
        return sorted(referrers.types(referrers.listed(Registry(self.place.repository), self.place.digest(name))))


def push(trial: Trial, engine: Engine, images: list[str], reports: Path, options: str) -> list[str]:
    sign = signing.signer(options, trial.place.ca)
    arrive = partial(pushing.push, engine, force=False, progress=Progress(), sign=sign)
    return [arrive(image, trial.place, reports).digest for image in images]


def detach(place: Registry, name: str, kind: str) -> None:
    """As somebody does who may delete: the document of this kind is attached no more."""
    digest = place.digest(name)
    (row,) = [row for row in referrers.listed(place, digest) if row["artifactType"] == kind]
    if place.referrers(digest) is None:
        rows = [other for other in referrers.listed(place, digest) if other != row]
        index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": rows}
        place.put(referrers.fallback_tag(digest), json.dumps(index).encode(), manifests.INDEX)
    else:
        assert requests.delete(f"{place.repository.url}manifests/{row['digest']}", timeout=10).ok


def ends_of(trial: Trial, engine: Engine, keys: Path) -> None:
    """Pull, verify, list, yank and alter what was pushed."""
    ours, theirs = (f"--key {shlex.quote(str(keys / f'{name}.pub'))}" for name in ("ours", "theirs"))
    look = f"{UNLOGGED_CHECK} --experimental-oci11=true"
    signed = ("--signed", f"{ours} {look}")
    assert trial.run("pull", "--dry-run", *signed)["signed"]
    trial.run("pull", "--dry-run", "--signed", f"{theirs} {look}", code=24)
    engine.remove(trial.run("pull")["image"].replace("HOST", trial.place.repository.host))
    for name in (BEST.id, SECOND.id):
        assert trial.run("verify", name, *signed)["described"]
    assert [(row["offered"], row["signature_attached"]) for row in trial.run("images")] == [(True, True)] * 2

    trial.run("yank", BEST.id, "--reason", "crashes in MatMul")
    assert trial.run("pull", "--dry-run")["id"] == SECOND.id
    trial.run("verify", BEST.id, code=32)
    rows = {row["id"]: row["yanked"] for row in trial.run("images")}
    assert rows == {BEST.id: "crashes in MatMul", SECOND.id: None}
    trial.run("yank", BEST.id, "--undo")
    assert trial.run("pull", "--dry-run")["id"] == BEST.id
    assert trial.attached(BEST.id) == sorted((*referrers.NEEDED, SIGNATURE, attachments.YANK))

    detach(trial.place, BEST.id, referrers.SBOM)
    assert trial.run("pull", "--dry-run", code=24)["second_choice"] == SECOND.id
    trial.run("verify", BEST.id, code=24)
    assert any(row["altered"] for row in trial.run("images"))
    detach(trial.place, SECOND.id, referrers.PROVENANCE)
    assert trial.run("pull", "--dry-run", code=24)["second_choice"] is None


def test_a_registry_with_the_referrers_api_gives_the_answers_of_one_without(
    with_api: Server,
    without_api: Server,
    engine: Engine,
    made: Callable[..., str],
    cosign: Path,
    invoke: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COSIGN_EXPERIMENTAL", "1")
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    images = [made(one) for one in (BEST, SECOND)]
    sign = f"--key {shlex.quote(str(cosign / 'ours.key'))} {UNLOGGED} --registry-referrers-mode=oci-1-1"
    trials = [Trial(server, invoke, tmp_path) for server in (with_api, without_api)]
    digests = [push(trial, engine, images, tmp_path / "reports", sign) for trial in trials]
    assert digests[0] == digests[1]
    for image in images:
        engine.remove(image)

    modern, old = (trial.place for trial in trials)
    for digest in digests[0]:
        listed = Registry(modern.repository).referrers(digest)
        assert listed is not None
        assert len(listed) == 3
        assert Registry(old.repository).referrers(digest) is None
        assert old.digest(referrers.fallback_tag(digest))
        # It does not say that it takes subjects (no OCI-Subject), so that clients must write the tag as well.
        modern.discard(referrers.fallback_tag(digest))
        assert not modern.digest(referrers.fallback_tag(digest))
    for trial in trials:
        ends_of(trial, engine, cosign)
    assert trials[0].answers == trials[1].answers
    assert len(trials[0].answers) == 16
