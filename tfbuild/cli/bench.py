"""The verb that measures."""

from typing import Any

from tfbuild.cli.options import JSON
from tfbuild.cli.verbs import verb
from tfbuild.errors import UsageError
from tfbuild.util.files import REPORTS


@verb(
    {
        "only": ([], "only this experiment (repeatable)", "NAME"),
        "quick": (False, "about a minute: one or two cases of the main experiments"),
        "model": ([], "this whole model, such as resnet50, at its real size, and its reading of JPEGs (repeatable)"),
        "batch-size": ("", "items per step of --model (default: each model's own)", "N"),
        "full": (False, "up to fifty minutes: every case, with the narrowest intervals"),
        "budget": ("", "time limit of the whole run, such as 90s, 5m or 1h (default: 5m)", "TIME"),
        "against": ("", "image of the same release, for the experiments `isa` and `all` to compare with", "IMAGE"),
        "name": ("", "name of the report, reports/NAME.json (default: bench-IDENTIFIER, which replaces an older one)"),
        "list": (False, "only list the experiments: their questions, what is compared, and for how long"),
    },
    JSON,
    examples=(
        "invoke bench tfbuild:2.21.0-mkl-py3.11-f16c",
        "invoke bench --list",
        "invoke bench tensorflow/tensorflow:2.20.0 --only jpeg",
        "invoke bench tensorflow/tensorflow:2.20.0 --model resnet50",
    ),
)
def bench(
    image: str = "", *, only: list[str], name: str, json: bool, model: list[str], batch_size: str, **options: Any
) -> None:
    """Measure the performance guide's claims in IMAGE on this machine."""
    from tfbuild.bench import command

    listed = options.pop("list")
    settings = command.settings(**options)
    rows = command.rows_of(only, settings, model, batch_size)
    if listed:
        command.show_rows(rows, settings, json=json)
    elif image:
        command.run(image, rows, settings, REPORTS, json=json, name=name)
    else:
        raise UsageError("bench needs IMAGE", hint="invoke bench IMAGE, or invoke bench --list")
