"""What a CPU can do: py-cpuinfo's reading and, on Linux, the kernel's own list over all cores.

py-cpuinfo is the portable source. Its public ``get_cpu_info()`` sleeps a second to measure clocks and unions back in
what the kernel has switched off (measured: ``rdseed``), so on Linux only its parser of /proc/cpuinfo is used (one
millisecond), and the kernel's list, intersected over all cores, has the last word (hybrid CPUs differ by core).
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tfbuild import facts
from tfbuild.errors import UnknownCpu

CPUINFO = Path("/proc/cpuinfo")
MOST_TEXT = 64 * 1024 * 1024
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# Arm's "CPU implementer" codes that matter for servers (Linux: arch/arm64/include/asm/cputype.h).
IMPLEMENTERS = {
    "0x41": "ARM",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x61": "Apple",
    "0xc0": "Ampere",
}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """One machine's CPU: `features` are canonical names that every core has, sorted."""

    vendor: str
    model: str
    arch: str
    features: tuple[str, ...]

    @property
    def level(self) -> str:
        """The largest level all of whose features are there, e.g. ``x86-64-v3``; empty where not even the smallest."""
        held = frozenset(self.features)
        return next((level.name for level in reversed(facts.levels(self.arch)) if level.features <= held), "")


def detect(path: Path | None = None) -> Cpu:
    """This machine's CPU, or the one that a recorded /proc/cpuinfo describes.

    Raises UnknownCpu where the file cannot be read, holds no CPU, or the architecture is neither x86-64 nor aarch64.
    """
    if path is not None:
        return parse(read(path), origin=str(path))
    if platform.system() == "Linux":
        return _host(str(CPUINFO))
    return _portable()


@cache
def _host(path: str) -> Cpu:
    return parse(read(Path(path)), origin=path, machine=platform.machine())


def read(path: Path) -> str:
    """The text of a recorded /proc/cpuinfo; UnknownCpu where there is none to read."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_TEXT)
    except OSError as error:
        raise UnknownCpu(
            f"cannot read {path}: {error.strerror}", hint="record one with: cat /proc/cpuinfo > FILE"
        ) from error
    return data.decode("utf-8", errors="replace")


def parse(text: str, *, origin: str = "cpuinfo", machine: str = "") -> Cpu:
    """The CPU that the text of a Linux /proc/cpuinfo describes; UnknownCpu where it describes none.

    The intersection over all of its processors: a program may be moved to any core.
    """
    text = text.replace("\r\n", "\n")
    cores = [_fields(block) for block in text.split("\n\n") if block.strip()]
    lists = [frozenset(core[key].split()) for core in cores for key in ("flags", "Features") if key in core]
    arch = ARCHITECTURES.get(machine.lower()) or _arch(cores)
    if not lists or not arch:
        raise UnknownCpu(
            f"{origin} does not describe a CPU: it has no `flags` (x86-64) or `Features` (aarch64) line",
            hint="record one on the machine itself with: cat /proc/cpuinfo > FILE",
        )
    read_by_library = _py_cpuinfo(text)
    first = next(core for core in cores if "flags" in core or "Features" in core)
    return Cpu(
        vendor=first.get("vendor_id") or IMPLEMENTERS.get(first.get("CPU implementer", ""), "unknown"),
        model=str(read_by_library.get("brand_raw") or first.get("CPU part", "unknown")),
        arch=arch,
        features=canonical(frozenset.intersection(*lists), arch),
    )


def canonical(names: frozenset[str], arch: str) -> tuple[str, ...]:
    """Canonical names of the features that a kernel or library spells `names`; what no row knows is left out."""
    found = (facts.spelled(name, arch) for name in names)
    return tuple(sorted({row.name for row in found if row is not None}))


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _arch(cores: list[dict[str, str]]) -> str:
    if any("Features" in core for core in cores):
        return "aarch64" if any(core.get("CPU architecture") in ("8", "AArch64") for core in cores) else ""
    return "x86_64" if any(" lm " in f" {core.get('flags', '')} " for core in cores) else ""


def _py_cpuinfo(text: str) -> Mapping[str, Any]:
    """What py-cpuinfo itself reads out of the same text; it takes the text from a DataSource, as in its own tests."""
    from cpuinfo import cpuinfo as library

    class Recorded(library.DataSource):  # type: ignore[misc]
        @staticmethod
        def has_proc_cpuinfo() -> bool:
            return True

        @staticmethod
        def cat_proc_cpuinfo() -> tuple[int, str]:
            return 0, text

    original, library.DataSource = library.DataSource, Recorded
    try:
        return dict(library._get_cpu_info_from_proc_cpuinfo())
    finally:
        library.DataSource = original


def _portable() -> Cpu:
    """macOS and Windows: py-cpuinfo's full call (over a second); it has no AVX512_BF16, AVX_VNNI or AMX there."""
    from cpuinfo import get_cpu_info

    info = get_cpu_info()
    arch = ARCHITECTURES.get(platform.machine().lower(), "")
    if not arch:
        raise UnknownCpu(f"unknown architecture {platform.machine()!r}", hint="tfbuild knows x86-64 and aarch64")
    return Cpu(
        vendor=info.get("vendor_id_raw", "unknown"),
        model=info.get("brand_raw", "unknown"),
        arch=arch,
        features=canonical(frozenset(info.get("flags", ())), arch),
    )
