"""Whether a build from source is worth it on a CPU: what committed reports measured of code for such CPUs."""

from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean
from typing import Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.facts import Facts, releases
from tfbuild.plan.beside import unused_by_official_wheel
from tfbuild.plan.wheel import newest_official

# No other architecture was measured.
ARCH = "x86_64"


class OperationRow(Facts, frozen=True):
    """One operation: its ratio, with the lower and the upper end of its interval."""

    name: str
    ratio: tuple[float, float, float]


class Gain(Facts, frozen=True):
    """What was measured of code for one instruction set; see facts/gains.toml."""

    cpu: str
    wheel: str
    over: str
    machine: str
    report: str = ""
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
        operations = (*self.faster, *self.slower, *self.equal)
        return self.speed or round(geometric_mean(row.ratio[0] for row in operations), 2)


@dataclass(frozen=True, kw_only=True)
class MeasuredGain:
    """The answer for one CPU. `report` is None where nothing was measured of code that it runs.

    `compile`: what a compile takes.
    """

    cpu: str
    instruction_set: str
    release: str
    wheel: str
    unused: tuple[str, ...]
    compile: str
    report: Gain | None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def rows() -> tuple[Gain, ...]:
    """Return all that was measured, on ARCH alone."""
    return facts.rows("gains", Gain)


@cache
def _features(cpu: str) -> frozenset[str]:
    return frozenset(isa.resolve(cpu, arch=ARCH).features)


def measured_operations(compiled: isa.InstructionSet) -> Gain | None:
    """Return the first row with operations that needs no more than this set; None if there is none."""
    held = frozenset(compiled.features)
    return next((row for row in rows() if row.report and compiled.arch == ARCH and _within(row, held)), None)


def relative_speed(features: frozenset[str], arch: str) -> float | None:
    """Estimate the speed of code for these features: that of the fastest measured code within them.

    It is relative to the official wheels, which are compiled for AVX; None if nothing within them was measured.
    """
    speeds = (row.relative_speed for row in rows() if arch == ARCH and _within(row, features))
    return max(speeds, default=None)


def _within(row: Gain, features: frozenset[str]) -> bool:
    return _features(row.cpu) <= features


def gain(cpu: Cpu) -> MeasuredGain:
    """Return what was measured of code that this CPU runs and the newest official wheel does not have."""
    own, release = isa.of_cpu(cpu), newest_official(cpu.arch)
    wheel = isa.instruction_set(releases.official_wheel(release, cpu.arch).features, cpu.arch)
    return MeasuredGain(
        cpu=cpu.model,
        instruction_set=own.name,
        release=release,
        wheel=wheel.name,
        unused=unused_by_official_wheel(cpu),
        compile=releases.compile_cost(release).described,
        report=measured_operations(own),
    )
