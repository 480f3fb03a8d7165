"""Explain every CPU feature: whether the CPU has it, its level, the flag for it or why there is none, and its users."""

from collections.abc import Iterator
from dataclasses import dataclass

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.compilers import Flags
from tfbuild.cpu.isa import InstructionSet
from tfbuild.facts import Feature, releases


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One feature. `cpu`: "yes", "no", "masked" or "not known". `level`: the smallest level with it, or "".

    `kept`: whether it is compiled for; `flag`: what switches it on; `reason`: why it is left out. `used_by`: empty if
    no use is known.
    """

    feature: str
    cpu: str
    level: str
    kept: bool
    flag: str
    reason: str
    used_by: tuple[str, ...]


def feature_rows(
    named: InstructionSet, requested: InstructionSet, flags: Flags, release: str, cpu: Cpu | None, *, cpuid: bool
) -> Iterator[FeatureRow]:
    """Yield a row for every feature of the architecture.

    `named`: everything that --cpu names; `requested`: what is compiled for, by `flags`. `cpu`:
    the CPU, if it was read; `cpuid`: whether CPUID was read too, which shows features that no kernel lists.
    """
    for feature in facts.features(requested.arch):
        # Names, levels and lists keep only features with flags.
        known = feature.cpuinfo or cpuid if cpu else feature.use
        held = feature.name in (cpu or named).features
        in_cpu = "yes" if held else "no" if known else "not known"
        if cpu and feature.name in isa.hidden(cpu):
            in_cpu = "masked"
        reason = _left_out(feature, in_cpu, requested, flags, cpu)
        yield FeatureRow(
            feature=feature.name,
            cpu=in_cpu,
            level=next((level.name for level in facts.levels(feature.arch) if feature.name in level.features), ""),
            kept=not reason,
            flag=feature.flag if reason else _carrier(feature, requested, flags),
            reason=reason,
            used_by=_used_by(feature, release),
        )


def _left_out(feature: Feature, in_cpu: str, requested: InstructionSet, flags: Flags, cpu: Cpu | None) -> str:
    """Return why the build is not compiled for a feature; "" if it is."""
    if not feature.use:
        return "never a flag: only intrinsics use it"
    if feature.name in requested.features:
        return dict(flags.dropped).get(feature.name, "")
    if in_cpu == "masked" and cpu:
        return isa.hidden(cpu)[feature.name]
    if in_cpu == "no":
        disputed = {row.feature: row.reason for row in (cpu.disagreements if cpu else ()) if not row.held}
        return disputed.get(feature.name, "not in this CPU")
    return isa.left_out(feature.name) if in_cpu == "yes" else "no kernel lists it"


def _carrier(feature: Feature, requested: InstructionSet, flags: Flags) -> str:
    """Return the flag that switches the feature on: the level's, or its own."""
    march, *extensions = flags.flags[0].split("+")
    level = next((level for level in facts.levels(requested.arch) if f"-march={level.march}" == march), None)
    if level is not None and feature.name in level.features:
        return march
    if feature.flag in flags.flags:
        return feature.flag
    return f"+{feature.flag}" if feature.flag in extensions else "with another flag"


def _used_by(feature: Feature, release: str) -> tuple[str, ...]:
    """Return the parts of TensorFlow that are known to use the feature; "guard" if the release's message names it."""
    parts = [use.part for use in isa.uses() if feature.name in use.features]
    named = feature.tensorflow and feature.tensorflow in {row.name for row in releases.guard(release)}
    return (*parts, "guard") if named else tuple(parts)


def legend() -> str:
    """Return a sentence that explains the table's last column."""
    by_flag = ", ".join(use.part for use in isa.uses() if use.when == "flag")
    return (
        f"{by_flag}: code chosen by the flags; the others choose at run time. guard: named in TensorFlow's own message "
        f"at start. unknown: no use found. --cpu NAME,{isa.EXACT} also keeps the features without a known effect."
    )
