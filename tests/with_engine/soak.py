"""Random verbs on an engine of its own, with random faults at random times, from a seed.

    python -m tests.with_engine.soak --minutes 60 --seed 7

After each verb the fault is over, and the next command cleans up. Then: no verb ended in a traceback or in a code that
its fault does not explain, or never; nothing of a run is left on the engine or among the temporary files; and each name
on the engine is that of an image that was verified. Exits with 1 if anything else was seen.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.with_engine import registry
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tests.with_engine.victim import Victim, started
from tfbuild import plan
from tfbuild.engine.containers import LABEL
from tfbuild.errors import (
    DiskFull,
    EngineMissing,
    Interrupted,
    NothingFits,
    RegistryRefused,
    TfbuildError,
    Unfinished,
    UnknownImage,
    Yanked,
)  # fmt: skip
from tfbuild.plan import Request

RELEASE, PYTHON = "2.21.0", "3.11"
TARGETS = ("cpu", "mkl")
IDS = tuple(
    plan.select(Request(target=target, wheel="official", release=RELEASE, python=PYTHON), None).id for target in TARGETS
)
# No verb takes longer here: one that does hangs.
SECONDS = 900.0
Strike = Callable[["Place", "subprocess.Popen[str]"], object]


def codes(*errors: type[TfbuildError]) -> frozenset[int]:
    return frozenset(error.exit_code for error in errors)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A verb: how often it is chosen, and how it may end without any fault, since an image may not be there."""

    words: str
    weight: int = 2
    ends: frozenset[int] = frozenset()


