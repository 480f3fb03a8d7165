"""Whether a build from source is worth it on a CPU: what committed reports measured of code for such CPUs."""

from dataclasses import dataclass

from msgspec.structs import asdict

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.facts import Facts, releases
from tfbuild.plan.selection import unused_by_official_wheel
from tfbuild.plan.wheel import newest_official


class ReportRow(Facts, frozen=True):
    """A committed report; see facts/operations.toml."""

    file: str
    release: str
    over: str
    cpu: str
    machine: str


class OperationRow(Facts, frozen=True):
    """One operation: its ratio, with the lower and the upper end of its interval."""

    report: str
    name: str
    ratio: tuple[float, float, float]


class OperationTable(Facts, frozen=True):
    report: tuple[ReportRow, ...]
    operation: tuple[OperationRow, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredGain:
    """The answer for one CPU. `report` is None where nothing was measured of code that it runs, nor any operation then.

    The operations: those that are faster and slower beyond their intervals, the largest difference first, and others.
    """

    cpu: str
    instruction_set: str
    release: str
    wheel: str
    unused: tuple[str, ...]
    report: ReportRow | None
    faster: tuple[OperationRow, ...]
    slower: tuple[OperationRow, ...]
    equal: tuple[OperationRow, ...]

    def to_json(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in ("cpu", "instruction_set", "release", "wheel", "unused")}
        parts = {name: [asdict(row) for row in getattr(self, name)] for name in ("faster", "slower", "equal")}
        return values | {"report": asdict(self.report) if self.report else None} | parts


def table() -> OperationTable:
    """Return the facts, read once a process."""
    return facts.load("operations", OperationTable)


def gain(cpu: Cpu) -> MeasuredGain:
    """Return what was measured of code that this CPU runs and the newest official wheel does not have."""
    own, release = isa.of_cpu(cpu), newest_official(cpu.arch)
    wheel = isa.instruction_set(releases.official_wheel(release, cpu.arch).features, cpu.arch)
    report = next((row for row in table().report if _covers(own, row)), None)
    rows = [row for row in table().operation if report is not None and row.report == report.file]
    return MeasuredGain(
        cpu=cpu.model,
        instruction_set=own.name,
        release=release,
        wheel=wheel.name,
        unused=unused_by_official_wheel(cpu),
        report=report,
        faster=tuple(sorted((row for row in rows if row.ratio[1] > 1), key=lambda row: -row.ratio[0])),
        slower=tuple(sorted((row for row in rows if row.ratio[2] < 1), key=lambda row: row.ratio[0])),
        equal=tuple(row for row in rows if row.ratio[1] <= 1 <= row.ratio[2]),
    )


def _covers(own: isa.InstructionSet, row: ReportRow) -> bool:
    """Whether the CPU runs the code that the report measured."""
    if not isa.is_known(row.cpu, own.arch):
        return False
    return {*isa.resolve(row.cpu, arch=own.arch).features} <= {*own.features}
