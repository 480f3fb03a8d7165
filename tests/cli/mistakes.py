"""What people get wrong on the command line, and what it says then: the transcript in tests/data/mistakes.txt.

After a change on purpose, `python -m tests.cli.mistakes` writes the answers again; read each as a stranger would.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.commandline import answer

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "mistakes.txt"
COMMAND = re.compile(r"^\$ ((?:[A-Z_]+=\S* )*)invoke ?(.*)$")
# Neither an engine nor a registry answers, and no setting of the user counts.
NOWHERE = {"DOCKER_HOST": "unix:///nonexistent/no-engine.sock", "TFBUILD_REGISTRY": "", "SSL_CERT_FILE": ""}
# Files for the mistakes that are in a file and not in a word, in the folder in which the commands run.
FILES: Mapping[str, str] = {
    "page.html": "<html><body>404 Not Found</body></html>\n",
    "empty.txt": "",
    "notes.txt": "nothing about a CPU\n",
    "cut.txt": "processor : 0\nvendor_id : GenuineIntel\nmodel name : made up\nflags : fpu lm sse ss",
    "broken.json": '{"schema": ',
    "other.json": '{"schema": "somebody.else/1"}\n',
    "hosts/web1": "processor : 0\nvendor_id : GenuineIntel\nmodel name : made up\nflags : fpu lm sse sse2\n",
    "unknown.toml": 'relase = "2.20"\n',
    "number.toml": "python = 3.10\n",
    "empty.toml": 'release = ""\n',
    "row.toml": '[[build]]\nrelease = "9.9"\n',
    "run.toml": "[[build]]\njobs = 8\n",
    "rows.toml": '[[build]]\nwheel = "official"\nplatform = "linux/amd64"\n',
    "folder/pyproject.toml": '[project]\nname = "tfbuild-user"\n',
    "not-a-wheel.whl": "PK",
    "numpy-2.0.0-cp312-cp312-manylinux_2_17_x86_64.whl": "PK",
}


@dataclass(frozen=True)
class Mistake:
    """A command line, the environment before it, and what it prints: stdout and stderr, then the exit code."""

    line: str
    said: str

    def say(self, folder: Path) -> str:
        """Run it in `folder`, and return what it says now."""
        match = COMMAND.match(self.line)
        assert match, self.line
        env = dict(setting.split("=", 1) for setting in match[1].split())
        words = [word.replace("~", str(folder)) for word in shlex.split(match[2])]
        done = answer(*words, cwd=folder, env={**NOWHERE, **env})
        text = f"{done.stdout}{done.stderr}".replace(str(folder), "~").rstrip("\n")
        return f"{text}\nexit code {done.returncode}"


def prepare(folder: Path) -> None:
    """Write the files that the mistakes are about."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def mistakes() -> Iterator[Mistake]:
    """Read the transcript: blocks of a command and its answer, after an empty line or a heading."""
    for block in re.split(r"\n\n+", FILE.read_text(encoding="utf-8")):
        line, _, said = block.strip("\n").partition("\n")
        if line.startswith("$ "):
            yield Mistake(line, said)


def renew() -> None:
    """Write the answers again, and keep the commands and headings."""
    os.environ["NO_COLOR"] = "1"
    blocks = re.split(r"\n\n+", FILE.read_text(encoding="utf-8").strip("\n"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        prepare(folder)
        lines = (block.partition("\n")[0] for block in blocks)
        texts = [
            f"{line}\n{Mistake(line, '').say(folder)}" if line.startswith("$ ") else block
            for line, block in zip(lines, blocks, strict=True)
        ]
    FILE.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
