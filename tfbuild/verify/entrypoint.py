"""The entry point that an image with these labels must have, and the CPUs on which it is tried."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tfbuild import facts
from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned
from tfbuild.errors import TfbuildError

PATH = "/usr/local/bin/tfbuild-entrypoint"
MOST_BYTES = 64 * 1024
# The line with the command that wrote the script. It is a comment, and nothing else in the labels has that command.
HEADER = 1
CORES = 2
# What kernels list for every CPU of an architecture, and no label names. A description without it is not real.
ALWAYS = {
    "x86_64": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 "
    "syscall nx lm constant_tsc rep_good nopl cpuid",
    "aarch64": "fp evtstrm cpuid",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A CPU on which the entry point is tried: its /proc/cpuinfo, and the feature that one of its cores lacks."""

    cpuinfo: bytes
    lacks: str = ""


def expected(planned: Planned) -> str:
    """Return the entry point that this tfbuild renders for an image's labels; raise ValueError if it cannot."""
    try:
        return dockerfile.render_entrypoint(planned.check(), header="#")
    except TfbuildError as error:
        raise ValueError(f"no entry point can be rendered for its labels: {error.reason}") from error


def same(script: bytes, text: str) -> bool:
    """Whether a script is the rendered `text`, whoever wrote it by which command."""
    lines, others = script.split(b"\n"), text.encode().split(b"\n")
    if len(lines) != len(others) or not lines[HEADER].startswith(b"#"):
        return False
    del lines[HEADER], others[HEADER]
    return lines == others


def trials(planned: Planned, rng: random.Random) -> list[Trial]:
    """Return a CPU without each labelled feature that kernels print, and two that have all of them; in random order.

    One has exactly the labelled features, the other every known one. Those that lack one have a part of the others.
    """
    required = facts.cpuinfo_names(planned.features)
    others = sorted({row.cpuinfo for row in facts.features(planned.arch) if row.cpuinfo} - set(required))
    lacking = [
        Trial(cpuinfo=_describe(planned.arch, [*required, *_part(others, rng)], rng, lacks), lacks=lacks)
        for lacks in required
    ]
    full = [Trial(cpuinfo=_describe(planned.arch, [*required, *more], rng)) for more in ([], others)]
    found = [*lacking, *full]
    rng.shuffle(found)
    return found


def _part(names: Sequence[str], rng: random.Random) -> list[str]:
    return rng.sample(names, rng.randint(0, len(names)))


def _describe(arch: str, names: Sequence[str], rng: random.Random, lacks: str = "") -> bytes:
    """Return /proc/cpuinfo as the kernel writes it, for cores of which one, by chance, lacks a feature."""
    lesser = rng.randrange(CORES)
    cores = []
    for core in range(CORES):
        held = [name for name in names if name != lacks or core != lesser]
        rng.shuffle(held)
        cores.append(_core(arch, core, held))
    return "\n".join(cores).encode()


def _core(arch: str, number: int, names: Sequence[str]) -> str:
    listed = " ".join((ALWAYS[arch], *names))
    if arch == "aarch64":
        return (
            f"processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: {listed}\n"
            "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n"
        )
    return (
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
        "model name\t: Intel(R) Xeon(R) Processor @ 2.80GHz\nstepping\t: 7\ncpu MHz\t\t: 2800.198\n"
        f"core id\t\t: {number}\ncpu cores\t: {CORES}\nflags\t\t: {listed}\n"
        "bugs\t\t: spectre_v1 spectre_v2\nbogomips\t: 5600.39\nclflush size\t: 64\n"
        "address sizes\t: 46 bits physical, 48 bits virtual\n"
    )
