"""Pushes, yanks and pulls at once, some of them killed, through a network that fails at random; the registry is real.

A run prints its seed. TFBUILD_SOAK_MINUTES (default: 60) and TFBUILD_SOAK_SEED set both.
"""

import json
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry
from tests.publish.fake_images import labels_of_plan
from tests.publish.test_push import Host, push, verified
from tests.servers import serving
from tests.with_engine import registry as registries
from tfbuild import cpu
from tfbuild.errors import TfbuildError
from tfbuild.oci import client, manifests, transport
from tfbuild.oci.client import Registry
from tfbuild.oci.references import Repository
from tfbuild.publish import indexes, pulling, pushing
from tfbuild.util.progress import Progress

RELEASES, SETS = ("2.20.0", "2.21.0"), ("avx", "x86-64-v3", "x86-64-v4")
VERBS = {"push": 10, "pull": 10, "yank": 2, "offer again": 2}
# What becomes of a request before the registry has it, and of an answer.
EARLY = ("503", "429", "500", "reset", "silence", "trickle")
LATE = ("lost", "cut", "flipped")


class Killed(BaseException):
    """The process ended here."""


class Network(registries.Between):
    """Hands requests on; `share` of them meet a fault. The client waits for a second."""

    chance, share, met, fault = random.Random(), 0.0, Counter[str](), ""

    def do_GET(self) -> None:
        self.fault = self.chance.choice(EARLY + LATE) if self.chance.random() < self.share else ""
        self.met[self.fault] += 1
        if self.fault not in EARLY:
            super().do_GET()
            return
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault, self.fault = self.fault, ""
        if fault.isdigit():
            self.say(int(fault), b"<p>trouble", {"Retry-After": self.chance.choice(("", "0", "-1", "soon"))})
        elif fault == "trickle":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(15 * (fault in ("silence", "trickle"))):
            time.sleep(0.1)
            self.wfile.write(b"x" * (fault == "trickle"))
        self.close_connection = True

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET

    def say(self, status: int, content: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.close_connection = bool(self.fault)
        if self.fault == "lost":
            return
        if self.fault and content:
            place = self.chance.randrange(len(content))
            headers = {"Content-Length": str(len(content)), **headers}
            rest = bytes([content[place] ^ 1]) + content[place + 1 :] if self.fault == "flipped" else b""
            content = content[:place] + rest
        super().say(status, content, headers)


class Uploading(Host):
    """An engine with one image, which it uploads by the client."""

    place: Registry

    def push(self, ref: str, progress: Progress) -> None:
        config = {"digest": self.place.upload(self.config), "size": len(self.config)}
        document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": config, "layers": []}
        self.place.put(self.identifier, json.dumps(document).encode(), manifests.IMAGES[0])


def run(verb: str, number: int, place: Registry, direct: Registry, folder: Path) -> str:
    """Run a verb with choices of its own, in which it may be killed before any request; return how it ended."""
    chance = random.Random(number)
    left, request = chance.choice((chance.randrange(60), 10**6)), place._request

    def counted(*words: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return request(*words, **more)

    place._request = counted
    build = {"io.tfbuild.version": str(chance.randrange(3))}
    engine = Uploading(FakeRegistry, labels_of_plan(chance.choice(RELEASES), chance.choice(SETS)) | build)
    engine.place = place
    try:
        if verb == "push":
            (folder / str(number)).mkdir()
            verified(engine, folder / str(number))
            push(engine, folder / str(number), registry=place, force=True)
        elif verb == "yank":
            pushing.yank(place, engine.identifier, "crashes", str)
        elif verb == "offer again" and (digest := direct.digest(indexes.yank_tag(engine.identifier))):
            direct._request("DELETE", f"manifests/{digest}", accept=(404,))
        elif verb == "pull":
            release, host = chance.choice(("", "2.20", "2.21.0")), cpu.parse(machine("rocky9-zen5").cpuinfo())
            choice = pulling.choose_image(place, host, release=release, target="mkl", python="")
            image, manifest, _ = pulling.accept(place, choice)
            assert manifest == direct.manifest(image.digest)
            found = indexes.of_config(direct.config(manifest), image.digest)
            assert found is not None
            assert (found.release.startswith(release), found.labels) == (True, image.labels)
    except (Killed, TfbuildError) as error:
        return type(error).__name__
    return "done"


def check(direct: Registry) -> None:
    """Nothing half pushed is offered; after one more computation, the indexes are what the tags say."""
    tags = direct.tags()
    for release in RELEASES:
        for name in indexes.index_tags(release, "mkl"):
            every = indexes.read_index(direct.manifest(name))
            assert [image for image in every if not client.complete(direct, image.digest)] == []
        offerable = {tag for tag in tags if tag.startswith(f"{release}-mkl-") and f"{tag}.yanked" not in tags}
        digests = {tag: direct.digest(tag) for tag in offerable if not tag.endswith(".yanked")}
        whole = {tag: digest for tag, digest in digests.items() if client.complete(direct, digest)}
        indexes.update(direct, release, "mkl", str)
        offered = indexes.read_index(direct.manifest(f"{release}-mkl"))
        assert {image.id: image.digest for image in offered} == whole


@pytest.mark.nightly
def test_a_network_that_fails_at_random_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = float(os.environ.get("TFBUILD_SOAK_MINUTES", "60"))
    seed = int(os.environ.get("TFBUILD_SOAK_SEED", random.randrange(1 << 30)))
    print(f"TFBUILD_SOAK_SEED={seed}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name, value in {"SECONDS": 1.0, "PATIENCE": 5.0, "BACKOFF": 0.02, "MOST_WAIT": 1}.items():
        monkeypatch.setattr(transport, name, value)
    chance, ends, took = random.Random(seed), Counter[str](), [0.0]
    monkeypatch.setattr(Network, "chance", random.Random(seed))
    with registries.serve(tmp_path) as server, serving(Network) as host, ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(Network, "origin", f"http://127.0.0.1:{server.port}")

        def one(verb: str, number: int) -> None:
            begun = time.monotonic()
            ended = run(verb, number, Registry(Repository.parse(f"{host}/us/tensorflow")), server.place(), tmp_path)
            # Only content that was changed is said to be wrong.
            assert ended not in ("VerificationFailed", "WrongDigest") or Network.met["flipped"]
            ends[f"{verb}: {ended}"] += 1
            took.append(time.monotonic() - begun)

        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            monkeypatch.setattr(Network, "share", chance.choice((0.0, 0.02, 0.1)))
            verbs = chance.choices([*VERBS], [*VERBS.values()], k=60)
            list(pool.map(one, verbs, [chance.randrange(1 << 62) for _ in verbs]))
            monkeypatch.setattr(Network, "share", 0.0)
            check(server.place())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{len(took)} verbs, {max(took):.0f} s the slowest, {peak} MiB at most")
    print(ends, Network.met)
    assert max(took) < 120, "a verb has some fifty requests, each with a limit"
