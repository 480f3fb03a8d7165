"""The pages and tables of the manual, and the actions' inputs, generated from the code; `invoke docs` writes them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tfbuild.cli.verbs import Verb
from tfbuild.plan import support
from tools.reference import action, exit_codes, json_fields, labels, readme, verbs

Page = Callable[[], str]


def pages(of_clone: Mapping[str, Verb]) -> dict[Path, Page]:
    """Return what makes the text of each page, by its path in the repository; `of_clone`: verbs that need a clone."""
    return {
        support.FILE: lambda: support.to_markdown(support.rows()),
        exit_codes.FILE: exit_codes.to_markdown,
        json_fields.FILE: json_fields.to_markdown,
        labels.FILE: labels.to_markdown,
        verbs.FILE: lambda: verbs.to_markdown(of_clone),
        readme.FILE: readme.to_markdown,
    } | {one.file: one.to_yaml for one in action.ACTIONS}
