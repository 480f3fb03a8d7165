"""On which systems a compiled wheel runs, by `auditwheel show`: its C library, and what else it needs from the system.

A compile takes its base's glibc, so that its wheel asks for that or a newer one, whatever CPU it is for.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tfbuild.errors import BuildFailed

MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_\w+")
# The names that came before glibc's version was in them (PEP 600).
OLD_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
SYMBOL = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """`tag`: the most precise platform tag that the wheel is consistent with; `own`: those in its name.

    `needs`: the newest version of each set of symbols that it asks the system for (GLIBC, GLIBCXX, CXXABI, GCC).
    `external`: libraries that no manylinux tag lets it take from the system.
    """

    tag: str
    own: tuple[str, ...]
    needs: dict[str, str]
    external: tuple[str, ...]

    @property
    def broken_promises(self) -> tuple[str, ...]:
        """Tags in its name for systems that it does not run on."""
        real = _glibc(self.tag)
        return tuple(name for name in self.own if (said := _glibc(name)) and (real is None or said < real))

    def to_json(self) -> dict[str, object]:
        return {
            "platform_tag": self.tag,
            "own_tags": list(self.own),
            "consistent": not self.broken_promises,
            "needs": self.needs,
            "external_libraries": list(self.external),
        }

    def lines(self) -> list[str]:
        """What users must know, a line each."""
        needs = ", ".join(f"{name} {version}" for name, version in self.needs.items())
        told = [f"it runs where the system has {needs or 'any C library'} or newer: consistent with {self.tag}"]
        if self.external:
            told.append(f"note: it takes from the system, or from other wheels: {', '.join(self.external)}")
        if self.broken_promises:
            told.append(
                f"warning: its name promises {', '.join(self.broken_promises)}, so that pip installs it on systems "
                f"that it does not run on; rename it by: wheel tags --platform-tag {self.tag}"
            )
        return told


def check(wheel: Path) -> Audit:
    """The audit of a wheel file; BuildFailed where there is no machine code in it, or it cannot be read."""
    # The instruction set is the plan's own matter: auditwheel takes anything beyond x86-64's first level for a fault.
    command = [sys.executable, "-m", "auditwheel", "show", "--json", "--disable-isa-ext-check", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BuildFailed(f"auditwheel cannot read {wheel.name}: {last}", hint=f"the wheel is kept: {wheel}") from None
    return read(said, wheel)


def read(said: dict[str, object], wheel: Path) -> Audit:
    """What `auditwheel show --json` says."""
    if said.get("pure") or "overall_tag" not in said:
        why = str(said.get("error", "there is no machine code in it"))
        raise BuildFailed(f"{wheel.name} is no TensorFlow: {why}", hint=f"the wheel is kept: {wheel}")
    symbols, external = said["versioned_symbols"], said["external_libs"]
    assert isinstance(symbols, dict)
    assert isinstance(external, dict)
    tags = parse_wheel_filename(wheel.name)[3]
    return Audit(
        tag=str(said["overall_tag"]),
        own=tuple(sorted({tag.platform for tag in tags})),
        needs=_newest(symbol for versions in symbols.values() for symbol in versions),
        external=tuple(sorted(external)),
    )


def _newest(symbols: Iterable[str]) -> dict[str, str]:
    newest: dict[str, str] = {}
    for symbol in symbols:
        if found := SYMBOL.fullmatch(symbol):
            name, version = found.groups()
            newest[name] = max(newest.get(name, version), version, key=Version)
    return dict(sorted(newest.items(), key=lambda item: (item[0] != "GLIBC", item[0])))


def _glibc(tag: str) -> tuple[int, int] | None:
    """The glibc that a platform tag promises to do with; None for a tag that promises nothing (linux_x86_64)."""
    if found := MANYLINUX.fullmatch(tag):
        return int(found[1]), int(found[2])
    return next((version for name, version in OLD_NAMES.items() if re.fullmatch(rf"{name}_[a-z]\w+", tag)), None)
