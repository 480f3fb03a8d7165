"""Render pages that work offline, without JavaScript, on phones and in the dark. All text of reports is escaped."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tfbuild.util import installation
from tfbuild.util.files import refusal, replace_file

TEMPLATES = installation.templates()


def render(template: str, **names: object) -> str:
    """Render `template` ("bench/report") as one page that loads nothing else."""
    return _environment().get_template(f"{template}.html.j2").render(**names)


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


@cache
def _environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["prose"] = prose
    return jinja
