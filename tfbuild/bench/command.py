"""What stands between the command line and a benchmark: options in, a report out."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tfbuild.bench import advise as advising
from tfbuild.bench import compare as comparing
from tfbuild.bench import gate, live, models, page, profiled, session
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.engine import Engine
from tfbuild.errors import Interrupted, UsageError
from tfbuild.measure import experiments
from tfbuild.measure.experiments import Experiment, Purpose
from tfbuild.measure.records import BenchReport
from tfbuild.util.files import replace_file
from tfbuild.util.quantities import limit_seconds

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

    A command is watched alone: it stands for the row whose role it is.
    """
    if chosen.command:
        own = experiments.in_role("command").name
        if {*only} - {own} or named or batch:
            raise UsageError("--command is watched alone", hint=f"leave out --model and all --only but {own}")
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
    path = write(report, reports, name)
    if pyperf:
        _export_pyperf(report, pyperf)
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report)
        print(f"report {path.with_suffix('.html')}", file=sys.stderr)
    if report.interrupted:
        raise Interrupted(f"interrupted; what was measured until then is in {path}")


def write(report: BenchReport, folder: Path, name: str = "") -> Path:
    """Write JSON, Markdown and a page, each whole or not at all; the path of the JSON. Raises UsageError."""
    target = reporting.path(report, folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(target, reporting.to_json(report) + "\n")
        replace_file(target.with_suffix(".md"), reporting.to_markdown(report))
        return replace_file(target.with_suffix(".html"), page.to_html(report)).with_suffix(".json")
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error}", hint=f"make {folder} writable") from error


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
        # What is made of the numbers is this program's own business.
        told = [
            {name: value for name, value in msgspec.to_builtins(row).items() if name not in Purpose.__struct_fields__}
            for row in rows
        ]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
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


def compare(paths: Sequence[str], fail_if: Sequence[str], html: str, *, json: bool) -> None:
    """Print the reports side by side, write the page where one is asked for, then leave by what the gates say.

    Raises UsageError, and RegressionFound where a gate fails or cannot be judged.
    """
    if len(paths) < 2:
        raise UsageError(
            "one report is nothing to compare", hint="two reports/bench-*.json or more, the baseline first"
        )
    wanted = gate.gates(fail_if)
    found = comparing.compare(*(reporting.read(Path(path)) for path in paths))
    judged = gate.judge(comparing.judgeable(found), wanted)
    if html:
        page.write(page.comparison(found, judged), Path(html))
    if json:
        told = msgspec.to_builtins(found) | {"gates": msgspec.to_builtins(judged)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    else:
        comparing.show(found, judged)
    gate.enforce(judged)


def advise(report: str, env: str, *, json: bool) -> None:
    """Print the env file (to `env` where it is given) and the lines of code. Raises UsageError."""
    found = advising.advise(reporting.read(Path(report)))
    if env:
        try:
            Path(env).write_text(advising.env_file(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--env-file {env}: {error}", hint="name a file that can be written") from error
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return
    sys.stdout.write(f"# environment\n{advising.env_file(found)}\n# code\n{advising.lines_of_code(found)}")
    if all(one.in_place for one in found):
        more = " beyond what is in place" if found else ""
        print(f"no change is shown to gain anything{more}", file=sys.stderr)
