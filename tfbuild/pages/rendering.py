"""Render pages that work offline, without JavaScript, on phones and in dark mode. All text of reports is escaped."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tfbuild.errors import fit
from tfbuild.util import installation
from tfbuild.util.files import refusal, replace_file
from tfbuild.util.quantities import counted
from tfbuild.util.terminal import foreign_cell

TEMPLATES = installation.templates()


def render(template: str, **names: object) -> str:
    """Render `template` ("bench/report.html", "bench/report.md") as one page that loads nothing else."""
    return _environment().get_template(f"{template}.j2").render(**names)


def write(text: str, path: Path, option: str = "--html") -> None:
    """Write the file whole or not at all; raise UsageError if it cannot be written, DiskFull if no space is left."""
    try:
        replace_file(path, text)
    except OSError as error:
        raise refusal(error, path, f"{option} {path}: {error.strerror}", "name a file that can be written") from error


def prose(text: str) -> Markup:
    """Return a sentence for a page, with `code` as an element and verbs as they are typed here; the rest is escaped."""
    parts = [escape(part) for part in installation.as_typed(text).split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    coded = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup().join(coded)


def markdown_code(line: str) -> str:
    """Return a line of code for a cell of a Markdown table; only a bar ends it there."""
    return f"`{' '.join(line.split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


@cache
def _environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: not (name or "").endswith(".md.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"prose": prose, "typed": installation.as_typed, "counted": counted, "fit": fit}
    jinja.filters |= {"cell": foreign_cell, "code": markdown_code}
    return jinja
