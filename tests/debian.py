"""Debian's archive, for tests: read by apt with lists of its own, so that the system's are left alone.

The Release file's signature is checked, and by it every digest. Nothing is installed: packages are unpacked.
"""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tfbuild.engine import daemon
from tfbuild.pipeline import base_image

SECONDS = 900.0
# Debian 13: newer than the engine that tfbuild starts on Debian 12. Its programs of Go ask for no newer libc.
NEWER = "trixie"
# Debian's newest packages; not all of them run here.
NEWEST = "sid"


class Unavailable(Exception):
    """Something of the archive cannot be had."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfbuild"


def unpack(folder: Path, *packages: str, suite: str = NEWER) -> Path:
    """Put the files of a suite's `packages`, without their dependencies, into `folder`. Skips where there is no apt."""
    try:
        for file in _downloaded(suite, *packages):
            subprocess.run(["dpkg", "--extract", file, folder], check=True)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{' '.join(packages)} cannot be had: {error}")
    return folder


def buildx(folder: Path) -> Path:
    """Docker's plugin, unpacked into `folder`."""
    return unpack(folder, "docker-buildx") / "usr" / "libexec" / "docker" / "cli-plugins" / "docker-buildx"


@functools.cache
def _downloaded(suite: str, *packages: str) -> tuple[Path, ...]:
    """Their files; apt leaves alone what was downloaded before and is the same still."""
    folder = cache() / suite
    folder.mkdir(parents=True, exist_ok=True)
    command = apt(folder, suite)
    with tempfile.TemporaryDirectory() as nothing:
        output = run([*command, "--print-uris", "download", *packages], Path(nothing))
    run([*command, "download", *packages], folder)
    return tuple(folder / line.split()[1] for line in output.splitlines() if line.startswith("'"))


def apt(work: Path, suite: str, *, kind: str = "deb") -> list[str]:
    """apt-get, with the lists of `suite` in `work`, up to date. `kind`: deb-src for sources. Raises Unavailable."""
    sources = work / "sources.list"
    sources.write_text(f"{_source(suite, kind)}\n", encoding="utf-8")
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        # A mirror's copy of sid may be older than its Release file claims to hold.
        "Acquire::Check-Valid-Until": "false",
        "APT::Sandbox::User": "root",
        # An update that got nothing is not a success.
        "APT::Update::Error-Mode": "any",
    }
    command = ["apt-get", "--quiet", *(f"-o{name}={value}" for name, value in options.items())]
    run([*command, "update"], work)
    return command


def _source(suite: str, kind: str) -> str:
    """This machine's own Debian mirror, asked for another suite."""
    release = daemon.this_system().get("VERSION_CODENAME", "")
    main = [line for line in base_image.sources(release) if f" {release} " in line] if release else []
    if not main:
        raise Unavailable("this system has no package source of a Debian release")
    return main[0].replace("deb ", f"{kind} ", 1).replace(f" {release} ", f" {suite} ", 1)


def run(command: list[str], folder: Path) -> str:
    """What the command prints; Unavailable where it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} could not get it from Debian: {done.stderr.strip()[-500:]}")
    return done.stdout


def cosign_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pairs of keys, `ours` and `theirs`, with the real cosign on PATH."""
    programs = unpack(folder / "cosign", "cosign") / "usr" / "bin"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("COSIGN_PASSWORD", "for a test only")
    keys = folder / "the keys"
    keys.mkdir()
    for name in ("ours", "theirs"):
        command = ["cosign", "generate-key-pair", "--output-key-prefix", name]
        subprocess.run(command, cwd=keys, check=True, capture_output=True)
    return keys
