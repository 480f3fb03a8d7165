"""Choose which of a CI system's machines runs each row of a matrix."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from tfbuild import plan
from tfbuild.ci.matrix import WHEELS, Matrix, Refused, table
from tfbuild.errors import UsageError
from tfbuild.pipeline.maker import needed_disk
from tfbuild.plan import Build
from tfbuild.util.quantities import counted


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Each row with the label of the machine that runs it, "" outside CI.

    `notes`: which rows no machine can run, and why. `refused`: the combinations that cannot be planned.
    """

    rows: tuple[tuple[Build, str], ...]
    notes: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()

    def summary(self) -> list[str]:
        """Return lines about what the rows cost: kinds, disk, machines and compile time."""
        kinds = Counter((build.wheel.kind, needed_disk(build)) for build, _ in self.rows)
        machines = Counter(label for _, label in self.rows)
        costs = {row.label: row.cost for row in table().runner}
        lines = [
            f"{counted(count, 'row')} with --wheel {kind}: {disk / 10**9:.0f} GB of disk each"
            for (kind, disk), count in kinds.items()
        ]
        lines += [
            f"{counted(count, 'row')} on {label}: {costs.get(label, 'a machine of your own, or one that you pay for')}"
            for label, count in machines.items()
        ]
        compiled = {build.release: build.toolchain.cost for build, _ in self.rows if build.toolchain}
        return lines + [
            f"a compile of {release}: {compiled[release].described}" for release in sorted(compiled, key=Version)
        ]


def unscheduled(matrix: Matrix) -> Schedule:
    """Return all rows of a matrix, for no machine."""
    return Schedule(rows=tuple((build, "") for build in matrix.rows), refused=matrix.refused)


def schedule(matrix: Matrix, system: str, own: Sequence[str]) -> Schedule:
    """Return the machines of a CI system for the rows; `own`: the user's machines, as WHEEL[:PLATFORM]=LABEL.

    A row that no machine has the disk for is left out, because its job would fail. Raises UsageError if no row is left.
    """
    labels = _labels(own)
    hosted = [row for row in table().runner if row.system == system]
    rows: list[tuple[Build, str]] = []
    without: Counter[tuple[str, str, int]] = Counter()
    for build in matrix.rows:
        kind, need = build.wheel.kind, needed_disk(build)
        able = (row.label for row in hosted if row.platform == build.platform and row.room(kind) >= need)
        label = labels.get((kind, build.platform)) or labels.get((kind, "")) or next(able, "")
        if label:
            rows.append((build, label))
        else:
            without[kind, build.platform, need] += 1
    notes = tuple(
        f"{counted(count, 'row')} left out: no {platform} runner hosted by {system} is known to have the "
        f"{need / 10**9:.0f} GB that --wheel {kind} needs; name one: --runner {kind}:{platform}=LABEL"
        for (kind, platform, need), count in sorted(without.items())
    )
    if notes and not rows:
        raise UsageError(f"the matrix is empty: {notes[0]}", hint="docs/ci.md says which runners fit")
    return Schedule(rows=tuple(rows), notes=notes, refused=matrix.refused)


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
