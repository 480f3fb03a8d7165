"""The right image of a build as its engine shows it, and how tests spoil it. Nothing of TensorFlow runs."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.binary import libraries as guards
from tests.binary.test_scan import CODE, everywhere, function, library
from tests.measure.test_workers import MadeUpWorker, Script
from tests.verify.test_configuration import BUILD, base, image
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild import __version__
from tfbuild.context import dockerfile
from tfbuild.engine import ContainerRun, Engine, Image, Sandbox, WorkerDied
from tfbuild.errors import UnknownImage
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.probes import Computed, Faults, GpuConvolution, OneDnnConvolution
from tfbuild.in_container.smoke.references import PARTS
from tfbuild.measure import probe
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.plan import Build
from tfbuild.verify import Baseline, Verification, labelled_build
from tfbuild.verify.checks import guard, throughput

DATA = Path(__file__).parents[1] / "data" / "smoke"
SITE = "/opt/tensorflow/lib/python3.11/site-packages"
CC, FRAMEWORK = "libtensorflow_cc.so.2", "libtensorflow_framework.so.2"
F16C = CODE["{vex} vcvtph2ps %xmm1,%ymm2"]
BASELINE = Baseline(ref="tfbuild:plain", id="sha256:2", env={"LD_PRELOAD": ""})
IMAGE, OTHER = (arm.name for arm in throughput.against(BASELINE).arm)
SANDBOX = Sandbox(processes=1, volume="v", path=probe.ROOT)
PLANNED = labelled_build("x", image().labels, "amd64")


def run(stdout: str = "", stderr: str = "", *, code: int = 0, truncated: bool = False) -> ContainerRun:
    return ContainerRun(exit_code=code, stdout=stdout, stderr=stderr, truncated=truncated)


def sent(*records: object, stderr: str = "") -> ContainerRun:
    """A probe that sent these records."""
    return run("".join(f"{json.dumps(asdict(cast(Any, record)))}\n" for record in records), stderr)


START = sent(ENVIRONMENT, TENSORFLOW, stderr=(DATA / "start-2.21.0.stderr.txt").read_text())
PROBES = {
    "start": START,
    "faults": sent(Faults(per_tensor=3.0)),
    "onednn": sent(OneDnnConvolution(finite=True), stderr=(DATA / "onednn-2.21.0.txt").read_text()),
    "numerics": sent(*(Computed(name, tuple(part.results())) for name, part in PARTS.items())),
    "cuda": sent(GpuConvolution(gpus=1, device="/device:GPU:0", error=1e-6)),
}
FILES: dict[str, bytes | OSError] = {
    guard.PATH: dockerfile.files(BUILD)["entrypoint.sh"].encode(),
    f"{SITE}/tensorflow/{CC}": library(everywhere(F16C), count=64),
    f"{SITE}/tensorflow/{FRAMEWORK}": guards.library(
        guards.recorded("tensorflow_cpu-2.21.0"), text=function(CODE["vaddps %xmm1,%xmm2,%xmm3"])
    ),
}


@dataclass
class ImageEngine:
    """`files`: what a copy gives or raises, by path; `probes`: what each prints; `every`: what any process prints.

    An entry point runs under this machine's shell, which sees all CPU features; `script`: how the workers answer, if
    any starts. `asked`: the paths of copied files, and the probes with their environment.
    """

    files: Mapping[str, bytes | OSError] = field(default_factory=lambda: FILES)
    probes: Mapping[str, ContainerRun] = field(default_factory=lambda: PROBES)
    every: ContainerRun | TimeoutError | None = None
    image_: Image = field(default_factory=image)
    base: Image = field(default_factory=base)
    script: Script | None = field(default_factory=lambda: Script(seconds={IMAGE: 0.01, BASE_AGAIN: 0.01, OTHER: 0.02}))
    no_gpu: str = ""
    asked: list[Any] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    version: str = "engine 1"

    def image(self, ref: str) -> Image:
        if ref == "us/base:1":
            return self.base
        if "@" in ref:
            raise UnknownImage(f"no image {ref!r}")
        return self.image_

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int) -> dict[str, bytes]:
        return {path: self._content(path, limit) for path in self.files if wanted(path)}

    def read_file(self, ref: str, path: str, destination: Path, limit: int) -> Path:
        self.asked.append(path)
        assert not [file for file in destination.parent.iterdir() if not file.name.startswith(".")], "they are large"
        destination.write_bytes(self._content(path, limit))
        return destination

    def copy_files(
        self, ref: str, folder: str, wanted: Callable[[str], bool], destination: Path, limit: int
    ) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            if path.startswith(f"{folder}/") and wanted(name := path.removeprefix(f"{folder}/")):
                destination.write_bytes(self._content(path, limit))
                yield name, destination
                destination.unlink()

    def _content(self, path: str, limit: int) -> bytes:
        content = self.files.get(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path))
        if isinstance(content, OSError):
            raise content
        assert len(content) <= limit
        return content

    def run(
        self, ref: str, command: list[str], *, env: Mapping[str, str] = {}, sandbox: Sandbox, timeout: float, **_: Any
    ) -> ContainerRun:
        assert sandbox == SANDBOX, "an image is not trusted"
        if self.every:
            self.asked.append(command)
            if isinstance(self.every, TimeoutError):
                raise self.every
            return self.every
        if "probe" in command:
            self.asked.append((command[-1], env))
            return self.probes[command[-1]]
        with tempfile.TemporaryDirectory() as folder:
            return started(self._content(guard.PATH, 1 << 20), command, env, Path(folder))

    def lacks_gpus(self, ref: str, sandbox: Sandbox) -> str:
        return self.no_gpu

    def worker(self, ref: str, command: list[str], *, env: Mapping[str, str], sandbox: Sandbox, **_: Any) -> Any:
        assert sandbox == SANDBOX, "an image is not trusted"
        self.images.append(ref)
        if self.script is None:
            raise WorkerDied("the worker ended")
        worker = MadeUpWorker(self.script, env)
        self.script.workers.append(worker)
        return worker

    @contextmanager
    def sandbox(self, ref: str, files: Mapping[str, bytes], path: str) -> Iterator[Sandbox]:
        yield SANDBOX


def started(script: bytes, command: list[str], env: Mapping[str, str], folder: Path) -> ContainerRun:
    """Run an entry point on a CPU with all features, and in the sandbox's place the lesser CPU of the check guard."""
    lesser = guard.lesser_cpu(PLANNED)
    (folder / "cpuinfo").write_bytes(lesser[:-1] + f" {guard.lacking(PLANNED)}\n".encode())
    (folder / guard.LESSER_CPU).write_bytes(lesser)
    (folder / "python").symlink_to(sys.executable)
    file = folder / "entrypoint"
    file.write_bytes(script.replace(b"/proc/cpuinfo", str(folder / "cpuinfo").encode()))
    env = {name: value.replace(probe.ROOT, str(folder)) for name, value in env.items()}
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-p", file, *command], env=env | {"PATH": path}, capture_output=True, text=True, check=False
    )  # fmt: skip
    return run(done.stdout, done.stderr, code=done.returncode)


def verification(engine: object = None, planned: Build = PLANNED, **more: Any) -> Verification:
    """A verification in progress; the image's first probe has run."""
    results = judge.Results((ENVIRONMENT, TENSORFLOW), judge.Ended(0, START.stderr))
    state: dict[str, Any] = {"baseline": BASELINE, "start": results, "why": "", "version": __version__} | more
    return Verification(
        engine=cast(Engine, engine or ImageEngine()), ref="sha256:1", planned=planned, sandbox=SANDBOX, **state
    )
