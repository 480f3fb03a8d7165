"""What was measured of code for more of a CPU than the official wheel uses, and what else may help."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from msgspec import structs

from tfbuild import facts
from tfbuild.cpu import Cpu, compilers, isa
from tfbuild.facts import Facts, releases
from tfbuild.plan import PLATFORMS, Request, choose_platform, newest_official, unused_by_official_wheel, usual

# No other architecture was measured.
ARCH = "x86_64"

# --- what runs --------------------------------------------------------------------------------------------------------


def lacks_for_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """Return the features without which the newest official wheel dies on this CPU."""
    return _lacks(newest_official(cpu.arch), cpu)


def _lacks(release: str, cpu: Cpu) -> tuple[str, ...]:
    features = releases.official_wheel(release, cpu.arch).features
    return tuple(name for name in features if not facts.closure([name]) <= {*cpu.features})


def official_wheel_here(cpu: Cpu) -> tuple[str, str]:
    """Say what the newest official wheel leaves unused of this CPU, or that it crashes there and what runs."""
    release, lacks = newest_official(cpu.arch), lacks_for_official_wheel(cpu)
    if not lacks:
        unused = " ".join(unused_by_official_wheel(cpu)) or ("nothing" if cpu.arch == ARCH else "not known")
        return "unused", f"{unused} (by the official wheel of {release})"
    older = (name for name in releases.newest_first() if releases.official_pythons(name, cpu.arch))
    fitting = next((f"official wheels up to {name}, or " for name in older if not _lacks(name, cpu)), "")
    runs = f"{fitting}a build from source for it: invoke build --cpu {isa.of_cpu(cpu).option}"
    where = "" if "avx" in lacks else " in half precision"
    why = f"(Illegal instruction{where}), for lack of {' '.join(lacks)}"
    guest = "; or give this virtual machine its host's CPU model (QEMU: -cpu host)" if cpu.virtual else ""
    return "crashes", f"the official wheel of {release} {why}; what runs: {runs}{guest}"


# --- what was measured ------------------------------------------------------------------------------------------------


class OperationRow(Facts, frozen=True):
    """One operation: its ratio, with the ends of its interval. `feature`: a wheel compiled for it is as fast."""

    name: str
    ratio: tuple[float, float, float]
    feature: str = ""


class Gain(Facts, frozen=True):
    """What was measured of code for one instruction set; see facts/gains.toml."""

    cpu: str
    wheel: str
    over: str
    machine: str
    report: str = ""
    summary: str = ""
    speed: float = 0.0
    faster: tuple[OperationRow, ...] = ()
    slower: tuple[OperationRow, ...] = ()
    equal: tuple[OperationRow, ...] = ()

    @property
    def title(self) -> str:
        """Say what was compared, and where."""
        return f"{self.wheel}, by CPU time, relative to {self.over}, on {self.machine}"

    @property
    def relative_speed(self) -> float:
        """Return the speed relative to code for AVX, as the official wheels are: above 1 is faster."""
        from statistics import geometric_mean

        operations = (*self.faster, *self.slower, *self.equal)
        return self.speed or round(geometric_mean(row.ratio[0] for row in operations), 2)


class Alternative(Facts, frozen=True):
    """What else may help; alternatives.toml explains the fields."""

    name: str
    measured: str
    report: str = ""
    vendor: str = ""
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def fits(self, cpu: Cpu) -> bool:
        """Whether it may help on this CPU."""
        has_one = not self.features or {*self.features} & {*cpu.features}
        return self.vendor in ("", cpu.vendor) and bool(has_one) and not {*self.without} & {*cpu.features}


class MeasuredGain(Facts, frozen=True, kw_only=True):
    """The answer for one CPU; `report` is None if no code was measured that it can run."""

    answer: str
    cpu: str
    instruction_set: str
    release: str
    wheel: str
    lacks: tuple[str, ...]
    unused: tuple[str, ...]
    compile: str
    report: Gain | None
    others: tuple[Alternative, ...]

    @property
    def operations(self) -> list[tuple[str, str, str]]:
        """Return each operation's name, its ratio with the interval, and the effect."""
        if self.report is None:
            return []
        effects = {"faster": self.report.faster, "slower": self.report.slower, "no difference shown": self.report.equal}
        return [
            (row.name, f"{row.ratio[0]:.2f} [{row.ratio[1]:.2f}, {row.ratio[2]:.2f}]", effect)
            for effect, rows in effects.items()
            for row in rows
        ]


