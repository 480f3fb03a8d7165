"""`invoke bench`: from the command line's options to a report."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfbuild.bench import report as reporting
from tfbuild.bench import session
from tfbuild.bench.session import Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.errors import Interrupted, UsageError
from tfbuild.measure import experiments, probe, records
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.probe import Installation, Runner
from tfbuild.measure.records import BenchReport
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import limit_seconds

SHAPE = re.compile(r"[^\s={}]+=[1-9]\d*(,[1-9]\d*)*")
REPORT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def run_settings(*, quick: bool, full: bool, budget: str, against: str) -> Settings:
    """Turn options into settings; raise UsageError if they are invalid or contradict each other."""
    if quick + full + bool(budget) > 1:
        raise UsageError("--quick, --full and --budget exclude each other", hint="give one of them")
    mode = "quick" if quick else "full" if full else "budget"
    return Settings(mode=mode, budget=limit_seconds(budget, "--budget") or session.SECONDS[mode], against=against)


def with_saved_model(chosen: Settings, named: Sequence[str], shapes: Sequence[str], batch: str) -> Settings:
    """Return the settings with the SavedModel whose folder --model names, or as they are if it names none.

    Raises UsageError if it is not a SavedModel, or if a shape is invalid.
    """
    known = experiments.known_models()
    folder = next((Path(name) for name in named if name not in known and (os.sep in name or Path(name).is_dir())), None)
    if not folder and not shapes:
        return chosen
    if not folder or not (folder / "saved_model.pb").is_file() or len(named) > 1:
        hint = "give one folder with saved_model.pb, as Keras' model.export(DIR) and tf.saved_model.save write it"
        wrong_model = f"--model {' '.join(named)} is not a SavedModel" if named else "--shape needs --model DIR"
        raise UsageError(wrong_model, hint=hint)
    if wrong := [shape for shape in shapes if not SHAPE.fullmatch(shape)]:
        raise UsageError(f"--shape {wrong[0]!r} is invalid", hint="name an input and its sizes: --shape ids=1,128")
    if len({shape.partition("=")[0] for shape in shapes}) < len(shapes):
        raise UsageError("--shape names an input twice", hint="leave out one of them")
    # From each of its folders: they may be links, which rglob does not follow.
    inside = [file for top in folder.iterdir() for file in (top, *top.rglob("*")) if file.is_file()]
    more = {f"{probe.ROOT}/model/{file.relative_to(folder)}": file.read_bytes() for file in inside}
    # TensorFlow Serving's folders end in a number.
    name = next(part for part in folder.resolve().parts[::-1] if not part.isdigit())
    given = experiments.parse_batch_size(batch)
    model = {"model": name, "shapes": " ".join(shapes), "least": 1, "batch": given or 1, "given": given}
    return replace(chosen, more=more, model=model)


def rows_of(only: Sequence[str], chosen: Settings, named: Sequence[str], batch: str) -> tuple[Experiment, ...]:
    """Return what to measure: the experiments of `only`, the models `named`, or both; or `only` on a SavedModel.

    Raises UsageError if the options contradict each other.
    """
    if chosen.model:
        return experiments.select_experiments(only, quick=chosen.quick, own=True)
    if not named:
        if batch:
            raise UsageError("--batch-size needs --model", hint="name the model: --model resnet50")
        return experiments.select_experiments(only, quick=chosen.quick)
    model_row = experiments.model_row(named, experiments.parse_batch_size(batch))
    others = experiments.select_experiments(only, quick=chosen.quick) if only else ()
    return (*(row for row in others if row.name != model_row.name), model_row)


def run(
    image: str,
    rows: Sequence[Experiment],
    chosen: Settings,
    reports: Path,
    *,
    json: bool,
    name: str = "",
    python: str = "",
) -> None:
    """Measure, write the report and print it; raise Interrupted afterwards if Ctrl-C ended the run.

    `python`: an environment in place of an image, as `against` is then, too. Raises UsageError if nothing was measured;
    then no report is written, and an older one of that name stays.
    """
    if name and not REPORT_NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} is not a valid name",
            hint="use letters, digits and ._+-, as in --name before for reports/before.json",
        )
    if chosen.against and not any(case.needs == "against" for row in rows for case in row.cases(chosen.quick)):
        raise UsageError("--against changes nothing: no chosen experiment compares two images", hint="add --only isa")
    files.check_writable(reports)
    progress = Progress()
    engine: Runner = Installation() if python else Engine.connect()
    if isinstance(engine, Engine):
        chosen = replace(chosen, against=labels.find_image(engine, chosen.against))
        image = labels.find_image(engine, image)
    with engine.watched("the benchmark") as require_engine:
        report = session.bench(engine, python or image, rows, chosen, progress, require_engine)
        if why := reporting.emptiness(report):
            if report.interrupted:
                raise Interrupted("interrupted before anything was measured; no report was written")
            raise UsageError(
                f"nothing was measured: {why}",
                hint="no report was written; choose other experiments (--only) or give more time (--budget)",
            )
        # Neither a disk that has become full meanwhile nor a reader that is gone must cost what was measured.
        try:
            if json:
                sys.stdout.write(records.to_json(report))
            else:
                reporting.show_report(report)
        finally:
            path = write_report(report, reports, name, str(chosen.model.get("model", "")))
        if not json:
            print(f"report {path.with_suffix('.html')}", file=sys.stderr)
        if report.interrupted:
            raise Interrupted(f"interrupted; the results so far are in {path}")


def write_report(report: BenchReport, folder: Path, name: str = "", model: str = "") -> Path:
    """Write JSON and a page, each whole or not at all; return the path of the JSON. `name`, `model`: see report_path.

    Raises UsageError if a file cannot be written, DiskFull if no space is left.
    """
    target = reporting.report_path(report, folder, name, model)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.replace_file(target, records.to_json(report))
        return files.replace_file(target.with_suffix(".html"), reporting.to_html(report)).with_suffix(".json")


def show_rows(rows: Sequence[Experiment], chosen: Settings, *, json: bool) -> None:
    """Print the experiments with what they compare, and on stderr for how long each would run."""
    if json:
        sys.stdout.write(records.to_json(rows))
    else:
        reporting.show_experiments(rows, chosen.model, quick=chosen.quick)
    weights = [
        sum(row.seconds(case) for case in row.cases(chosen.quick) if case.needs != "against" or chosen.against)
        for row in rows
    ]
    second = chosen.budget / (sum(weights) or 1)
    shares = ", ".join(f"{row.name} {second * weight:.0f} s" for row, weight in zip(rows, weights, strict=True))
    print(f"of {chosen.budget:.0f} s: {shares}", file=sys.stderr)
