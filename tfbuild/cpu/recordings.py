"""Read a text that describes a CPU, whichever tool printed it.

The formats are Linux's /proc/cpuinfo (with the output of ``ld.so --list-diagnostics`` behind it, if there is any), the
output of lscpu, and ``python -m cpuinfo --json`` (py-cpuinfo).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from tfbuild import facts
from tfbuild.errors import Unsupported
from tfbuild.util.files import decode
from tfbuild.util.process import printed

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# Arm's "CPU implementer" codes that matter for servers (Linux: arch/arm64/include/asm/cputype.h).
IMPLEMENTERS = {
    "0x41": "ARM",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0x6d": "Microsoft",
    "0xc0": "Ampere",
}
# lscpu says "Flags" on both.
FEATURE_LINE = re.compile(r"^[ \t]*(flags|Features|Flags)[ \t]*:(.*)$", re.MULTILINE)
REGISTERS = ("eax", "ebx", "ecx", "edx")
Diagnostics = tuple[frozenset[str], frozenset[str]]

# The path is part of the x86-64 psABI; musl and others have no file there, or one without that option.
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
# glibc's index of a leaf (sysdeps/x86/include/cpu-features.h, enum cpuid_register_index).
CPUID_LEAVES = {0: "1.0", 1: "7.0", 2: "80000001.0", 6: "7.1"}
CPUID_LINE = re.compile(
    r"^x86\.cpu_features\.features\[0x([0-9a-f]{1,2})\]\.(cpuid|active)\[0x([0-3])\]=0x([0-9a-f]{1,8})$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one source says, in canonical names; the rules of tfbuild.cpu turn it into a Cpu.

    `cores`: the features that each core lists, without those that the kernel switched off. `diagnostics`: those that
    CPUID has for this process, and those of them whose registers the operating system saves. `virtual`: it lists the
    flag `hypervisor`, as an x86-64 virtual machine does.
    """

    arch: str
    vendor: str
    model: str
    cores: tuple[frozenset[str], ...]
    diagnostics: Diagnostics | None = None
    virtual: bool = False


class RecordedLibrary(msgspec.Struct):
    """The part of py-cpuinfo's JSON that tfbuild uses."""

    arch: str
    flags: list[str] = []
    vendor_id_raw: str = "unknown"
    brand_raw: str = "unknown"


def canonical(names: Iterable[str], arch: str) -> frozenset[str]:
    """Return the canonical names of features that some tool spells `names`, without unknown ones."""
    return frozenset(row.name for name in names if (row := facts.spelled(name, arch)) is not None)


def refusal(origin: str, reason: str) -> Unsupported:
    """Return the error for a text that describes no CPU."""
    return Unsupported(
        f"{origin} does not describe a CPU: {reason}",
        hint="record one on the machine itself with: cat /proc/cpuinfo > FILE",
    )


# --- Linux ------------------------------------------------------------------------------------------------------------


def read_kernel(text: str, origin: str, machine: str) -> Reading:
    """Read Linux's or lscpu's lines. `machine`: uname's name for the architecture, "" for any."""
    # Line by line, as the entry point does: a recording may have no empty line between the cores.
    lists = [(key, frozenset(names.split())) for key, names in FEATURE_LINE.findall(text)]
    arch = _arch(lists)
    if not arch:
        raise refusal(origin, "it has no `flags` of an x86-64 or `Features` of an aarch64 CPU")
    if arch != ARCHITECTURES.get(machine.lower(), arch):
        raise refusal(origin, f"the machine is {machine}, but it lists an {arch} CPU: an emulator shows its host's")
    # The first value of each key.
    pairs = (line.partition(":") for line in reversed(text.splitlines()) if ":" in line)
    first = {key.strip(): value.strip() for key, _, value in pairs}
    vendor = first.get("vendor_id") or first.get("Vendor ID")
    return Reading(
        vendor=vendor or IMPLEMENTERS.get(first.get("CPU implementer", ""), "unknown"),
        model=first.get("model name") or first.get("Model name") or first.get("CPU part", "unknown"),
        arch=arch,
        cores=tuple(canonical(names, arch) for _, names in lists),
        diagnostics=diagnostics(text) if arch == "x86_64" else None,
        virtual=any("hypervisor" in names for _, names in lists),
    )


def _arch(lists: list[tuple[str, frozenset[str]]]) -> str:
    """Return the architecture of a 64-bit list. On Arm it has ``asimd``; a 32-bit list has ``neon``, on any CPU."""
    if any(key != "flags" and "asimd" in names for key, names in lists):
        return "aarch64"
    return "x86_64" if any(key != "Features" and "lm" in names for key, names in lists) else ""


# --- py-cpuinfo's JSON ------------------------------------------------------------------------------------------------


def read_py_cpuinfo(text: str, origin: str) -> Reading:
    """Read py-cpuinfo's answer. It merges sources: it may list what a kernel switched off, and may lack OSXSAVE."""
    try:
        record = decode(text, RecordedLibrary)
    except ValueError as error:
        raise refusal(origin, f"it is JSON, but not as py-cpuinfo writes it: {error}") from error
    arch = {"X86_64": "x86_64", "ARM_8": "aarch64"}.get(record.arch, "")
    if not arch or not record.flags:  # it has none without a PATH, and on Apple's own CPUs
        raise refusal(origin, "it has no flags of an X86_64 or ARM_8 CPU")
    # macOS's name, which py-cpuinfo passes on; for everybody else "avx10" is another feature.
    cores = (canonical(("avx" if flag == "avx1.0" else flag for flag in record.flags), arch),)
    return Reading(arch=arch, vendor=record.vendor_id_raw, model=record.brand_raw, cores=cores)


# --- CPUID ------------------------------------------------------------------------------------------------------------
# glibc's loader prints its words (``ld.so --list-diagnostics``, since glibc 2.33), as this process sees them, for the
# core that it runs on. "active" words tell which registers the system saves.


def _features(words: Mapping[tuple[str, str], int], kind: str) -> frozenset[str]:
    """Return the features, by canonical name, whose bits (such as "7.0.ebx.5") are set in the words of a kind."""
    bits = ((row.name, row.cpuid.rpartition(".")) for row in facts.features("x86_64") if row.cpuid)
    return frozenset(name for name, (word, _, bit) in bits if words.get((kind, word), 0) >> int(bit) & 1)


def diagnostics(text: str) -> Diagnostics | None:
    """Read the loader's diagnostics in `text`; None if there are none.

    A feature is usable if CPUID has it and the registers that it works on are active. glibc does the same for the
    features that it knows (update_active in sysdeps/x86/cpu-features.c), which can be fewer than CPUID has.
    """
    words: dict[tuple[str, str], int] = {}
    for index, kind, register, value in CPUID_LINE.findall(text):
        if (leaf := CPUID_LEAVES.get(int(index, 16))) is not None:
            words[kind, f"{leaf}.{REGISTERS[int(register)]}"] = int(value, 16)
    if {kind for kind, _ in words} != {"cpuid", "active"}:
        return None
    held, active = _features(words, "cpuid"), _features(words, "active")
    registers = {row.name for row in facts.features("x86_64") if row.registers}
    usable = (name for name in held if facts.closure([name]) & registers <= active)
    return held, frozenset(usable)


@cache
def loader_text(path: Path = LOADER) -> str:
    """Return what this machine's loader prints about the CPU, or "" if it is not that of glibc 2.33 or newer.

    The environment is empty: GLIBC_TUNABLES could mask features, but does not change what TensorFlow can use.
    """
    return printed([str(path), "--list-diagnostics"], {})
