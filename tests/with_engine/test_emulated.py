"""Binaries of real plans on emulated CPUs: they run where the guard lets them start, and elsewhere it stops them first.

QEMU's user emulation refuses what the named CPU lacks, instruction by instruction, up to AVX2 and with all of aarch64.
The entry point that stands in front is the one that the image would get, and reads a cpuinfo of the same CPU.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild import cpu, plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.plan import PLATFORMS, Build, Request

DATA = ROOT / "tests" / "data" / "emulated"
RELEASE = "2.13.1"
CPUS = {
    "linux/amd64": ("Nehalem", "Westmere", "SandyBridge", "IvyBridge", "Haswell", "Skylake-Client"),
    "linux/arm64": ("cortex-a72", "neoverse-n1", "a64fx", "max"),
}
PREFIX = {"linux/amd64": "", "linux/arm64": "aarch64-linux-gnu-"}
STOPPED = 86


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a binary on one emulated CPU, whose `features` tfbuild reads out of its cpuinfo."""

    features: frozenset[str]
    guarded: int
    said: str
    alone: int


Emulate = Callable[[str, str, str], dict[str, Outcome]]


def planned(requested: str, compiler: str, platform: str) -> Build:
    request = Request(release=RELEASE, target="mkl", cpu=requested, compiler=compiler, platform=platform)
    return plan.select(request, None)


@pytest.fixture(scope="module")
def emulate(engine: Engine, compilers: str) -> Emulate:
    """Compiles the program for a plan and runs it on every emulated CPU of the platform."""

    @cache
    def run(requested: str, compiler: str, platform: str) -> dict[str, Outcome]:
        build = planned(requested, compiler, platform)
        arch, prefix = PLATFORMS[platform], PREFIX[platform]
        kind, _, version = compiler.partition("-")
        program = f"{prefix}g++-{version}" if kind == "gcc" else f"clang++-{version}"
        guard = dockerfile.files(build)["entrypoint.sh"]
        files = {
            "/run.sh": (DATA / "run.sh").read_bytes(),
            "/program.cc": (DATA / "program.cc").read_bytes(),
            "/cpuinfo.c": (DATA / f"cpuinfo_{arch}.c").read_bytes(),
            "/entrypoint.sh": guard.replace("/proc/cpuinfo", "/tmp/emulated.cpuinfo").encode(),
        }
        flags = [copt.removeprefix("--copt=") for copt in build.copts]
        command = ["/run.sh", f"qemu-{arch}-static", f"{prefix}gcc-12", program, *flags]
        names = "".join(f"{name}\n" for name in CPUS[platform])
        done = engine.run(compilers, command, files=files, stdin=names.encode(), timeout=300)
        assert done.exit_code == 0, done.stderr
        lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
        return {name: outcome({key: rest for of, key, rest in lines if of == name}, arch) for name in CPUS[platform]}

    return run


def outcome(said: dict[str, str], arch: str) -> Outcome:
    detected = cpu.parse(said["cpuinfo"].replace("|", "\n"), machine=arch)
    return Outcome(
        features=frozenset(detected.features),
        guarded=int(said["guarded"]),
        said=said["guard-said"],
        alone=int(said["alone"]),
    )


X86 = ("westmere,exact", "sandybridge", "haswell")
ARM = ("armv8-a", "armv8.2-a", "armv8.2-a,asimddp", "armv8.2-a,sve", "neoverse-v1,exact")
ALL = [
    *((requested, compiler, "linux/amd64") for requested in X86 for compiler in ("gcc-12", "clang-16")),
    *((requested, "gcc-12", "linux/arm64") for requested in ARM),
]
# One for each compiler and each architecture; the others run at night.
QUICK = {("westmere,exact", "gcc-12"), ("haswell", "clang-16"), ("armv8.2-a,sve", "gcc-12")}


def each(rows: Iterable[tuple[str, ...]]) -> list[Any]:
    """Pytest's parameters, whose first two are the requested instruction set and the compiler."""
    return [pytest.param(*row, marks=() if row[:2] in QUICK else pytest.mark.nightly) for row in rows]


@pytest.mark.parametrize(("requested", "compiler", "platform"), each(ALL))
def test_the_guard_stops_a_binary_exactly_where_a_feature_is_missing_and_elsewhere_it_runs(
    requested: str, compiler: str, platform: str, emulate: Emulate
) -> None:
    build = planned(requested, compiler, platform)
    needed = set(build.instruction_set.features)
    for name, found in emulate(requested, compiler, platform).items():
        if needed <= found.features:
            assert (found.guarded, found.said, found.alone) == (0, "ran", 0), name
        else:
            assert found.guarded == STOPPED, name
            assert found.said.startswith("tfbuild: this CPU lacks "), name
            assert build.id in found.said
