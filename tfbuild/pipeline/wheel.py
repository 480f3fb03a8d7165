"""Export a compiled wheel: its file, and beside it a JSON file that says how it was built and what it needs.

A compile links the glibc of its base, so its wheel needs that version or a newer one, whatever CPU it is for.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tfbuild import __version__
from tfbuild.context.labels import named
from tfbuild.errors import BadInput, BuildFailed, DiskFull, Stale, UsageError
from tfbuild.plan import Build, source
from tfbuild.util.files import FULL, check_writable, decode, read_regular, replace_file, whole
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import cause

SCHEMA = "tfbuild.wheel/1"
# What the builder records beside the wheel: its own digest and versions, and the packages that the wheel loads.
RECORDS = ("build.txt", "packages.txt")
EXPORTED_HINT = "a wheel that `invoke wheel` wrote, with its .json beside it"
# What depends on the place that compiles: a base, or a machine in its place. A base that nobody knows gets fixes, and
# their flags, as a precaution; what the user asked for is in the identifier.
PLACE_FIELDS = {"base_image", "base_distribution", "bazel_flags", "fixes", "notes"}
MANYLINUX = re.compile(r"manylinux_([0-9]{1,4})_([0-9]{1,4})_\w+")
SYMBOL = re.compile(r"([A-Z]+)_(\d+(?:\.\d+)*)")
AUDIT_FIELDS = {"tag": "platform_tag", "own": "own_tags", "external": "external_libraries"}
# What becomes part of files' names and of an index's columns.
Word = Annotated[str, msgspec.Meta(pattern=r"^\w{1,64}\Z")]


@dataclass(frozen=True, kw_only=True)
class Exported:
    wheel: Path
    sidecar: Path
    sha256: str
    library: Path | None


def collect(
    build: Build,
    scratch: Path,
    output: Path,
    progress: Progress,
    *,
    context: str,
    base: str = "",
    host: Mapping[str, str] | None = None,
) -> Exported:
    """Move the wheel, and TensorFlow's C library if it was compiled, from the builder's `scratch` folder to `output`.

    A sidecar is written beside the wheel, and what users must know of it is said. `context` and `base`: digests;
    `host`: what compiled it in place of a container. Raises BuildFailed where the builder made no wheel, more than one,
    one of another release or Python, or one without machine code, and what check_output() raises.
    """
    for link in filter(Path.is_symlink, scratch.glob("*")):
        link.unlink()  # of a hostile tree: here, it would lead to this machine's files
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildFailed(f"the compile made {len(wheels)} wheels, not one", hint=f"they are in {scratch}")
    _, number, _, tags = parse_wheel_filename(wheels[0].name)
    pythons = {tag.interpreter for tag in tags}
    if number.release[:3] != Version(build.release).release or pythons != {f"cp{build.python.replace('.', '')}"}:
        raise BuildFailed(
            f"the compile made {wheels[0].name}, which is not TensorFlow {build.release} for Python {build.python}",
            hint=f"is --source of this release? The wheel is kept: {wheels[0]}",
        )
    check_output(output, build)  # again: another build may have written there meanwhile
    wheel = output / wheels[0].name
    sidecar = output / f"{wheel.name}.json"
    with whole(wheel) as part:
        shutil.move(wheels[0], part)
        # The sidecar of an earlier wheel must not stay beside this one, should this one be refused below.
        sidecar.unlink(missing_ok=True)
    library = None
    for archive in scratch.glob("libtensorflow*"):
        library = output / f"libtensorflow-{build.id}.tar.gz"
        with whole(library) as part:
            shutil.move(archive, part)
    sha256 = source.digest(wheel)
    audit = audit_wheel(wheel, scratch.resolve())
    records = {name: (scratch / name).read_text(encoding="utf-8") for name in RECORDS}
    # The builder's own digest, and the versions that the compiler and Bazel print.
    built = dict(line.partition("=")[::2] for line in records["build.txt"].splitlines())
    content = {
        "schema": SCHEMA,
        "tfbuild": __version__,
        "wheel": wheel.name,
        "sha256": sha256,
        "builder": built.get("builder", ""),
        "compiler": built.get("compiler", ""),
        "bazel": built.get("bazel") or None,
        "source_commit": built.get("source_commit") or None,
        "base": base or None,
        "host": host,
        "context": context,
        "plan": build.to_json(),
        "audit": audit.to_json(),
        "libtensorflow": {"file": library.name, "sha256": source.digest(library)} if library else None,
        "records": records,
    }
    replace_file(sidecar, json.dumps(content, indent=2) + "\n")
    for line in audit.lines(wheel):
        progress(line)
    return Exported(wheel=wheel, sidecar=sidecar, sha256=sha256, library=library)


class CompiledWheel(msgspec.Struct):
    """What `compiled` needs of the file beside a wheel."""

    tfbuild: str
    sha256: str
    plan: dict[str, Any]
    records: dict[str, str]


def check_output(output: Path, build: Build) -> None:
    """Raise UsageError if `output` cannot be written, or has another build's wheel, whose file has the same name."""
    check_writable(output)
    own = build.to_json()
    for file in sorted(output.glob("*.whl")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # no sidecar, a damaged one, a stranger's
            its = decode(read_regular(file.with_name(f"{file.name}.json")), CompiledWheel).plan
            same = all(its[name] == own[name] for name in ("release", "python", "platform"))
            # Up to 2.15 no flag names it: with CUDA it has the same name as without.
            names = {flag for flag in (*its["bazel_flags"], *build.bazel_flags) if "WHEEL_NAME=" in flag}
            if same and its["id"] != build.id and len(names) < 2:
                hint = "--output with another folder, or move it away"
                raise UsageError(f"{file} is the wheel of {its['id']}, and would be replaced", hint=hint)


def compiled(build: Build, wheel: Path) -> CompiledWheel:
    """Return the sidecar of a wheel that `invoke wheel` compiled by the plan of `build`, here or elsewhere.

    Raises BadInput for a wheel without a readable sidecar or with other bytes, Stale for one of another plan.
    """
    beside = wheel.with_name(f"{wheel.name}.json")
    try:
        sidecar, sha256 = decode(read_regular(beside), CompiledWheel), source.digest(wheel)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot use {wheel}: {cause(error)}", hint=EXPORTED_HINT) from None
    if sha256 != sidecar.sha256 or set(sidecar.records) != set(RECORDS):
        raise BadInput(f"{beside} describes another wheel", hint=EXPORTED_HINT)
    own, its = named(json.loads(json.dumps(build.to_json()))), named(sidecar.plan)
    differs = sorted(name for name in own.keys() - PLACE_FIELDS if its.get(name) != own[name])
    if differs or sidecar.tfbuild != __version__:
        # Without a container, the machine chose them of what it has.
        theirs = {name: shlex.quote(str(its.get(name))) for name in ("compiler", "python") if name in differs}
        chosen = "".join(f"--{name} {value}, " for name, value in theirs.items())
        raise Stale(
            f"{wheel} was not compiled by the plan of {build.id}: another {', '.join(differs) or 'tfbuild'}",
            hint=f"{chosen and f'{chosen}as it was compiled; or '}leave out --reuse to compile it here",
        )
    return sidecar


# --- the audit --------------------------------------------------------------------------------------------------------


class Audit(msgspec.Struct, frozen=True, kw_only=True, rename=AUDIT_FIELDS):
    """`tag`: the most precise platform tag that the wheel is consistent with; `own`: the tags in its name.

    `needs`: the newest version that it needs of each set of symbols (GLIBC, GLIBCXX, CXXABI, GCC).
    `external`: libraries that it needs from the system, but no manylinux tag allows.
    """

    tag: Word
    own: tuple[str, ...] = ()
    needs: dict[str, str] = {}
    external: tuple[str, ...] = ()

    @property
    def broken_promises(self) -> tuple[str, ...]:
        """The tags in its name for systems that it does not run on."""
        needed = glibc(self.tag)
        return tuple(tag for tag in self.own if (named := glibc(tag)) and (needed is None or named < needed))

    def to_json(self) -> dict[str, object]:
        return {**msgspec.to_builtins(self), "consistent": not self.broken_promises}

    def lines(self, wheel: Path) -> list[str]:
        """Return what users must know of the file `wheel`, one line each."""
        needs = ", ".join(f"{name} {version}" for name, version in self.needs.items())
        lines = [f"it runs where the system has {needs or 'any C library'} or newer: consistent with {self.tag}"]
        if self.external:
            lines.append(f"note: it needs from the system or from other wheels: {', '.join(self.external)}")
        if self.broken_promises:
            lines.append(
                f"warning: its name promises {', '.join(self.broken_promises)}, so pip also installs it on systems "
                f"that it does not run on; rename it: wheel tags --platform-tag {self.tag} {shlex.quote(str(wheel))}"
            )
        return lines


def audit_wheel(wheel: Path, scratch: Path | None = None) -> Audit:
    """Audit a wheel file. Raises BuildFailed where it is unreadable or contains no machine code, DiskFull.

    It is unpacked in `scratch`, by default in the system's folder for temporary files, which may be small.
    """
    # The plan decides the instruction set; auditwheel would report anything beyond x86-64's first level as a fault.
    # It also finds this machine's libraries and reports what those need, though the wheel meets others where it runs.
    own = ["--disable-isa-ext-check", "--ldpaths", ""]
    command = [sys.executable, "-P", "-m", "auditwheel", "show", "--json", *own, str(wheel)]
    env = {**os.environ, "TMPDIR": str(scratch)} if scratch else None
    completed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    try:
        output = json.loads(completed.stdout)
    except ValueError:
        reason = (completed.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        failed = DiskFull if any(os.strerror(number) in reason for number in FULL) else BuildFailed
        kept = f"the wheel is kept: {wheel}"
        raise failed(f"auditwheel cannot read {wheel.name}: {reason}", hint=kept) from None
    return read_audit(output, wheel)


def read_audit(output: dict[str, object], wheel: Path) -> Audit:
    """Read the output of `auditwheel show --json`."""
    if output.get("pure") or "overall_tag" not in output:
        why = str(output.get("error", "it contains no machine code"))
        raise BuildFailed(f"{wheel.name} is not a TensorFlow wheel: {why}", hint=f"the wheel is kept: {wheel}")
    symbols, external = output["versioned_symbols"], output["external_libs"]
    assert isinstance(symbols, dict)
    assert isinstance(external, dict)
    return Audit(
        tag=str(output["overall_tag"]),
        own=tuple(sorted({tag.platform for tag in parse_wheel_filename(wheel.name)[3]})),
        needs=_newest(symbol for versions in symbols.values() for symbol in versions),
        external=tuple(sorted(external)),
    )


def _newest(symbols: Iterable[str]) -> dict[str, str]:
    newest: dict[str, str] = {}
    for name, version in (match.groups() for match in map(SYMBOL.fullmatch, symbols) if match):
        newest[name] = max(newest.get(name, version), version, key=Version)
    return dict(sorted(newest.items(), key=lambda item: (item[0] != "GLIBC", item[0])))


def glibc(tag: str) -> tuple[int, int] | None:
    """Return the glibc of a platform tag: (2, 28) for manylinux_2_28_x86_64, None for linux_x86_64."""
    # Of the names without a version, that of the supported releases.
    match = MANYLINUX.fullmatch(tag.replace("manylinux2014_", "manylinux_2_17_"))
    return (int(match[1]), int(match[2])) if match else None