# All measurements; they are for ARCH alone.
measured_gains = partial(facts.rows, "gains", Gain)


@cache
def _features(cpu: str) -> frozenset[str]:
    return frozenset(isa.resolve(cpu, arch=ARCH).features)


def _within(features: frozenset[str], arch: str) -> Iterator[Gain]:
    """Yield what was measured of code that needs no more than these features."""
    yield from (row for row in measured_gains() if arch == ARCH and _features(row.cpu) <= features)


def measured_operations(compiled: isa.InstructionSet, release: str) -> Gain | None:
    """Return the first measurement of single operations for code that this set can run; None if there is none.

    Without the operations that the official wheel of the release is compiled for as well.
    """
    for row in _within(frozenset(compiled.features), compiled.arch):
        if row.report:
            official = releases.official_wheel(release, compiled.arch).features
            return structs.replace(row, faster=tuple(one for one in row.faster if one.feature not in official))
    return None


def relative_speed(features: frozenset[str], arch: str) -> float | None:
    """Estimate the speed of code for these features: that of the fastest measured code that needs no others.

    1.13 means 13 % faster than the official wheels, which are compiled for AVX. None if no such code was measured.
    """
    return max((row.relative_speed for row in _within(features, arch)), default=None)


def gain(cpu: Cpu) -> MeasuredGain:
    """Return what was measured of code that this CPU runs and the newest official wheel does not have."""
    own, release, lacks = isa.of_cpu(cpu), newest_official(cpu.arch), lacks_for_official_wheel(cpu)
    wheel = isa.instruction_set(releases.official_wheel(release, cpu.arch).features, cpu.arch)
    planned = compilers.flags(own, usual(cpu.arch, release)[1], release=release).instruction_set.features
    unused = releases.guard_spelling(release, {*planned} - facts.closure(wheel.features))
    report = measured_operations(own, release)
    answer = f"On this CPU the official wheel already uses everything that a compile of {release} would."
    if lacks:
        answer = f"Crashes on this CPU: {official_wheel_here(cpu)[1]}"
    elif cpu.arch != ARCH:
        answer = f"What a compile of {release} gains on this CPU is not known: nothing was measured on {cpu.arch}."
    elif unused:
        measured = f"Measured for {report.summary}." if report else "Nothing was measured for such a CPU."
        uses = f"use {' '.join(unused)}, which the official wheel leaves unused"
        answer = f"On this CPU a compile of {release} would {uses}. {measured}"
    return MeasuredGain(
        answer=answer,
        cpu=cpu.model,
        instruction_set=own.name,
        release=release,
        wheel=wheel.name,
        lacks=lacks,
        unused=unused,
        compile=releases.compile_cost(release, cpu.arch).described,
        report=report,
        others=tuple(row for row in facts.rows("alternatives", Alternative) if row.fits(cpu)),
    )


def named(text: str, host: Cpu | None) -> Cpu:
    """Return the CPU that --cpu names: the host's, or one of which only the features are known.

    Raises what `isa.resolve` raises.
    """
    cpu = host if host and isa.means_host(text) else None
    cpu = cpu or Cpu(vendor="", model=text, arch=PLATFORMS[choose_platform(Request(cpu=text))], features=())
    return replace(cpu, features=isa.resolve(f"{text},exact", arch=cpu.arch, host=host).features)