ABSENT = codes(UnknownImage)
BUILD = f"build --wheel official --release {RELEASE} --python {PYTHON} --base bootstrap --network host --need-disk 1"
TRIALS = (
    Trial(words=f"{BUILD} --target {{target}}", weight=6),
    Trial(words=f"{BUILD} --target {{target}} --no-verify", weight=2),
    Trial(words="verify {id}", weight=6, ends=ABSENT),
    Trial(words="bench {image} --only allocator --budget 60s", weight=4, ends=ABSENT),
    # An image that was built again may differ, and its tag then moves only with --force.
    Trial(words="push {id} --force", weight=6, ends=ABSENT | codes(Yanked)),
    Trial(words="pull --target {target}", weight=5, ends=codes(NothingFits)),
    Trial(words="inspect {id} --sbom", weight=3, ends=ABSENT),
    Trial(words="inspect {image}", ends=ABSENT),
    Trial(words="push {id} --indexes", ends=ABSENT | codes(Unfinished)),
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`strike`: what happens while a verb runs; `over`: what ends it; `ends`: codes that it explains."""

    strike: Strike
    over: Callable[["Place"], None] = lambda _: None
    ends: frozenset[int]
    weight: int = 2


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)
    return False


def sent(*signals: signal.Signals) -> Fault:
    def strike(_: "Place", process: "subprocess.Popen[str]") -> None:
        while not catches(process.pid, signal.SIGTERM) and process.poll() is None:
            time.sleep(0.01)  # until then Python and Invoke start, and end by a signal in their own ways
        for number in signals:
            with suppress(ProcessLookupError):
                process.send_signal(number)
            time.sleep(0.3)

    killed = signal.SIGKILL in signals
    return Fault(strike=strike, ends=frozenset({-signal.SIGKILL}) if killed else codes(Interrupted))


def on_engine(command: str) -> Strike:
    """Run a command of a shell's there."""
    return lambda place, _: subprocess.run(["sh", "-c", command], env=place.env, capture_output=True, check=False)


# A verb that finds its container, volume or layers gone does not judge, or says that the build failed.
DISTURBED = codes(TfbuildError) | {23}
FAULTS = {
    "nothing": Fault(strike=lambda *_: None, ends=frozenset(), weight=8),
    "SIGINT": sent(signal.SIGINT),
    "SIGTERM": sent(signal.SIGTERM),
    "SIGHUP": sent(signal.SIGHUP),
    "SIGTERM twice": sent(signal.SIGTERM, signal.SIGTERM),
    "SIGKILL": sent(signal.SIGKILL),
    "engine killed": Fault(
        strike=lambda place, _: place.victim.kill(), over=lambda place: place.victim.restart(),
        ends=codes(EngineMissing),
    ),
    "disk full": Fault(
        strike=lambda place, _: place.victim.fill(), over=lambda place: place.victim.clear(), ends=codes(DiskFull),
    ),
    "registry killed": Fault(
        strike=lambda place, _: place.server.kill(), over=lambda place: place.server.start(),
        ends=codes(RegistryRefused, Unfinished),
    ),
    "containers killed": Fault(strike=on_engine("docker ps -q | xargs docker kill"), ends=DISTURBED),
    "containers pruned": Fault(strike=on_engine("docker container prune --force"), ends=DISTURBED),
    "images pruned": Fault(strike=on_engine("docker image prune --force"), ends=DISTURBED | ABSENT, weight=1),
    "cache pruned": Fault(strike=on_engine("docker builder prune --all --force"), ends=DISTURBED, weight=1),
}  # fmt: skip


@dataclass(kw_only=True)
class Place:
    """`took`: how long each verb took when it was last left alone."""

    folder: Path
    victim: Victim
    server: Server
    took: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        own = {"DOCKER_HOST": self.victim.found.host, "TFBUILD_REGISTRY": self.server.repository}
        return {**os.environ, **own, "TMPDIR": str(self.temporary)}

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def docker(self, *words: str) -> str:
        done = subprocess.run(["docker", *words], env=self.env, capture_output=True, text=True, check=False)
        return done.stdout

    def started(self, words: str) -> "subprocess.Popen[str]":
        # Not `python -m invoke`: if a signal interrupts exec(), which dataclasses use, that ends with -SIGINT.
        invoke = str(Path(sys.executable).with_name("invoke"))
        command = [invoke, "--search-root", str(ROOT), *words.split()]
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                text=True, start_new_session=True,
            )  # fmt: skip

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def found(self, what: str, more: str = "") -> None:
        self.findings.append(what)
        print(f"FOUND {what}\n{more[-3000:]}", flush=True)

    def run(self, words: str, allowed: frozenset[int], fault: Fault, name: str, after: float) -> None:
        began = time.monotonic()
        process = self.started(words)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        struck = process.poll() is None
        if struck:
            fault.strike(self, process)
        what = f"{words!r}, {name} after {after:.0f} s"
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            self.found(f"{what}: hangs", self.output())
        seconds, output = time.monotonic() - began, self.output()
        if name == "nothing" or not struck:
            self.took[words] = seconds
        if not struck:
            fault.strike(self, process)  # its end is the same: the next verb needs the engine, the disk, the registry
        fault.over(self)
        print(f"{code:4} {seconds:5.0f} s  {what}{'' if struck else ' (too late)'}", flush=True)
        if re.search("^Traceback", output, re.MULTILINE):
            self.found(f"{what}: a traceback", output)
        elif code not in {0} | allowed | (fault.ends if struck else frozenset()):
            self.found(f"{what}: ends with {code}", output)

    def inspect(self) -> None:
        """Let the next command clean up, and look at what is left, and at what the names say."""
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "engine"], cwd=self.folder,
            env=self.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            self.found(f"engine ends with {done.returncode} after the fault", done.stderr)
        if left := self.docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}").split():
            self.found(f"a container is left: {left}", self.docker("inspect", *left))
        if left := [path.name for path in self.temporary.iterdir()]:
            self.found(f"files are left: {left}")
        for name in self.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split():
            if name.startswith("tfbuild:") and not name.endswith(("-unverified", "-failed")):
                self.check(name)

    def check(self, name: str) -> None:
        """A name is that of the image's labels, and a report says that this image passed, here or where it is from."""
        (row,) = json.loads(self.docker("inspect", name))
        identifier = name.partition(":")[2]
        if row["Config"]["Labels"].get("io.tfbuild.id") != identifier:
            self.found(f"{name} is another image's", json.dumps(row["Config"]["Labels"], indent=1))
        report = self.folder / "reports" / f"{identifier}.json"
        document = json.loads(report.read_text()) if report.is_file() else {}
        if document.get("image", {}).get("id") != row["Id"] or document.get("verdict") not in ("pass", "warn"):
            self.found(f"{name} ({row['Id']}) has no report that it passed", json.dumps(document.get("image")))


def soak(there: Place, seconds: float, seed: int) -> None:
    chance, ends = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < ends:
        (trial,) = chance.choices(TRIALS, [trial.weight for trial in TRIALS])
        (name,) = chance.choices([*FAULTS], [fault.weight for fault in FAULTS.values()])
        number = chance.randrange(len(TARGETS))
        words = trial.words.format(target=TARGETS[number], id=IDS[number], image=f"tfbuild:{IDS[number]}")
        there.run(words, trial.ends, FAULTS[name], name, chance.random() * there.took.get(words, 20))
        there.inspect()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = options.parse_args()
    # The engine ends with this process. Without handlers, verbs would inherit that nohup or a shell's `&` ignores some.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    print(f"--seed {given.seed}", flush=True)
    with started() as victim, tempfile.TemporaryDirectory(prefix="soak-") as work, ExitStack() as stack:
        for name in ("tmp", "registry"):
            Path(work, name).mkdir()
        server = stack.enter_context(registry.serve(Path(work, "registry")))
        there = Place(folder=Path(work), victim=victim, server=server)
        for target in TARGETS:
            there.run(TRIALS[0].words.format(target=target), frozenset(), FAULTS["nothing"], "nothing", 1)
        there.inspect()
        soak(there, given.minutes * 60, given.seed)
    print(f"{len(there.findings)} findings", *there.findings, sep="\n- ")
    return bool(there.findings)


if __name__ == "__main__":
    sys.exit(main())
