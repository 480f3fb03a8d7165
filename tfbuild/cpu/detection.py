"""Find out what a CPU can do: from each source (tfbuild.cpu.recordings), and by rules where sources disagree.

On Linux the kernel's list, intersected over all cores, decides (the cores of hybrid CPUs differ). Features that no
kernel prints come from glibc's loader (tfbuild.cpu.recordings). py-cpuinfo is asked on other systems alone: its
``get_cpu_info()`` sleeps a second to measure clocks, and adds what the kernel switched off (measured: ``rdseed``).
"""

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import recordings
from tfbuild.cpu.recordings import ARCHITECTURES, Reading
from tfbuild.errors import Unsupported
from tfbuild.util.files import MOST_TEXT, read_named
from tfbuild.util.terminal import printable

CPUINFO = Path("/proc/cpuinfo")
# In place of a recording's file.
STDIN = "-"
# Letters of a vendor's or a model's name; CPUID has room for 48.
MOST_NAME = 100

# Where sources disagree, one of these rules decides. All but `unprinted` remove a feature; without that one, features
# that no kernel prints could never be found.
RULES = {
    "cores": "some cores lack it, and a program may be moved to any core: off",
    "kernel": "CPUID has it, and the kernel does not list it (switched off, or unknown to it): off",
    "process": "the kernel lists it, and CPUID, as this process sees it, does not have it (an emulator): off",
    "saved": "CPUID has it, and the operating system does not save the registers that it works on: off",
    "unprinted": "no kernel prints it, CPUID has it and its registers are saved: on",
}


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A feature on which sources disagree, and the rule that decided, a key of RULES."""

    feature: str
    rule: str

    @property
    def held(self) -> bool:
        """Whether programs may use the feature."""
        return self.rule == "unprinted"

    @property
    def reason(self) -> str:
        """The rule in words."""
        return RULES[self.rule]


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """One machine's CPU. `features`: canonical names of those that every core has and programs may use.

    `virtual`: a virtual machine's, as far as its kernel says so.
    """

    vendor: str
    model: str
    arch: str
    features: tuple[str, ...]
    disagreements: tuple[Disagreement, ...] = ()
    virtual: bool = False

    @property
    def level(self) -> str:
        """The largest level that the CPU has completely, such as ``x86-64-v3``; empty if it lacks even the smallest."""
        held = frozenset(self.features)
        return next((level.name for level in reversed(facts.levels(self.arch)) if level.features <= held), "")


def detect(path: Path | None = None) -> Cpu:
    """Return this machine's CPU, or the one that a recording describes.

    Raises Unsupported if the file cannot be read, describes no CPU, or the architecture is neither x86-64 nor aarch64.
    """
    if path is not None:
        return parse(read_text(path), origin="stdin" if str(path) == STDIN else str(path))
    return _linux(str(CPUINFO)) if platform.system() == "Linux" else _portable()


@cache
def _linux(path: str) -> Cpu:
    # An empty line separates the diagnostics from the last core's block.
    return parse(f"{read_text(Path(path))}\n\n{recordings.loader_text()}", origin=path, machine=platform.machine())


@cache  # stdin and a pipe can be read once
def _once(path: Path) -> bytes:
    return sys.stdin.buffer.read(MOST_TEXT) if str(path) == STDIN else read_named(path)


def read_text(path: Path) -> str:
    """Return the text of a recording, "-" for stdin; raises Unsupported if it cannot be read."""
    try:
        data = _once(path) if str(path) == STDIN or path.is_fifo() else read_named(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise Unsupported(f"cannot read {path}: {reason}", hint="record one with: cat /proc/cpuinfo > FILE") from error
    # PowerShell writes UTF-16 where output is redirected to a file.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, errors="replace").replace("\r\n", "\n")


def parse(text: str, *, origin: str = "cpuinfo", machine: str = "") -> Cpu:
    """Return the CPU of a recording (its formats: tfbuild.cpu.recordings); raises Unsupported if it has none."""
    is_json = text.lstrip().startswith("{")
    reading = recordings.read_py_cpuinfo(text, origin) if is_json else recordings.read_kernel(text, origin, machine)
    listed = frozenset.union(*reading.cores)
    decided = {row.feature: row for row in _disagreements(reading)}
    held = {name for name in listed if name not in decided} | {row.feature for row in decided.values() if row.held}
    return Cpu(
        vendor=printable(reading.vendor, MOST_NAME),
        model=printable(reading.model, MOST_NAME),
        arch=reading.arch,
        features=tuple(sorted(held)),
        disagreements=tuple(decided[name] for name in sorted(decided)),
        virtual=reading.virtual,
    )


def _disagreements(reading: Reading) -> Iterator[Disagreement]:
    """Yield the disagreements; the last one about a feature decides."""
    listed = frozenset.union(*reading.cores)
    everywhere = frozenset.intersection(*reading.cores)
    yield from (Disagreement(feature=name, rule="cores") for name in listed - everywhere)
    if reading.diagnostics is not None:
        seen, usable = reading.diagnostics
        silent = {row.name for row in facts.features(reading.arch) if not row.cpuinfo}
        yield from (Disagreement(feature=name, rule="process") for name in everywhere - seen)
        yield from (Disagreement(feature=name, rule="saved") for name in (everywhere | silent) & seen - usable)
        yield from (Disagreement(feature=name, rule="kernel") for name in seen - listed - silent)
        yield from (Disagreement(feature=name, rule="unprinted") for name in usable & silent - listed)


def _portable() -> Cpu:
    """Ask py-cpuinfo, which knows no AVX512_BF16, AVX_VNNI or AMX, and nothing of Apple's own CPUs."""
    if platform.machine().lower() not in ARCHITECTURES:
        raise Unsupported(f"unknown architecture {platform.machine()!r}", hint="tfbuild knows x86-64 and aarch64")
    from cpuinfo import get_cpu_info_json

    try:
        return parse(get_cpu_info_json(), origin="py-cpuinfo")
    except Unsupported as error:
        raise Unsupported(error.reason, hint="name the CPU: --cpu haswell, or --cpu apple-m1") from error
