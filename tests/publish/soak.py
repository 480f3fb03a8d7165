"""Pulls from registries that drip, drop and lie at random, from a seed.

    python -m tests.publish.soak --minutes 60 --pulls 50 --seed 7

Each of the pulls that go on at once has a registry of its own on loopback, whose faults follow from the seed and its
number. They choose and check as `invoke pull --dry-run` does: most of them call it in this process, some run the
command, and some run pull.sh. No layer is downloaded, which is the engine's part.

None may choose an image that the registry does not have under that name or that the host does not run, end in a
traceback or in a code that no fault explains, or go on for ever. When a registry tells the truth again, the next pull
gets the best image. Exits with 1 if anything else was seen. `--record` writes the figures to
benchmarks/results/pulls.json.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

from benchmarks.harness import record
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.publish.fake_images import gather, image
from tfbuild import cpu
from tfbuild.errors import NothingFits, RegistryRefused, TfbuildError, VerificationFailed
from tfbuild.oci.manifests import digest_of
from tfbuild.publish import pulling

ROOT = Path(__file__).parents[2]
MACHINE = "ubuntu20.04-zen3"
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
FITTING = LEVELS[:2]
# No pull takes longer: a request that fails is repeated for 50 seconds, and there are two images of each release.
SECONDS = 600.0
# How long a registry drips or is silent, which is longer than anybody should wait for it.
PATIENCE = 40.0
EXPLAINED = {0} | {error.exit_code for error in (NothingFits, RegistryRefused, VerificationFailed)}


class Liar(FakeRegistry):
    """A registry whose answers have faults by chance. `honest`: whether it tells the truth."""

    chance = random.Random()
    lock = threading.Lock()
    faults: Mapping[str, "Fault"] = {}
    honest = False
    forgery = (b"", b"")

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a client that gave up
            super().handle()

    def answer(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        with self.lock:
            weights = [fault.weight for fault in self.faults.values()]
            (name,) = self.chance.choices([*self.faults], weights) if not self.honest else ("nothing",)
            number = self.chance.randrange(1 << 30)
        with suppress(OSError):
            FAULTS[name].answer(self, number, status, kind, body, headers)

    def tell(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        """Answer as it is."""
        super().answer(status, kind, body, **headers)

    def drop(self) -> None:
        self.close_connection = True

    def head(self, status: int, kind: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = {"Content-Type": kind, "Content-Length": str(len(body)), **headers}
        return "\r\n".join(
            [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in lines.items()), "", ""]
        ).encode()

    def drip(self, content: bytes, pause: float) -> None:
        """Send byte by byte, until it is all sent or everybody should have gone."""
        ends = time.monotonic() + PATIENCE
        for number in range(len(content)):
            if time.monotonic() > ends:
                break
            self.wfile.write(content[number : number + 1])
            time.sleep(pause)
        self.drop()


Answer = Callable[[Liar, int, int, str, bytes, dict[str, str]], None]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`answer`: what is sent in place of an answer, by a number of chance; `slow`: whether it takes PATIENCE."""

    answer: Answer
    weight: int = 2
    slow: bool = False


