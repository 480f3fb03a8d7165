"""The verbs that measure, and those that read what was measured."""

from typing import Any

from tfbuild.cli.options import JSON, REPORTS, certificates
from tfbuild.cli.verbs import verb
from tfbuild.errors import UsageError


@verb(
    {
        "only": ([], "this experiment (again for more)"),
        "quick": (False, "about a minute: one case or two of the main experiments"),
        "full": (False, "up to fifty minutes: every case, the narrowest intervals"),
        "budget": ("", "5m: seconds, minutes or hours that the whole run may take (default: 5m)"),
        "model": ([], "this whole model, such as resnet50, at its real size and on JPEGs too (again for more)"),
        "batch-size": ("", "items a step of --model (default: each model's own)"),
        "command": (
            "",
            "'python train.py': watch a script of your own by TensorFlow's profiler, and name its bottleneck",
        ),
        "mount": ("", "the folder in which --command runs, and which it can only read (default: the current one)"),
        "against": ("", "another image of the same release, which the experiments `isa` and `all` compare with"),
        "name": ("", "of the report: reports/NAME.json (default: bench-IDENTIFIER, in place of an older one)"),
        "pyperf": ("", "write all samples to this file too, for python -m pyperf stats or compare_to"),
        "list": (False, "only say what can be measured, and why"),
        "dry-run": (False, "only say what would be measured, and for how long"),
    },
    JSON,
)
def bench(
    image: str = "",
    *,
    only: list[str],
    name: str,
    pyperf: str,
    list: bool,
    dry_run: bool,
    json: bool,
    model: list[str],
    batch_size: str,
    **options: Any,
) -> None:
    """Measure the performance guide's claims in IMAGE on this machine. --list and --dry-run need none."""
    from tfbuild.bench import command

    chosen = command.settings(**options, ca=certificates(""))
    if list or dry_run:
        command.show_rows(only, chosen, json=json, dry_run=dry_run, named=model, batch=batch_size)
    elif not image:
        raise UsageError("bench needs an image", hint="invoke bench IMAGE; what can be measured: invoke bench --list")
    else:
        command.run(image, only, chosen, REPORTS, json=json, name=name, pyperf=pyperf, named=model, batch=batch_size)


@verb(
    {
        "fail-if": ([], "'throughput<0.95': then leave with code 28 (or cpu, or an experiment's name; again for more)"),
        "html": ("", "write it to this file too, as a page that needs no network"),
    },
    JSON,
)
def compare(*reports: str, fail_if: list[str], html: str, json: bool) -> None:
    """Benchmarks side by side, each against the first of REPORTS...: images, machines or releases."""
    from tfbuild.bench import command

    command.compare(reports, fail_if, html, json=json)


@verb(
    {
        "env-file": ("", "write the environment there, for docker run --env-file"),
        "html": ("", "write the whole report to this file, as a page that needs no network"),
        "pyperf": ("", "write all samples to this file, for python -m pyperf stats or compare_to"),
    },
    JSON,
)
def advise(report: str, *, env_file: str, html: str, pyperf: str, json: bool) -> None:
    """Settings and lines of code for this machine, each with the gain that the benchmark REPORT has for it."""
    from tfbuild.bench import command

    command.export(report, html=html, pyperf=pyperf)
    command.advise(report, env_file, json=json)
