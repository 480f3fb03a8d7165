"""Whether a build from source is worth it on a CPU: what committed reports measured of code for such CPUs."""

from dataclasses import dataclass
from typing import Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.facts import Facts, releases
from tfbuild.plan.selection import unused_by_official_wheel
from tfbuild.plan.wheel import newest_official


class OperationRow(Facts, frozen=True):
    """One operation: its ratio, with the lower and the upper end of its interval."""

    name: str
    ratio: tuple[float, float, float]


class ReportRow(Facts, frozen=True):
    """A committed report; see facts/operations.toml."""

    file: str
    release: str
    over: str
    cpu: str
    machine: str
    faster: tuple[OperationRow, ...]
    slower: tuple[OperationRow, ...]
    equal: tuple[OperationRow, ...]

    @property
    def title(self) -> str:
        """Say what was compared, and where."""
        return f"TensorFlow {self.release} for {self.cpu}, by CPU time, relative to {self.over}, on {self.machine}"


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
    report: ReportRow | None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def reports() -> tuple[ReportRow, ...]:
    """Return the facts, read once a process."""
    return facts.rows("operations", ReportRow)


def report_of(compiled: isa.InstructionSet) -> ReportRow | None:
    """Return the first report of code that needs no more than this set; None if there is none."""
    return next((row for row in reports() if _includes(compiled, row)), None)


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
        report=report_of(own),
    )


def _includes(own: isa.InstructionSet, row: ReportRow) -> bool:
    """Whether a set has all features of the code that the report measured."""
    if not isa.is_known(row.cpu, own.arch):
        return False
    return {*isa.resolve(row.cpu, arch=own.arch).features} <= {*own.features}
