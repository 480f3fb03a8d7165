"""Recorded machines: what a text that describes a CPU says, whichever tool printed it.

Four formats, told apart by their content: Linux's /proc/cpuinfo (with the output of ``ld.so --list-diagnostics`` behind
it, if there is one), macOS's ``sysctl -a``, raw CPUID leaves (archspec's recordings of Windows machines), and
``python -m cpuinfo --json`` (py-cpuinfo, anywhere).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import cpuid
from tfbuild.cpu.cpuid import Diagnostics
from tfbuild.errors import UnknownCpu

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
# macOS's numbers behind names; without them "AVX1.0" could not be told from the later AVX10.
MACOS = {"avx1.0": "avx", "avx1_0": "avx", "avx2_0": "avx2"}
LISTED = re.compile(r"^[ \t]*(flags|Features)[ \t]*:(.*)$", re.MULTILINE)
SYSCTL = re.compile(r"^((?:machdep\.cpu|hw\.optional)\.[\w.]+)[ \t]*[:=][ \t]*(.*)$", re.MULTILINE)
LISTS = ("machdep.cpu.features", "machdep.cpu.leaf7_features", "machdep.cpu.extfeatures")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one source says, in canonical names; the rules of tfbuild.cpu make a Cpu of it.

    `cores`: what each core lists. `kernel`: it is Linux's own list, which is without what the kernel switched off.
    `saved`: whether the operating system saves registers at all (OSXSAVE), None where the source cannot say.
    `switched_off`: features that the source lists, and elsewhere calls switched off.
    """

    arch: str
    vendor: str
    model: str
    cores: tuple[frozenset[str], ...]
    kernel: bool = False
    saved: bool | None = None
    switched_off: frozenset[str] = field(default_factory=frozenset)
    diagnostics: Diagnostics | None = None


class RecordedLibrary(msgspec.Struct):
    """What tfbuild takes of py-cpuinfo's JSON."""

    arch: str
    flags: list[str]
    vendor_id_raw: str = "unknown"
    brand_raw: str = "unknown"


def read(text: str, *, origin: str, machine: str = "") -> Reading:
    """What `text` says; UnknownCpu where it describes no x86-64 or aarch64 CPU. `machine`: what uname calls it."""
    text = text.replace("\r\n", "\n")
    if text.lstrip().startswith("{"):
        return _library(text, origin)
    if words := cpuid.leaves(text):
        return _leaves(words, origin)
    if pairs := dict(SYSCTL.findall(text)):
        return _sysctl(pairs, origin)
    return _kernel(text, origin, machine)


def canonical(names: Iterable[str], arch: str) -> frozenset[str]:
    """Canonical names of the features that some tool spells `names`; what no row knows is left out."""
    found = (facts.spelled(MACOS.get(name.lower(), name), arch) for name in names)
    return frozenset(row.name for row in found if row is not None)


def refusal(origin: str, why: str) -> UnknownCpu:
    return UnknownCpu(
        f"{origin} does not describe a CPU: {why}",
        hint="record one on the machine itself with: cat /proc/cpuinfo > FILE (on macOS: sysctl -a > FILE)",
    )


# --- Linux -----------------------------------------------------------------------------------------------------------


def _kernel(text: str, origin: str, machine: str) -> Reading:
    # Line by line, as the entry point does: between the cores there need not be an empty line in a recording.
    lists = [(key, frozenset(names.split())) for key, names in LISTED.findall(text)]
    arch = _arch(lists)
    if not arch:
        raise refusal(origin, "it has no `flags` of an x86-64 or `Features` of an aarch64 CPU")
    if arch != ARCHITECTURES.get(machine.lower(), arch):
        raise refusal(origin, f"this is {machine}, and it lists an {arch} CPU, as an emulator shows that of its host")
    first, seen_by_library = _first_core(text), _py_cpuinfo(text)
    return Reading(
        vendor=first.get("vendor_id") or IMPLEMENTERS.get(first.get("CPU implementer", ""), "unknown"),
        model=str(seen_by_library.get("brand_raw") or first.get("CPU part", "unknown")),
        arch=arch,
        cores=tuple(canonical(names, arch) for _, names in lists),
        kernel=True,
        diagnostics=cpuid.diagnostics(text) if arch == "x86_64" else None,
    )


