"""Render pages that work offline, without JavaScript, on phones and in dark mode. All text of reports is escaped."""

from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tfbuild.errors import fit
from tfbuild.util import installation
from tfbuild.util.quantities import counted

TEMPLATES = installation.templates()


def render(template: str, **names: object) -> str:
    """Render `template` ("bench/report.html") as one page that loads nothing else."""
    return _environment().get_template(f"{template}.j2").render(**names)


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
    jinja.filters |= {"prose": prose, "counted": counted, "fit": fit}
    return jinja
