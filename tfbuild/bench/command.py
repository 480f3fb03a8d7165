"""What stands between the command line and a benchmark: options in, a report out."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tfbuild.bench import experiments, session
from tfbuild.bench import report as reporting
from tfbuild.bench.experiments import Experiment
from tfbuild.bench.session import Settings
from tfbuild.compiling import limit_seconds
from tfbuild.engine import Engine
from tfbuild.engine.progress import Progress
from tfbuild.errors import Interrupted, UsageError


def settings(*, quick: bool, full: bool, budget: str, against: str, ca: Path | None = None) -> Settings:
    """UsageError where the options cannot be read or do not go together."""
    if quick + full + bool(budget) > 1:
        raise UsageError("--quick, --full and --budget each say how long it takes", hint="give one of them")
    mode = "quick" if quick else "full" if full else "budget"
    usual = {"quick": session.QUICK_SECONDS, "full": session.FULL_SECONDS, "budget": session.USUAL_SECONDS}
    return Settings(mode=mode, budget=limit_seconds(budget, "--budget") or usual[mode], against=against, ca=ca)


def run(image: str, only: Sequence[str], chosen: Settings, reports: Path, *, json: bool) -> None:
    """Measures, writes the report and prints it; raises Interrupted after that where Ctrl-C ended it."""
    rows = experiments.select(only, quick=chosen.quick)
    report = session.bench(Engine.connect(), image, rows, chosen, Progress())
    path = reporting.write(report, reports)
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report)
        print(f"report {path.with_suffix('.md')}", file=sys.stderr)
    if report.interrupted:
        raise Interrupted(f"interrupted; what was measured until then is in {path}")


def show_rows(only: Sequence[str], chosen: Settings, *, json: bool, dry_run: bool) -> None:
    """What there is (--list), or what would run and for how long (--dry-run)."""
    rows = experiments.select(only, quick=chosen.quick)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
    else:
        reporting.listed(rows, quick=chosen.quick)
    if dry_run:
        shares = ", ".join(f"{row.name} {share:.0f} s" for row, share in _shares(rows, chosen))
        print(f"dry run: nothing was started; of {chosen.budget:.0f} s: {shares}", file=sys.stderr)


def _shares(rows: Sequence[Experiment], chosen: Settings) -> list[tuple[Experiment, float]]:
    weights = [
        sum(
            row.seconds(case)
            for case in row.cases(chosen.quick) or row.case
            if case.needs != "against" or chosen.against
        )
        for row in rows
    ]
    return [(row, chosen.budget * weight / (sum(weights) or 1)) for row, weight in zip(rows, weights, strict=True)]
