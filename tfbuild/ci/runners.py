"""Choose which of a CI system's machines runs each row of a matrix."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from tfbuild import pipeline, plan
from tfbuild.ci.matrix import WHEELS, Matrix, table
from tfbuild.errors import UsageError
from tfbuild.plan import Build
from tfbuild.util.quantities import counted


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Each row with the label of the machine that runs it; `notes`: which rows no machine can run, and why."""

    rows: tuple[tuple[Build, str], ...]
    notes: tuple[str, ...]

    def summary(self) -> list[str]:
        """Return lines about what the rows cost: kinds, disk, machines and compile time."""
        kinds = Counter(build.wheel.kind for build, _ in self.rows)
        machines = Counter(label for _, label in self.rows)
        costs = {row.label: row.cost for row in table().runner}
        lines = [f"{counted(count, 'row')} with --wheel {kind}: {_disk(kind)} each" for kind, count in kinds.items()]
        lines += [
            f"{counted(count, 'row')} on {label}: {costs.get(label, 'a machine of your own, or one that you pay for')}"
            for label, count in machines.items()
        ]
        return lines + [_compile_time(release) for release in self._compiled()]

    def _compiled(self) -> list[str]:
        releases = {build.release for build, _ in self.rows if build.wheel.kind == "source"}
        return sorted(releases, key=Version)


def _disk(kind: str) -> str:
    return f"{pipeline.DISK[kind] / 10**9:.0f} GB of disk"


def _compile_time(release: str) -> str:
    """Return what is recorded of a release's compile; that of another release may take several times as long."""
    known = next((row for row in table().compile if row.release == release), None)
    if known is None:
        return f"a compile of {release}: its time is not recorded"
    return f"a compile of {release}: {known.cpu_hours} hours of one processor, recorded {known.recorded}"


def schedule(matrix: Matrix, system: str, own: Sequence[str]) -> Schedule:
    """Return the machines of a CI system for the rows; `own`: the user's machines, as WHEEL[:PLATFORM]=LABEL.

    A row that no machine has the disk for is left out, because its job would fail. Raises UsageError if no row is left.
    """
    labels = _labels(own)
    hosted = [row for row in table().runner if row.system == system]
    rows: list[tuple[Build, str]] = []
    without: Counter[tuple[str, str]] = Counter()
    for build in matrix.rows:
        kind, need = build.wheel.kind, pipeline.DISK[build.wheel.kind]
        able = (row.label for row in hosted if row.platform == build.platform and row.disk * 10**9 >= need)
        label = labels.get((kind, build.platform)) or labels.get((kind, "")) or next(able, "")
        if label:
            rows.append((build, label))
        else:
            without[kind, build.platform] += 1
    notes = tuple(
        f"{count} rows are left out: no {platform} runner hosted by {system} is known to have the "
        f"{pipeline.DISK[kind] / 10**9:.0f} GB that --wheel {kind} needs; name one: --runner {kind}:{platform}=LABEL"
        for (kind, platform), count in sorted(without.items())
    )
    if notes and not rows:
        raise UsageError(f"the matrix is empty: {notes[0]}", hint="docs/ci.md says which runners fit")
    return Schedule(rows=tuple(rows), notes=notes)


def _labels(own: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return labels by wheel and platform ("" for any). Raises UsageError if an option cannot be parsed."""
    labels: dict[tuple[str, str], str] = {}
    for option in own:
        kind, _, label = option.partition("=")
        wheel, _, platform = kind.partition(":")
        if wheel not in WHEELS or not label or (platform and platform not in plan.PLATFORMS):
            raise UsageError(
                f"--runner {option!r} is not WHEEL[:PLATFORM]=LABEL",
                hint="--runner source=LABEL, or --runner source:linux/arm64=LABEL",
            )
        labels[wheel, platform] = label
    return labels
