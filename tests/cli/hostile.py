"""Every option and every positional word of every verb with hostile values, and what must hold of each command."""

import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import pytest

from tests.commandline import ROOT, answer
from tests.facts import newest
from tfbuild import cli
from tfbuild.cli import command_line
from tfbuild.cli.verbs import Verb
from tfbuild.engine import daemon
from tfbuild.oci import transport
from tools import testing
from tools import verbs as development

VERBS: Mapping[str, Verb] = {**cli.VERBS, **development.VERBS}
ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)
CODES = {int(code) for code in ROW.findall((ROOT / "docs" / "reference" / "exit-codes.md").read_text())}
HOSTILE = (
    "", " ", "x", "0", "-1", "9" * 5000, "2." + "9" * 5000, "x" * 300, "x" * 100_000, "../..", "../x", "/dev/null",
    "$(touch pwned)", "`touch pwned`", ";touch pwned", "'\"\\", "a\nb", "a\rb", "\x1b[2J", "\x07", "\udcff", "\u202e",
    "\N{FULLWIDTH DIGIT TWO}.\N{FULLWIDTH DIGIT TWO}1", "\N{CYRILLIC SMALL LETTER A}", "\N{KELVIN SIGN}",
    "NAME=VALUE", "=", "a=b=c", "a=$(touch pwned)", "http://[::1", "grpc://[::1", "tcp://[::1", "unix://", "[", "{}",
    "%s", "{x}", "--", "-x", "--help=x", "#", "*",
)  # fmt: skip
# Values that some option takes: they come further, to what else is wrong.
LIKELY = (
    "2.21", "2.21.0", "mkl", "cuda", "cpu,mkl", "x86-64-v3", "avx2,fma", "gcc-12", "3.11", "official", "openmp", "8.0",
)  # fmt: skip
NOWHERE = "127.0.0.1:1/us/x"
REGISTRY = {"registry": NOWHERE}
# Options beside the tried one, with which its value is read; True: a switch. What a verb would do to the machine or to
# the project, it only rehearses.
BESIDE: Mapping[str, Mapping[str, str | bool]] = {
    "build": {"dry-run": True}, "bundle": {"dry-run": True}, "push": {"access": True, **REGISTRY},
    "pull": {"dry-run": True, **REGISTRY}, "matrix": {"only": newest.official(), "format": "bake"},
    "generate": {"check": True}, "test": {"path": "tests/cli/test_fuzz.py"},
}  # fmt: skip
SECONDS = 60
MOST_TEXT = 20_000
# Thousands of commands sync what they write, which a disk takes longer for than all the rest.
MEMORY_FOLDER = "/dev/shm"


@dataclass(frozen=True)
class Pair:
    """A verb and the option that is tried, or the place of a positional word."""

    verb: Verb
    option: str = ""
    place: int = 0

    @property
    def name(self) -> str:
        return f"{self.verb.name} --{self.option}" if self.option else f"{self.verb.name} {self.place}"

    @property
    def switch(self) -> bool:
        return bool(self.option) and self.verb.options[self.option].switch

    def words(self, value: str) -> list[str]:
        """The command with `value`."""
        beside = BESIDE.get(self.verb.name, {}) if self.option else {}
        options = [f"--{name}" if text is True else f"--{name}={text}" for name, text in beside.items()
                   if name != self.option]  # fmt: skip
        places = [
            value if not self.option and place == self.place else "x" for place in range(len(self.verb.positional))
        ]
        own = [f"--{self.option}={value}"] if self.option else []
        return [self.verb.name, *places, *options, *own]


def pairs(verb: Verb) -> Iterator[Pair]:
    yield from (Pair(verb, option=option) for option in verb.options)
    yield from (Pair(verb, place=place) for place in range(len(verb.positional)))


def run(words: list[str]) -> None:
    """Run a command without Invoke, which takes longer than most verbs."""
    command_line.main(words, VERBS)


EVERY = tuple(pair for verb in VERBS.values() for pair in pairs(verb))