def nothing(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    liar.tell(status, kind, body, **headers)


def drop(liar: Liar, number: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    """Break off anywhere: before the head, in it, or in the body."""
    content = liar.head(status, kind, body, headers) + body
    liar.wfile.write(content[: number % len(content)])
    liar.drop()


def drip_head(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    liar.drip(liar.head(status, kind, body, headers), 1)


def drip_body(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    liar.wfile.write(liar.head(status, kind, body, headers))
    liar.drip(body, 1)


def silence(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    time.sleep(PATIENCE)
    liar.drop()


def refuse(status: int, **more: str) -> Answer:
    def answer(liar: Liar, _: int, __: int, ___: str, ____: bytes, _____: dict[str, str]) -> None:
        liar.tell(status, "application/json", b'{"errors": [{"message": "trouble"}]}', **more)

    return answer


def instead(content: bytes, kind: str = "") -> Answer:
    """Other content with status 200."""

    def answer(liar: Liar, _: int, __: int, own: str, ___: bytes, ____: dict[str, str]) -> None:
        liar.tell(200, kind or own, content)

    return answer


def garble(liar: Liar, number: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    """One byte is another; half of the time the registry vouches for it."""
    at = number % max(1, len(body))
    changed = body[:at] + bytes([number % 256]) + body[at + 1 :]
    liar.tell(status, kind, changed, **vouch(headers, changed, number))


def cut(liar: Liar, number: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    short = body[: number % max(1, len(body))]
    liar.tell(status, kind, short, **vouch(headers, short, number))


def another(liar: Liar, number: int, status: int, _: str, __: bytes, headers: dict[str, str]) -> None:
    """The content of another name."""
    kind, body = [*liar.content.values()][number % len(liar.content)]
    liar.tell(200, kind, body, **vouch(headers, body, 0))


def forge(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    """Another image with the same labels in the place of the best one, with the best one's attestations."""
    forged = body.replace(*liar.forgery)
    liar.tell(status, kind, forged, **vouch(headers, forged, 0))


def lighten(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    """Fewer features, so that more hosts seem to run the image."""
    less = body.replace(b" avx512vl", b"").replace(b" avx2", b"")
    liar.tell(status, kind, less, **vouch(headers, less, 0))


def compress(liar: Liar, _: int, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
    liar.tell(status, kind, gzip.compress(body), **headers, **{"Content-Encoding": "gzip"})


def mistype(liar: Liar, _: int, status: int, __: str, body: bytes, headers: dict[str, str]) -> None:
    liar.tell(status, "text/plain", body, **headers)


def vouch(headers: dict[str, str], body: bytes, number: int) -> dict[str, str]:
    """Return the headers with the digest of this body for an even number, else with that of the true one."""
    known = "Docker-Content-Digest" in headers and number % 2 == 0
    return {**headers, "Docker-Content-Digest": digest_of(body)} if known else headers


FAULTS = {
    "nothing": Fault(answer=nothing, weight=220),
    "drop": Fault(answer=drop, weight=6),
    "drip the head": Fault(answer=drip_head, weight=1, slow=True),
    "drip the body": Fault(answer=drip_body, weight=1, slow=True),
    "silence": Fault(answer=silence, weight=1, slow=True),
    "404": Fault(answer=refuse(404)),
    "403": Fault(answer=refuse(403)),
    "429": Fault(answer=refuse(429, **{"Retry-After": "1"})),
    "503": Fault(answer=refuse(503)),
    "empty": Fault(answer=instead(b"")),
    "page": Fault(answer=instead(b"<html>Log in</html>", "text/html")),
    "null": Fault(answer=instead(b"null")),
    "deep": Fault(answer=instead(b"[" * 100_000)),
    "garble": Fault(answer=garble, weight=6),
    "cut": Fault(answer=cut),
    "another": Fault(answer=another, weight=6),
    "forge": Fault(answer=forge, weight=4),
    "lighten": Fault(answer=lighten, weight=4),
    "compress": Fault(answer=compress),
    "mistype": Fault(answer=mistype),
}


@dataclass(kw_only=True)
class Place:
    """A registry that lies, what is true of it, and the host that pulls. `best`: the digest of the right choice."""

    liar: type[Liar]
    folder: Path
    truth: Mapping[str, str]
    best: str
    fitting: frozenset[str]

    @property
    def repository(self) -> str:
        return f"{self.liar.host}/us/x"


@dataclass(kw_only=True)
class Findings:
    counts: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    slowest: float = 0

    def check(self, what: str, place: Place, code: int, digest: str, seconds: float, output: str = "") -> None:
        """Compare how a pull ended with what is true."""
        self.counts[f"{what} ends with {code}"] += 1
        self.slowest = max(self.slowest, seconds)
        # pull.sh reads no attestations: an image with the labels of the best one is as good to it (docs/publishing.md).
        taken = {place.liar.forgery[1].decode()} if what == "pull.sh" else set()
        right = {*taken, *(own for own, level in place.truth.items() if level in place.fitting)}
        for reason in (
            f"chooses {digest}" if code == 0 and digest not in right else "",
            f"ends with {code}" if code not in EXPLAINED else "",
            f"takes {seconds:.0f} s" if seconds > SECONDS else "",
            "has a traceback" if "Traceback" in output else "",
            "prints bytes for a terminal" if not all(map(str.isprintable, output.split("\n"))) else "",
            f"has no best image from an honest registry, but {digest or code}"
            if place.liar.honest and digest != place.best
            else "",
        ):
            if reason:
                self.found.append(f"{what} {reason}")
                print(
                    f"FOUND {what} {reason}\n{output[-3000:].encode('ascii', 'backslashreplace').decode()}", flush=True
                )


def in_process(place: Place) -> tuple[int, str, str]:
    """Pull as the verb does; return exit code, digest and messages."""
    host = cpu.parse((place.folder / "cpuinfo").read_text())
    try:
        registry = connect(place.liar)
        choice = pulling.select(registry, host, release="", target="mkl", python="")
        return 0, pulling.accept(registry, choice).image.digest, ""
    except TfbuildError as error:
        return error.exit_code, "", str(error)
    except Exception:
        return 1, "", traceback.format_exc()


def by_command(place: Place) -> tuple[int, str, str]:
    words = [sys.executable, "-m", "tfbuild", "pull", "--dry-run", "--registry", place.repository]
    return _run([*words, "--cpuinfo", str(place.folder / "cpuinfo")], place)


def by_shell(place: Place) -> tuple[int, str, str]:
    return _run(["sh", str(ROOT / "pull.sh"), place.repository], place)


def _run(words: list[str], place: Place) -> tuple[int, str, str]:
    env = {**os.environ, "DRY_RUN": "1", "TFBUILD_CPUINFO": str(place.folder / "cpuinfo"), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            words, cwd=place.folder, env=env, capture_output=True, text=True, errors="surrogateescape", check=False,
            timeout=2 * SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return 1, "", f"no end after {error.timeout} s"
    return done.returncode, done.stdout.partition("@")[2].partition(" ")[0].strip(), done.stderr


WAYS: Mapping[str, Callable[[Place], tuple[int, str, str]]] = {
    "pull": in_process, "pull as a command": by_command, "pull.sh": by_shell
}  # fmt: skip


def images_of(fake: type[FakeRegistry]) -> dict[str, str]:
    """Put two releases of three images each there, and return their instruction sets by their digests."""
    truth = {}
    for release in ("2.14.1", "2.20.0"):
        for level in LEVELS:
            name = image(fake, release, cpu=level, layers=(b"a layer",))
            fake.content[f"blobs/{digest_of(b'a layer')}"] = ("application/octet-stream", b"a layer")
            gather(fake, name)
            truth[digest_of(fake.content[f"manifests/{name}"][1])] = level
    return truth


def forgery_of(fake: type[FakeRegistry], digest: str) -> tuple[bytes, bytes]:
    """Put another image with the labels and the attestations of one there; return what stands for either in a text."""
    kind, content = fake.content[f"manifests/{digest}"]
    document = json.loads(content)
    config = json.loads(fake.content[f"blobs/{document['config']['digest']}"][1])
    config["config"]["Entrypoint"] = ["/bin/evil"]
    blob = json.dumps(config).encode()
    document["config"]["digest"] = digest_of(blob)
    forged = json.dumps(document).encode()
    fake.content[f"blobs/{digest_of(blob)}"] = ("application/octet-stream", blob)
    fake.content[f"manifests/{digest_of(forged)}"] = (kind, forged)
    fake.content[f"referrers/{digest_of(forged)}"] = fake.content[f"referrers/{digest}"]
    return digest.encode(), digest_of(forged).encode()


def serve(folder: Path, seed: str, faults: Mapping[str, Fault] = FAULTS) -> tuple[Place, ThreadingHTTPServer]:
    """Start a registry with these faults."""
    own: dict[str, object] = {"content": {}, "authorizations": [], "requests": [], "links": {}, "honest": True}
    liar: type[Liar] = type("Here", (Liar,), {**own, "chance": random.Random(seed), "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), liar)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    liar.host = f"127.0.0.1:{server.server_port}"
    (folder / "cpuinfo").write_text(machine(MACHINE).cpuinfo())
    truth = images_of(liar)
    best = next(digest for digest, level in [*truth.items()][::-1] if level in FITTING)
    liar.forgery = forgery_of(liar, best)
    liar.faults, liar.honest = faults, False
    return Place(liar=liar, folder=folder, truth=truth, best=best, fitting=frozenset(FITTING)), server


def pulls(place: Place, way: str, ends: float, findings: Findings) -> None:
    """Pull until the time is over, and once from the registry when it tells the truth again."""
    while time.monotonic() < ends or not place.liar.honest:
        place.liar.honest = time.monotonic() >= ends
        began = time.monotonic()
        code, digest, output = WAYS[way](place)
        findings.check(way, place, code, digest, time.monotonic() - began, output)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--pulls", type=int, default=50)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--record", action="store_true")
    given = options.parse_args()
    print(f"--seed {given.seed}", flush=True)
    findings = Findings()
    os.environ["NO_PROXY"] = "*"
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ThreadPoolExecutor(given.pulls) as pool:
        os.environ["DOCKER_CONFIG"] = folder
        started = [serve(Path(folder), f"{given.seed} {number}") for number in range(given.pulls)]
        ends = time.monotonic() + given.minutes * 60
        # Of ten pulls, one is a command and one is pull.sh: these take more of the machine.
        ways = ("pull as a command", "pull.sh", *["pull"] * 8)
        jobs = [
            pool.submit(pulls, place, ways[number % len(ways)], ends, findings)
            for number, (place, _) in enumerate(started)
        ]
        for job in jobs:
            job.result()
        for _, server in started:
            server.shutdown()
    print(f"{findings.counts.total()} pulls, the slowest in {findings.slowest:.0f} s:")
    print(*(f"{count:7} {what}" for what, count in sorted(findings.counts.items())), sep="\n")
    print(f"{len(findings.found)} findings", *findings.found, sep="\n- ")
    if given.record:
        figures = {
            "seed": given.seed,
            "minutes": given.minutes,
            "at_once": given.pulls,
            "pulls": findings.counts.total(),
            "slowest_seconds": round(findings.slowest),
            "ends": dict(sorted(findings.counts.items())),
            "found": len(findings.found),
        }
        print(record("pulls", figures))
    return bool(findings.found)


if __name__ == "__main__":
    sys.exit(main())
