"""The verbs of the benchmark: from the command line's options to reports, comparisons and advice."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from tfbuild.bench import advise as advising
from tfbuild.bench import compare as comparing
from tfbuild.bench import page, session, user_script
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.engine.image import named_if_removed
from tfbuild.errors import Interrupted, UsageError
from tfbuild.measure import experiments, records
from tfbuild.measure.experiments import Experiment, Purpose
from tfbuild.measure.records import BenchReport
from tfbuild.pages import rendering
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import limit_seconds
from tfbuild.util.terminal import cause

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
    """Turn options into settings; raise UsageError if they are invalid or contradict each other."""
    if quick + full + bool(budget) > 1:
        raise UsageError("--quick, --full and --budget exclude each other", hint="give one of them")
    mode = "quick" if quick else "full" if full else "budget"
    defaults = {"quick": session.QUICK_SECONDS, "full": session.FULL_SECONDS, "budget": session.USUAL_SECONDS}
    seconds = limit_seconds(budget, "--budget") or defaults[mode]
    return Settings(mode=mode, budget=seconds, against=against, command=user_script.parse(command, mount), ca=ca)


def rows_of(only: Sequence[str], chosen: Settings, named: Sequence[str], batch: str) -> tuple[Experiment, ...]:
    """Return what to measure: the experiments of `only`, the models `named`, or both.

    A command is profiled alone and has no row here. Raises UsageError if the options contradict each other.
    """
    if chosen.command:
        own = experiments.in_role("command").name
        if {*only} - {own} or named or batch:
            raise UsageError(
                "--command cannot be combined with other experiments",
                hint=f"leave out --model, --batch-size and all --only but {own}",
            )
        return ()
    if not named:
        if batch:
            raise UsageError("--batch-size needs --model", hint="name the model: --model resnet50")
        return experiments.select(only, quick=chosen.quick)
    model_row = experiments.model_row(named, experiments.batch_size(batch))
    others = experiments.select(only, quick=chosen.quick) if only else ()
    return (*(row for row in others if row.name != model_row.name), model_row)


def run(
    image: str,
    rows: Sequence[Experiment],
    chosen: Settings,
    reports: Path,
    *,
    json: bool,
    name: str = "",
    pyperf: str = "",
) -> None:
    """Measure, write the report and print it; raise Interrupted afterwards if Ctrl-C ended the run.

    Raises UsageError if nothing was measured; then no report is written, and an older one of that name stays.
    """
    if name and not NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} is not a valid name",
            hint="use letters, digits and ._+-, as in --name before for reports/before.json",
        )
    files.check_writable(reports)
    progress = Progress()
    engine = Engine.connect()
    chosen = replace(chosen, against=labels.find_image(engine, chosen.against))
    with engine.watched("the benchmark") as require_engine:
        report = session.bench(engine, labels.find_image(engine, image), rows, chosen, progress, require_engine)
        if why := reporting.emptiness(report):
            if report.interrupted:
                raise Interrupted("interrupted before anything was measured; no report was written")
            raise UsageError(
                f"nothing was measured: {why}",
                hint="no report was written; choose other experiments (--only) or give more time (--budget)",
            )
        # Printed first: a disk that has become full meanwhile must not cost what was measured.
        if json:
            sys.stdout.write(records.to_json(report))
        else:
            reporting.show(report)
        path = write(report, reports, name)
        if pyperf:
            rendering.write(reporting.to_pyperf(report), Path(pyperf), "--pyperf")
        if not json:
            print(f"report {path.with_suffix('.html')}", file=sys.stderr)
        with named_if_removed(engine, report.image.id, image, f"measured; the results so far are in {path}"):
            engine.image(report.image.id)
        if report.interrupted:
            raise Interrupted(f"interrupted; the results so far are in {path}")


def write(report: BenchReport, folder: Path, name: str = "") -> Path:
    """Write JSON, Markdown and a page, each whole or not at all; return the path of the JSON.

    Raises UsageError if a file cannot be written, DiskFull if no space is left.
    """
    target = reporting.path(report, folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.replace_file(target, records.to_json(report))
        files.replace_file(target.with_suffix(".md"), page.to_markdown(report))
        return files.replace_file(target.with_suffix(".html"), page.to_html(report)).with_suffix(".json")
    except OSError as error:
        message = f"the report cannot be written: {cause(error)}"
        raise files.refusal(error, folder, message, f"make {folder} writable") from error


def show_rows(rows: Sequence[Experiment], chosen: Settings, *, json: bool) -> None:
    """Print the experiments, and on stderr for how long each would run."""
    if json:
        # The fields of Purpose are internal.
        public = [
            {name: value for name, value in msgspec.to_builtins(row).items() if name not in Purpose.__struct_fields__}
            for row in rows
        ]
        sys.stdout.write(records.to_json(public))
    else:
        reporting.show_experiments(rows, quick=chosen.quick)
    shares = ", ".join(f"{row.name} {share:.0f} s" for row, share in _shares(rows, chosen)) or chosen.command
    print(f"dry run: nothing was started; of {chosen.budget:.0f} s: {shares}", file=sys.stderr)


def _shares(rows: Sequence[Experiment], chosen: Settings) -> list[tuple[Experiment, float]]:
    weights = [
        sum(row.seconds(case) for case in row.cases(chosen.quick) if case.needs != "against" or chosen.against)
        for row in rows
    ]
    return [(row, chosen.budget * weight / (sum(weights) or 1)) for row, weight in zip(rows, weights, strict=True)]


def compare(paths: Sequence[str], fail_if: Sequence[str], html: str, *, json: bool) -> None:
    """Print the reports side by side, write the page if one is asked for, then enforce the gates.

    Raises UsageError, and RegressionFound if a gate fails or cannot be judged.
    """
    if len(paths) < 2:
        raise UsageError(
            "comparing needs two reports or more", hint="give reports/bench-*.json files, the baseline first"
        )
    gates = comparing.gates(fail_if)
    comparison = comparing.compare(*(reporting.read_report(Path(path)) for path in paths))
    verdicts = comparing.judge(comparison, gates)
    if html:
        rendering.write(page.comparison(comparison, verdicts), Path(html))
    if json:
        document = msgspec.to_builtins(comparison) | {"gates": msgspec.to_builtins(verdicts)}
        sys.stdout.write(records.to_json(document))
    else:
        comparing.show(comparison, verdicts)
    comparing.enforce(verdicts)


def advise(path: str, *, env_file: str = "", html: str = "", pyperf: str = "", json: bool = False) -> None:
    """Print the settings and the lines of code of a report.

    Before that, write the settings, the report as a page, and its samples for pyperf to the files that are given.
    Raises UsageError if a file cannot be read or written.
    """
    report = reporting.read_report(Path(path))
    advices = advising.advise(report)
    if html:
        rendering.write(page.to_html(report), Path(html))
    if pyperf:
        rendering.write(reporting.to_pyperf(report), Path(pyperf), "--pyperf")
    if env_file:
        rendering.write(advising.env_file(advices), Path(env_file), "--env-file")
    if json:
        sys.stdout.write(records.to_json(advices))
        return
    sys.stdout.write(f"# environment\n{advising.env_file(advices)}\n# code\n{advising.lines_of_code(advices)}")
    if all(advice.in_place for advice in advices):
        print(advising.no_change(advices), file=sys.stderr)
