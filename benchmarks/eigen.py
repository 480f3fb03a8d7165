"""How fast Eigen's kernels are with tfbuild's flags, against `-march=native` and the official wheel's `-mavx`.

    .venv/bin/python -m benchmarks.eigen [--base bootstrap] [--rounds 15] [--compilers gcc-12,clang-16] [--record NAME]

The kernels (eigen.cc) are compiled and run in a container of Debian 12 with its compilers and its Eigen, at
TensorFlow's own -O2. Each round runs every binary once, in shuffled order, pinned to one core; CPU time is compared
round by round, as the geometric mean over the kernels. "native again" is the same binary once more: how far apart
nothing but noise is. "tfbuild" is the set that `--cpu host` takes: a level and what makes a difference to TensorFlow;
"exact" has all features of the CPU (`--cpu host,exact`). Targets: at least 0.98 of native's speed and, on a machine
with AVX-512, 1.9 of -mavx's.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks.harness import record, rounds
from tfbuild import cpu, facts
from tfbuild.cli.options import certificates
from tfbuild.context import dockerfile
from tfbuild.cpu import isa
from tfbuild.cpu.compilers import flags, parse_compiler
from tfbuild.engine import Engine, Worker
from tfbuild.engine.build import BuildSettings
from tfbuild.measure.evaluate import interval
from tfbuild.measure.records import Interval
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

HERE = Path(__file__).parent
TAG = "tfbuild-benchmark:eigen"
IMAGE, DISTRIBUTION = "debian:bookworm-slim", "bookworm"
INSTALL = """FROM {base}
RUN --mount=type=tmpfs,target=/mnt --mount=type=secret,id=ca,target=/mnt/ca \\
    --mount=type=bind,source=network.sh,target=/mnt/network.sh \\
    . /mnt/network.sh && apt-get update && apt-get install --yes --no-install-recommends {packages}
"""
COMPILE = "-std=c++17 -O2 -DNDEBUG -I/usr/include/eigen3"
COMPILE_SECONDS, RUN_SECONDS = 900, 120
# What is compared: the flags' name, and whose speed is 1.
PAIRS = (
    ("tfbuild", "native"),
    ("tfbuild", "exact"),
    ("tfbuild", "avx"),
    ("native again", "native"),
    ("x86-64-v3", "avx"),
    ("x86-64-v3 as a list", "avx"),
)
Times = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Speed of `flags` against that of `over` (more is faster): the geometric mean over the kernels, in each round and
    by their median, and each kernel's median.
    """

    compiler: str
    flags: str
    over: str
    mean: Interval
    rounds: tuple[float, ...]
    kernels: dict[str, float]

    def __str__(self) -> str:
        mean = f"{self.mean.median:.3f} [{self.mean.low:.3f}, {self.mean.high:.3f}]"
        kernels = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.kernels.items())
        return f"{self.compiler}: {self.flags}, of {self.over}'s speed: {mean} ({kernels})"


def variants(machine: cpu.Cpu, compiler: str) -> dict[str, str]:
    """Names of the binaries and their flags. A list without a level is what Clang tunes badly for."""
    third = isa.resolve("x86-64-v3", arch="x86_64")
    spelled = " ".join(facts.feature(name).flag for name in third.features)
    return {
        "avx": "-mavx",
        "native": "-march=native",
        "tfbuild": " ".join(flags(isa.of_cpu(machine), compiler).flags),
        "exact": " ".join(flags(isa.of_cpu(machine, exact=True), compiler).flags),
        "x86-64-v3": " ".join(flags(third, compiler).flags),
        "x86-64-v3 as a list": spelled,
    }


def compare(found: list[dict[str, Times]], compiler: str, flags: str, over: str) -> Comparison:
    one, other = f"{compiler} {flags}", f"{compiler} {over}"
    speed = [{kernel: each[other][kernel] / each[one][kernel] for kernel in each[one]} for each in found]
    means = tuple(geometric_mean(kernels.values()) for kernels in speed)
    mean = interval(means)
    assert mean
    return Comparison(
        compiler=compiler,
        flags=flags,
        over=over,
        mean=mean,
        rounds=means,
        kernels={kernel: median(each[kernel] for each in speed) for kernel in speed[0]},
    )


@contextmanager
def container(engine: Engine, mode: str, compilers: list[str]) -> Iterator[tuple[Worker, cpu.Cpu]]:
    """A container that compiles and runs the kernels, and the CPU that it runs on; the image stays."""
    packages = {
        f"g++-{version}" if kind == "gcc" else f"clang-{version}" for kind, version in map(parse_compiler, compilers)
    }
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        folder, log, progress, ca = Path(scratch, "context"), Path(scratch, "log"), Progress(), certificates("")
        ground = base_image.resolve(engine, IMAGE, DISTRIBUTION, mode, progress=progress, log=log, ca_cert=ca)
        folder.mkdir()
        shutil.copy(dockerfile.TEMPLATES / "network.sh", folder)
        words = " ".join(sorted({*packages, "g++-12", "libeigen3-dev", "util-linux"}))
        (folder / "Dockerfile").write_text(INSTALL.format(base=ground.reference, packages=words))
        settings = BuildSettings(log=log, progress=progress, tag=TAG, secrets={"ca": ca} if ca else {})
        engine.build(folder, settings)
    machine = cpu.parse(engine.run(TAG, ["cat", "/proc/cpuinfo"]).stdout, origin="the container's /proc/cpuinfo")
    files = {f"/{name}": (HERE / name).read_bytes() for name in ("eigen.cc", "eigen.sh")}
    with engine.worker(TAG, ["/eigen.sh"], files=files) as worker:
        yield worker, machine


def program(compiler: str) -> str:
    kind, version = parse_compiler(compiler)
    return f"g++-{version}" if kind == "gcc" else f"clang++-{version}"


def binaries(worker: Worker, compiler: str, flags: dict[str, str]) -> dict[str, Callable[[], Times]]:
    """Compiles every variant; a run of each by its name, and of "native again"."""
    results: dict[str, Callable[[], Times]] = {}
    for number, (name, words) in enumerate(flags.items()):
        file = f"{compiler}-{number}"
        print(f"{compiler}, {name}: {words}", flush=True)
        worker.ask(f"compile {file} {program(compiler)} {COMPILE} {words}", COMPILE_SECONDS)
        results[f"{compiler} {name}"] = partial(run, worker, file)
    return {**results, f"{compiler} native again": results[f"{compiler} native"]}


def run(worker: Worker, file: str) -> Times:
    return {name: float(seconds) for name, seconds in json.loads(worker.ask(f"run {file}", RUN_SECONDS)).items()}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="auto", help="as in `invoke build`; it must be Debian 12")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compilers", default="gcc-12,clang-16", help="of those that Debian 12 has")
    parser.add_argument("--record", default="eigen", help="name of the report in benchmarks/results/")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    compilers = chosen.compilers.split(",")
    with container(Engine.connect(), chosen.base, compilers) as (worker, machine):
        flags = {compiler: variants(machine, compiler) for compiler in compilers}
        runs = {
            name: run for compiler in compilers for name, run in binaries(worker, compiler, flags[compiler]).items()
        }
        measured = rounds(runs, chosen.rounds)
    comparisons = [compare(measured, compiler, *pair) for compiler in compilers for pair in PAIRS]
    for one in comparisons:
        print(one)
    print(record(chosen.record, {"flags": flags, "speed": [asdict(one) for one in comparisons]}))


if __name__ == "__main__":
    main()
