"""A copy of this repository as it stands, committed anew: what a clean clone of it would be."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from shutil import copy2

ROOT = Path(__file__).parent.parent


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def copy(folder: Path, *beginnings: str, compiled: bool = True) -> Path:
    """Copy the files whose paths have one of these beginnings, or all.

    `compiled`: with their byte code, without which the first command there takes three times as long.
    """
    folder.mkdir()
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    names = [name for name in listed.split("\0") if name and name.startswith(beginnings or "")]
    for name in names:
        _copy_file(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "before")
    for name in names if compiled else ():
        if name.endswith(".py"):
            _copy_file(*(Path(cache_from_source(str(root / name))) for root in (ROOT, folder)))
    return folder


def runnable(folder: Path, *beginnings: str) -> Path:
    """Copy such files to a checkout that uses the environment of this one."""
    copy(folder, *beginnings)
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return folder


def _copy_file(source: Path, target: Path) -> None:
    """Copy the file if there is one, with its time: byte code is of a source of the same time."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        copy2(source, target)


# The copy's code is found first, in the working folder; the tests' is this repository's.
SERVE = """
import json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.commandline import answer
for line in sys.stdin:
    done = answer(*json.loads(line), cwd=Path.cwd(), root=Path.cwd())
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of this repository whose commands all run in one process: to start takes longer than most of them."""

    folder: Path
    process: "subprocess.Popen[str]"

    def invoke(self, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)
        done = subprocess.CompletedProcess(words, *json.loads(self.process.stdout.readline()))
        assert done.returncode == code, done.stderr
        return done


@contextmanager
def serving(folder: Path) -> Iterator[Copy]:
    """Serve the commands of a copy. Change its files before this: facts are read once."""
    command = [sys.executable, "-c", SERVE, str(ROOT)]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Copy(folder=folder, process=process)
