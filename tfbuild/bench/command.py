"""What stands between the command line and a benchmark: options in, a report out."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tfbuild.bench import experiments, live, models, page, profiled, session
from tfbuild.bench import report as reporting
from tfbuild.bench.experiments import Experiment
from tfbuild.bench.results import BenchReport
from tfbuild.bench.session import Settings
from tfbuild.compiling import limit_seconds
from tfbuild.engine import Engine
from tfbuild.errors import Interrupted, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def settings(
    *,
    quick: bool,
    full: bool,
    budget: str,
    against: str,
    command: str = "",
    mount: str = "",
    ca: Path | None = None,
) -> Settings:
    """UsageError where the options cannot be read or do not go together."""
    if quick + full + bool(budget) > 1:
        raise UsageError("--quick, --full and --budget each say how long it takes", hint="give one of them")
    mode = "quick" if quick else "full" if full else "budget"
    usual = {"quick": session.QUICK_SECONDS, "full": session.FULL_SECONDS, "budget": session.USUAL_SECONDS}
    seconds = limit_seconds(budget, "--budget") or usual[mode]
    watched = profiled.parse(command, mount)
    return Settings(mode=mode, budget=seconds, against=against, command=watched, ca=ca)


def rows_of(only: Sequence[str], chosen: Settings, named: Sequence[str], batch: str) -> tuple[Experiment, ...]:
    """What to measure: the experiments, or the models that are `named`, or both where both are. UsageError.

    A command is watched alone: it stands for the row `bottleneck`.
    """
    if chosen.command:
        if {*only} - {profiled.ROW} or named or batch:
            raise UsageError("--command is watched alone", hint=f"leave out --model and all --only but {profiled.ROW}")
        return ()
    if not named:
        if batch:
            raise UsageError("--batch-size is a model's", hint="name the model: --model resnet50")
        return experiments.select(only, quick=chosen.quick)
    mine = models.row(named, models.batch_size(batch))
    others = experiments.select(only, quick=chosen.quick) if only else ()
    return (*(row for row in others if row.name != mine.name), mine)


def run(
    image: str,
    only: Sequence[str],
    chosen: Settings,
    reports: Path,
    *,
    json: bool,
    name: str = "",
    pyperf: str = "",
    named: Sequence[str] = (),
    batch: str = "",
) -> None:
    """Measures, writes the report and prints it; raises Interrupted after that where Ctrl-C ended it."""
    if name and not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no report's name", hint="--name before: letters, digits and ._+-; reports/before.json"
        )
    rows = rows_of(only, chosen, named, batch)
    progress, watch = live.watched()
    report = session.bench(Engine.connect(), image, rows, chosen, progress, watch)
    path = reporting.write(report, reports, name)
    if pyperf:
        _export_pyperf(report, pyperf)
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report)
        print(f"report {path.with_suffix('.html')}", file=sys.stderr)
    if report.interrupted:
        raise Interrupted(f"interrupted; what was measured until then is in {path}")


def export(report: str, *, html: str, pyperf: str) -> None:
    """An existing report as a page, and in pyperf's format, where a file is named for it."""
    if html:
        page.write(page.to_html(reporting.read(Path(report))), Path(html))
    if pyperf:
        _export_pyperf(reporting.read(Path(report)), pyperf)


def _export_pyperf(report: BenchReport, file: str) -> None:
    from tfbuild.bench import interchange

    page.write(interchange.to_pyperf(report), Path(file), "--pyperf")


def show_rows(
    only: Sequence[str], chosen: Settings, *, json: bool, dry_run: bool, named: Sequence[str] = (), batch: str = ""
) -> None:
    """What there is (--list), or what would run and for how long (--dry-run)."""
    rows = rows_of(only, chosen, named, batch)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n")
    else:
        reporting.listed(rows, quick=chosen.quick)
    if dry_run:
        shares = ", ".join(f"{row.name} {share:.0f} s" for row, share in _shares(rows, chosen)) or chosen.command
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