# --- what a command does ----------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """What a command writes and starts. It reaches no network."""

    written: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            raise ConnectionRefusedError if event == "socket.connect" else socket.gaierror("no network in this test")
        if event in STARTS and str(arguments[0]) not in ABOUT_THIS_MACHINE:
            self.started.append(f"{event} {arguments[:2]!r}")
        flags = arguments[2] if event == "open" else os.O_CREAT if event in WRITES else 0
        path = arguments[WRITES.get(event, 0)] if flags else 0
        # A name in a folder that is open is what Python removes recursively.
        inside = event != "open" and isinstance(arguments[-1], int) and arguments[-1] >= 0
        if isinstance(flags, int) and flags & WRITING and isinstance(path, str | bytes | os.PathLike) and not inside:
            self.written.add(os.path.abspath(os.fsdecode(path)))

    def outside(self, folders: tuple[Path, ...]) -> set[str]:
        """The files written elsewhere than in `folders`, without what Python itself keeps of modules."""
        paths = {path for path in self.written if path != os.devnull and "__pycache__" not in path}
        return {path for path in paths if not any(Path(path).is_relative_to(folder) for folder in folders)}


STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork")
# They are started by a whole path, or found in the parent's PATH, and get no value.
ABOUT_THIS_MACHINE = ("/lib64/ld-linux-x86-64.so.2", "file", "uname")
# The place of the path that changes, among the arguments of an event. The last argument of `open` is no folder.
WRITES = {"open": 0, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WATCHING: list[Watch] = []


@cache
def install_hook() -> None:
    """Python cannot remove a hook: without a watch it does nothing."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if WATCHING:
            WATCHING[-1](event, arguments)

    sys.addaudithook(hook)


@contextmanager
def watched() -> Iterator[Watch]:
    install_hook()
    watch = Watch()
    WATCHING.append(watch)
    try:
        yield watch
    finally:
        WATCHING.remove(watch)


class TooLong(BaseException):
    """Not caught by code that catches every Exception."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def end(_: int, __: FrameType | None) -> None:
        raise TooLong(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def disarmed(folder: Path) -> Iterator[None]:
    """Nothing acts on this machine: no programs are found, and two verbs get no further than to what they would start.

    `engine` has its own place for an engine, and finds none; to install or to start one is a failure. `test` starts no
    tests.
    """
    with ExitStack() as stack:
        for module, name, value in (
            (daemon, "FOLDER", folder / "engine"),
            (daemon, "_script", lambda *_, **__: pytest.fail("an engine would be installed or started")),
            (testing, "provide", _nothing),
            (testing, "_pytest", _nothing),
            (testing, "_step", _nothing),
            (transport, "BACKOFF", 0),
            (tempfile, "tempdir", str(folder / "tmp")),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def _nothing(*_: object, **__: object) -> None:
    pass


@dataclass(frozen=True)
class Place:
    """The folder in which commands run: two levels down, so that a way out of it can be seen."""

    root: Path
    work: Path
    tmp: Path
    env: Mapping[str, str]


@pytest.fixture
def place() -> Iterator[Place]:
    """A place for many commands. Neither an engine nor a registry answers, and no program is found.

    Whatever the commands are given, none may start what a value names.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER if Path(MEMORY_FOLDER).is_dir() else None) as name:
        root = Path(name).resolve()
        work, tmp = root / "a" / "b" / "work", root / "tmp"
        work.mkdir(parents=True)
        tmp.mkdir()
        env = dict.fromkeys(("DOCKER_CONTEXT", "TFBUILD_REGISTRY", "SSL_CERT_FILE"), "")
        env |= {"DOCKER_HOST": "unix:///nonexistent", "PATH": str(root / "none"), "HOME": str(work)}
        yield Place(root, work, tmp, env)
        assert not list(root.rglob("pwned*"))


def try_pair(pair: Pair, value: str, where: Place) -> None:
    """Run a command, and check how it ends, what it prints, and where it writes."""
    with disarmed(where.root), watched() as watch, limited(SECONDS):
        done = answer(*pair.words(value), cwd=where.work, env=where.env)
    assert done.returncode in CODES, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.replace("\n", " ").replace("\t", " ").isprintable(), done.stderr[-2000:]
    assert done.stderr.count("error: ") <= 1 or done.returncode == 1, done.stderr[-2000:]
    assert len(done.stderr) < MOST_TEXT
    assert not watch.started, watch.started
    # The value of --output says where to write.
    allowed = (where.root,) if pair.option == "output" else (where.work, where.tmp)
    assert not watch.outside(allowed), watch.outside(allowed)
