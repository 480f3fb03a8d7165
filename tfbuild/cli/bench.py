"""The verbs that measure, and those that read the measurements."""

from typing import Any

from tfbuild.cli.options import JSON, certificates, require_extra
from tfbuild.cli.verbs import verb
from tfbuild.util.files import REPORTS


@verb(
    {
        "only": ([], "only this experiment (repeatable)", "NAME"),
        "quick": (False, "about a minute: one or two cases of the main experiments"),
        "model": ([], "this whole model, such as resnet50, at its real size, and its reading of JPEGs (repeatable)"),
        "batch-size": ("", "items per step of --model (default: each model's own)", "N"),
        "full": (False, "up to fifty minutes: every case, with the narrowest intervals"),
        "budget": ("", "time limit of the whole run, such as 90s, 5m or 1h (default: 5m)", "TIME"),
        "command": ("", "profile your own script, such as 'python train.py', and name its bottleneck"),
        "mount": ("", "folder in which --command runs, mounted read-only (default: the current one)", "FOLDER"),
        "against": ("", "image of the same release, for the experiments `isa` and `all` to compare with", "IMAGE"),
        "name": ("", "name of the report, reports/NAME.json (default: bench-IDENTIFIER, which replaces an older one)"),
        "pyperf": ("", "also write all samples to this file, for python -m pyperf stats or compare_to", "FILE"),
        "dry-run": (False, "only show what would be compared, for which question and how long; IMAGE need not exist"),
    },
    JSON,
    examples=(
        "invoke bench tfbuild:2.21.0-mkl-py3.11-f16c",
        "invoke bench tfbuild:2.21.0-mkl-py3.11-f16c --dry-run",
        "invoke bench tensorflow/tensorflow:2.20.0 --only jpeg",
        "invoke bench tensorflow/tensorflow:2.20.0 --model resnet50",
    ),
)
def bench(
    image: str,
    *,
    only: list[str],
    name: str,
    pyperf: str,
    dry_run: bool,
    json: bool,
    model: list[str],
    batch_size: str,
    **options: Any,
) -> None:
    """Measure the performance guide's claims in IMAGE on this machine."""
    from tfbuild.bench import command

    settings = command.settings(**options, ca=certificates(""))
    if not dry_run:
        require_extra("bench", "a benchmark")
    rows = command.rows_of(only, settings, model, batch_size)
    if dry_run:
        command.show_rows(rows, settings, json=json)
    else:
        command.run(image, rows, settings, REPORTS, json=json, name=name, pyperf=pyperf)


@verb(
    {
        "fail-if": (
            [],
            "condition such as 'throughput<0.95' for exit code 28; also cpu, or an experiment's name (repeatable)",
        ),
        "also": ([], "another report to compare with BASELINE (repeatable)", "PATH"),
        "html": ("", "also write the comparison to this file, as an HTML page that works offline", "FILE"),
    },
    JSON,
    examples=(
        "invoke compare reports/bench-before.json reports/bench-after.json",
        "invoke compare before.json after.json --fail-if 'throughput<0.95'",
    ),
)
def compare(baseline: str, report: str, *, fail_if: list[str], also: list[str], html: str, json: bool) -> None:
    """Compare the benchmark REPORT of an image, a machine or a release with that of a BASELINE."""
    from tfbuild.bench import command

    if html:
        require_extra("bench", "--html")
    command.compare((baseline, report, *also), fail_if, html, json=json)


@verb(
    {
        "env-file": ("", "write the environment to this file, for docker run --env-file"),
        "html": ("", "write the whole report to this file, as an HTML page that works offline", "FILE"),
        "pyperf": ("", "write all samples to this file, for python -m pyperf stats or compare_to", "FILE"),
    },
    JSON,
    examples=(
        "invoke advise reports/bench-2.21.0-mkl-py3.11-f16c.json",
        "invoke advise reports/bench-before.json --html report.html",
    ),
)
def advise(report: str, *, env_file: str, html: str, pyperf: str, json: bool) -> None:
    """Suggest settings and code for this machine, each with its gain in the benchmark REPORT."""
    from tfbuild.bench import command

    if html or pyperf:
        require_extra("bench", "--html" if html else "--pyperf")
    command.advise(report, env_file=env_file, html=html, pyperf=pyperf, json=json)
