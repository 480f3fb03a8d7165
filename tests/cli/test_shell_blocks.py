"""The shell blocks of the manual: every command is one that tfbuild takes, and those that need nothing are run.

A block is run unless a comment above it says why not (`<!-- not run: REASON -->`). Commands of tfbuild in such a block
are still parsed, with all of their options. `build` and `bundle` are run with --dry-run.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commandline import ROOT, invoke
from tests.cpu.machines import machine
from tfbuild.cli import VERBS, command_line
from tools import verbs as development

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "dockerfiles").glob("*.md"))
    if "```sh" in path.read_text(encoding="utf-8") or "```console" in path.read_text(encoding="utf-8")
)
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<kind>sh|console)\n(?P<text>.*?)^```", re.M | re.S)
PROGRAMS = ("invoke", ".venv/bin/invoke", "tfbuild")
DRY = {"build", "bundle"}
BETWEEN = ("&&", "||", "|", ";")


@dataclass(frozen=True, kw_only=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str
    why: str

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        lines = self.text.replace("\\\n", " ").splitlines()
        shown = [line.removeprefix("$ ") for line in lines if self.kind == "sh" or line.startswith("$ ")]
        return tuple(command for line in shown for command in split(line))

    @property
    def output(self) -> str:
        """Return what a console block shows below its commands, as one line."""
        return " ".join(line for line in self.text.splitlines() if not line.startswith("$ "))

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def split(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a line, without comments."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command: list[str] = []
    for word in words:
        if word in BETWEEN:
            yield tuple(command)
            command = []
        else:
            command.append(word)
    if command:
        yield tuple(command)


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text"))
            yield Block(page=page, line=line, kind=found["kind"], text=found["text"], why=found["why"] or "")


def without_redirection(command: Sequence[str]) -> list[str]:
    return list(command[: command.index(">")]) if ">" in command else list(command)


EVERY = tuple(blocks())
TAKEN = [(block, command) for block in EVERY for command in block.commands if command[0] in PROGRAMS]


@pytest.mark.parametrize(("block", "command"), TAKEN, ids=lambda part: str(part) if isinstance(part, Block) else "")
def test_a_command_is_one_that_tfbuild_takes(block: Block, command: tuple[str, ...]) -> None:
    words = without_redirection(command)[1:]
    if not {"--help", "--list", "--version", "--print-completion-script"} & {*words}:
        command_line.calls(words, {**VERBS, **development.VERBS})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with what the manual's commands name: recorded machines, and a benchmark's reports."""
    (tmp_path / "recorded").mkdir()
    for name in ("unknown-sapphirerapids", "rhel7-haswell", "ubuntu20.04-zen3"):
        (tmp_path / "recorded" / name).write_text(machine(name).cpuinfo())
    return tmp_path


@pytest.mark.parametrize("block", [block for block in EVERY if not block.why], ids=str)
def test_the_commands_work(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = ""
    for command in block.commands:
        if command[0] == "export":
            monkeypatch.setenv(*command[1].split("=", 1))
        else:
            printed = run(command, folder)
    if block.kind == "console":
        assert printed.split() == block.output.split()


def run(command: Sequence[str], folder: Path) -> str:
    words = without_redirection(command)[1:]
    done = invoke(*words, *(["--dry-run"] if words[0] in DRY else []), cwd=folder)
    if ">" in command:
        (folder / command[-1]).write_text(done.stdout)
    return done.stdout
