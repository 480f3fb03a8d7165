"""A command in a terminal as SVG: it runs in a pseudo-terminal, an emulator keeps the screen, and Rich draws it."""

import os
import pty
import re
import select
import struct
import subprocess
from dataclasses import dataclass
from fcntl import ioctl
from io import StringIO
from itertools import groupby
from math import ceil
from pathlib import Path
from termios import TIOCSWINSZ
from xml.sax.saxutils import escape

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 72
# Nothing scrolls off; empty lines at the end are left out.
LINES = 400
MARGIN = 14
# Background, text, eight colours and their bright forms.
THEME = TerminalTheme(
    (27, 31, 36),
    (225, 228, 232),
    [
        *((140, 149, 159), (255, 123, 114), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (225, 228, 232)),
    ],
    [
        *((140, 149, 159), (255, 161, 152), (126, 231, 135), (242, 204, 96)),
        *((165, 214, 255), (226, 197, 255), (179, 240, 255), (255, 255, 255)),
    ],
)
# Rich's own format names fonts on another server; pages here request nothing from elsewhere.
FORMAT = """\
<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>@TITLE</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#1b1f24" width="100%" height="100%" rx="8"/>
<g transform="translate(14, 14)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
# What stands before a step of tfbuild's progress that runs, and before one that is done.
RUNNING, DONE = tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), "✓"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a terminal shows at the end of a command, and what it showed `midway`, while a step ran."""

    lines: list[Text]
    midway: list[Text]
    exit_code: int


def record(command: str, *, folder: Path) -> Recording:
    """Run a shell command in `folder` to its end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LANG": "C.UTF-8"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        ["bash", "-c", command], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env, start_new_session=True
    ) as process:
        os.close(slave)
        frames = _read(master, stream, screen)
    os.close(master)
    midway = frames[sorted(frames)[len(frames) // 2]] if frames else []
    return Recording(lines=to_text(screen), midway=midway, exit_code=process.returncode)


def _read(master: int, stream: pyte.ByteStream, screen: pyte.Screen) -> dict[int, list[Text]]:
    """Feed the terminal until the program closes it.

    Return, by the number of steps that are done, the last frame in which another one ran.
    """
    frames: dict[int, list[Text]] = {}
    while True:
        select.select([master], [], [])
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            return frames
        if not data:
            return frames
        stream.feed(data)
        lines = to_text(screen)
        if any(line.plain.startswith(RUNNING) for line in lines):
            frames[sum(line.plain.startswith(DONE) for line in lines)] = lines


def to_text(screen: pyte.Screen) -> list[Text]:
    """Return the screen's lines with their colours, without empty ones at the end."""
    lines = [_line(screen, number) for number in range(max(screen.buffer, default=-1) + 1)]
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _line(screen: pyte.Screen, number: int) -> Text:
    row = screen.buffer[number]
    cells = [row[column] for column in range(screen.columns)]
    runs = (("".join(cell.data for cell in run), style) for style, run in groupby(cells, key=_style))
    text = Text.assemble(*runs, no_wrap=True, end="")
    text.rstrip()
    return text


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, italic=cell.italics, reverse=cell.reverse
    )


def _colour(name: str) -> str | None:
    """Return Rich's name of one of pyte's colours."""
    if name == "default":
        return None
    if len(name) == 6 and set(name) <= set("0123456789abcdef"):
        return f"#{name}"
    return {"brown": "yellow"}.get(name.removeprefix("bright"), name.removeprefix("bright"))


def to_svg(title: str, command: str, lines: list[Text]) -> str:
    """Draw the lines below the command that printed them."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for line in (prompt(command), *lines):
        console.print(line, soft_wrap=True, highlight=False)
    svg = console.export_svg(theme=THEME, code_format=FORMAT).replace("@TITLE", escape(title))
    svg = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', _with_margins, svg, count=1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def prompt(command: str) -> Text:
    """Return a command behind a shell's prompt."""
    return Text.assemble(("$ ", "bright_green"), (command, "bold"))


def _with_margins(found: "re.Match[str]") -> str:
    return f'viewBox="0 0 {ceil(float(found[1])) + 2 * MARGIN} {ceil(float(found[2])) + 2 * MARGIN}"'