def _first_core(text: str) -> dict[str, str]:
    """What stands first behind each key."""
    pairs = (line.partition(":") for line in reversed(text.splitlines()) if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _arch(lists: list[tuple[str, frozenset[str]]]) -> str:
    """By what only a 64-bit list has: on Arm, ``asimd`` (a 32-bit one says ``neon``, also on a 64-bit CPU)."""
    if any(key == "Features" and "asimd" in names for key, names in lists):
        return "aarch64"
    return "x86_64" if any(key == "flags" and "lm" in names for key, names in lists) else ""


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


# --- macOS -----------------------------------------------------------------------------------------------------------


def _sysctl(pairs: Mapping[str, str], origin: str) -> Reading:
    """Intel Macs list names; Apple's own CPUs have a switch for each (``hw.optional.arm.FEAT_LSE: 1``)."""
    switches = {key.rpartition(".")[2]: value for key, value in pairs.items() if key.startswith("hw.optional.")}
    listed = [name.lower() for key in LISTS for name in pairs.get(key, "").split()]
    arch = "x86_64" if "em64t" in listed else "aarch64" if switches.get("arm64") == "1" else ""
    if not arch:
        raise refusal(origin, "its sysctl has neither machdep.cpu.features of a 64-bit CPU nor hw.optional.arm64")
    on = canonical((name for name, value in switches.items() if value == "1"), arch)
    names = canonical(listed, arch) if arch == "x86_64" else on | frozenset(_implied(on))
    brand = pairs.get("machdep.cpu.brand_string", "unknown")
    return Reading(
        arch=arch,
        vendor=pairs.get("machdep.cpu.vendor") or ("Apple" if brand.startswith("Apple") else "unknown"),
        model=brand,
        cores=(names,),
        saved="osxsave" in listed if arch == "x86_64" else None,
        switched_off=canonical((name for name, value in switches.items() if value == "0"), arch) & names,
    )


def _implied(names: Iterable[str]) -> Iterable[str]:
    """FEAT_FP16 stands for the scalar and the vector half, which Linux lists one by one."""
    return (needed for name in names for needed in facts.feature(name).implies)


# --- raw CPUID, py-cpuinfo's JSON ------------------------------------------------------------------------------------


def _leaves(words: cpuid.Words, origin: str) -> Reading:
    """XCR0 is no part of CPUID: which registers are saved is known by OSXSAVE alone."""
    if (0x1, 0) not in words or (0x80000001, 0) not in words:
        raise refusal(origin, "of CPUID's leaves, 1 or 80000001h is missing")
    return Reading(
        arch="x86_64",
        vendor=cpuid.vendor(words) or "unknown",
        model=cpuid.brand(words) or "unknown",
        cores=(cpuid.features(words),),
        saved=cpuid.is_set(words, cpuid.OSXSAVE),
    )


def _library(text: str, origin: str) -> Reading:
    try:
        found = msgspec.json.decode(text, type=RecordedLibrary)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise refusal(origin, f"it begins as py-cpuinfo's JSON does, and is none: {error}") from error
    arch = {"X86_64": "x86_64", "ARM_8": "aarch64"}.get(found.arch, "")
    if not arch:
        raise refusal(origin, f"py-cpuinfo calls its architecture {found.arch}, and tfbuild knows X86_64 and ARM_8")
    return of_library(found, arch, origin)


def of_library(found: RecordedLibrary, arch: str, origin: str) -> Reading:
    """py-cpuinfo joins its sources: what a kernel has switched off can be in its list, and OSXSAVE need not be."""
    if not found.flags:  # its answer without a PATH, and on Apple's own CPUs
        raise refusal(origin, "it has no flags at all")
    return Reading(arch=arch, vendor=found.vendor_id_raw, model=found.brand_raw, cores=(canonical(found.flags, arch),))
