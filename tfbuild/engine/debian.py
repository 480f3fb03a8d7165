"""Debian and its derivatives: recognise them, read their package sources, install packages with apt."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfbuild.errors import TfbuildError
from tfbuild.util.process import last_lines, logged
from tfbuild.util.progress import Progress

APT = Path("/etc/apt")
ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)")


class AptFailed(TfbuildError):
    """apt could not install a package."""


def this_system() -> dict[str, str]:
    """Return what this machine's os-release says; an empty dict where there is none (macOS)."""
    try:
        return platform.freedesktop_os_release()
    except (OSError, ValueError):
        return {}


def has_apt(system: dict[str, str]) -> bool:
    """Return whether the system is Debian, Ubuntu or a derivative of them."""
    return not {"debian", "ubuntu"}.isdisjoint([system.get("ID", ""), *system.get("ID_LIKE", "").split()])


def install(packages: Sequence[str], log: Path, progress: Progress) -> None:
    """Install packages without prompts or recommended packages. Needs root. Raises AptFailed."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    with progress.step(f"apt: install {' '.join(packages)}"):
        # A broken third-party source can make the update fail; what counts is whether the packages install.
        logged([*apt, "update"], env, log)
        if logged([*apt, "install", "--yes", "--no-install-recommends", *packages], env, log) != 0:
            raise AptFailed(f"apt could not install {' '.join(packages)}{last_lines(log)}", hint=f"the full log: {log}")


def sources(distribution: str, folder: Path = APT) -> list[str]:
    """Return this machine's sources of a Debian release as one-line entries; they may name a local mirror.

    Third-party sources are left out: their suites have other names, or they lack the component "main".
    """
    suites = {distribution, f"{distribution}-updates", f"{distribution}-security"}
    entries: list[str] = []
    for file in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        if file.suffix in (".list", ".sources") and file.is_file():
            parser = _deb822 if file.suffix == ".sources" else _one_line
            for signed_by, uri, suite, components in parser(file.read_text(errors="replace")):
                if suite in suites and "main" in components.split():
                    options = f"[signed-by={signed_by}] " if signed_by else ""
                    entries.append(f"deb {options}{uri} {suite} {components}")
    return list(dict.fromkeys(entries))


def _one_line(text: str) -> Iterator[tuple[str, str, str, str]]:
    for line in text.splitlines():
        if match := ONE_LINE.fullmatch(line.partition("#")[0].strip()):
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            yield options.get("signed-by", ""), match["uri"], match["suite"], match["components"]


def _deb822(text: str) -> Iterator[tuple[str, str, str, str]]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line.partition(":") for line in stanza.splitlines() if not line.startswith("#"))
        # Continuation lines (of a key inside Signed-By) have no name and are dropped.
        fields = {name.strip().lower(): value.strip() for name, _, value in lines if not name.startswith((" ", "\t"))}
        if fields.get("enabled", "yes") != "no" and "deb" in fields.get("types", "").split():
            for uri in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    yield fields.get("signed-by", ""), uri, suite, fields.get("components", "")
