"""Explain every CPU feature: whether the CPU has it, its level, the flag for it or why there is none, and its users.

Nothing here refuses: anything that cannot be parsed is reported as a note, and the table is filled from the rest.
"""

import platform as host_platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cpu import ARCHITECTURES, Cpu, compilers, isa, recordings, uses
from tfbuild.cpu.compilers import Flags
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import TfbuildError
from tfbuild.facts import Feature, releases
from tfbuild.plan import failures, rules, selection
from tfbuild.plan.build import MACHINES, PLATFORMS
from tfbuild.plan.request import Request
from tfbuild.util import terminal

if TYPE_CHECKING:
    from rich.table import Table

NOT_KNOWN = "not known"
UNKNOWN = "unknown"
# The table's columns and their widths; the third gets what is left, of 80 characters LEAST_REASON.
REST = "flag, or why none"
COLUMNS = {"feature": 19, "CPU": 7, REST: 0, "used by": 26}
LEAST_REASON = 24

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One feature. `cpu`: "yes", "no", "masked" or "not known". `kept`: whether it is compiled for, None if unknown.

    `flag`: what switches it on. `level`: the smallest level with it, or "". `used_by`: empty if no use is known.
    """

    feature: str
    cpu: str
    level: str
    kept: bool | None
    flag: str
    reason: str
    used_by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The whole answer. An empty field is unknown, and `notes` say why."""

    platform: str
    cpu: str
    instruction_set: str
    level: str
    compiler: str
    release: str
    python: str
    copts: tuple[str, ...]
    features: tuple[FeatureRow, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {key: (value if value != "" else None) for key, value in asdict(self).items()}


def explain(request: Request) -> Explanation:
    """Return the table for the CPU, compiler, release and platform of `request`; unknown ones become notes."""
    notes: list[str] = []
    path, host = Path(request.cpuinfo) if request.cpuinfo else None, None
    if isa.means_host(request.cpu):
        host = _attempt(notes, lambda: cpus.detect(path))
    elif path:
        notes.append(f"--cpuinfo {path} is not read: --cpu {request.cpu} names another CPU than the host")
    arch, requested, named = _requested(request, host, notes)
    cpu = host if host is not None and host.arch == arch else None
    usual = _usual(request, arch, notes)
    release, compiler = usual.release, usual.compiler
    # The compiler is explained for an unknown CPU all the same.
    known = requested or isa.instruction_set(facts.levels(arch)[0].features, arch)
    flags = (
        _attempt(notes, lambda: compilers.flags(known, compiler, release=release, named=request.cpu))
        if compiler
        else None
    )
    notes += flags.notes if flags and requested else ()
    # A refused plan has no fixes, and the reason of the refusal does not matter here.
    planned = _attempt([], lambda: selection.decide(replace(request, release=release), host))
    notes += failures.notes(planned.fixes) if planned else ()
    compiled = flags.instruction_set if flags and requested else requested  # without dropped features, like the plan
    whole = cpu is not None and _has_cpuid(path)
    knowledge = _Knowledge(cpu=cpu, whole=whole, named=named, requested=requested, flags=flags)
    return Explanation(
        platform=MACHINES[arch],
        cpu=cpu.model if cpu else requested.name if requested else "",
        instruction_set=compiled.name if compiled else "",
        level=compiled.level if compiled else "",
        compiler=flags.compiler if flags else "",
        release=release,
        python=usual.python,
        copts=flags.copts if flags and requested else (),
        features=tuple(_row(feature, knowledge, release) for feature in facts.features(arch)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _usual(request: Request, arch: str, notes: list[str]) -> selection.Usual:
    """Return the release, Python and compiler of the request, each "" where it is not known."""
    ways = ((request.release, request.compiler), (request.release, ""), ("", request.compiler))
    for number, (release, compiler) in enumerate(ways):
        reported = notes if number == 0 else []
        if usual := _attempt(reported, lambda: selection.usual(arch, release, compiler)):  # noqa: B023 - called at once
            unknown = replace(usual, release="", python="") if release != request.release else usual
            return replace(unknown, compiler="") if compiler != request.compiler else unknown
    return selection.Usual(release="", python="", compiler="")


def _attempt(notes: list[str], call: Callable[[], T]) -> T | None:
    """Return the result of `call`, or None and add a note."""
    try:
        return call()
    except TfbuildError as error:
        notes.append("; ".join(part for part in (error.reason, error.hint) if part))
        return None


def _has_cpuid(path: Path | None) -> bool:
    """Whether the recording includes CPUID, which has the features that no kernel prints."""
    return recordings.diagnostics(cpus.read_text(path) if path else recordings.loader()) is not None


# --- the request ---------------------------------------------------------------------------------------------------


def _requested(
    request: Request, host: Cpu | None, notes: list[str]
) -> tuple[str, InstructionSet | None, InstructionSet | None]:
    """Return the architecture, the instruction set, and that with all features of the CPU."""

    def resolve(text: str, arch: str, notes: list[str]) -> InstructionSet | None:
        return _attempt(notes, lambda: isa.resolve(text, arch=arch, host=host))

    cpu = request.cpu or "host"
    exact = f"{cpu},{isa.EXACT}"
    platform = _attempt(notes, lambda: rules.choose_platform(Request(platform=request.platform)))
    machines = (request.platform.rpartition("/")[2], host_platform.machine().lower())
    likely = next((ARCHITECTURES[name] for name in machines if name in ARCHITECTURES), "x86_64")
    arch = PLATFORMS[platform] if platform else likely
    if isa.means_host(request.cpu):
        if host is None:
            return arch, None, None
        if request.platform and platform and host.arch != arch:
            notes.append(f"{host.model} is {host.arch}, not {platform}; leave out --platform {request.platform}")
            return arch, None, None
        return host.arch, resolve(cpu, host.arch, notes), resolve(exact, host.arch, [])
    if other := rules.named_architecture(request):
        notes.append(f"{request.cpu} is for {other}: shown for {MACHINES[other]}")
    _attempt(notes, lambda: isa.refuse_without_level(cpu, other or arch))
    return other or arch, resolve(cpu, other or arch, notes), resolve(exact, other or arch, [])


# --- one feature ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Knowledge:
    """What is known about the machine and the compile.

    `whole`: also of the features that no kernel prints, because the recording includes CPUID.
    `named`: the features of what --cpu names, with those that the `requested` set leaves out.
    """

    cpu: Cpu | None
    whole: bool
    named: InstructionSet | None
    requested: InstructionSet | None
    flags: Flags | None

    @property
    def masked(self) -> dict[str, str]:
        return {item.feature: item.reason for item in isa.hidden(self.cpu)} if self.cpu else {}

    @property
    def disputed(self) -> dict[str, str]:
        """Why this CPU lacks a feature that some source lists."""
        rows = self.cpu.disagreements if self.cpu else ()
        return {row.feature: row.reason for row in rows if not row.held}


def _row(feature: Feature, known: _Knowledge, release: str) -> FeatureRow:
    in_cpu = _in_cpu(feature, known)
    kept, flag, reason = _kept(feature, known, in_cpu)
    return FeatureRow(
        feature=feature.name,
        cpu=in_cpu,
        level=next((level.name for level in facts.levels(feature.arch) if feature.name in level.features), ""),
        kept=kept,
        flag=flag,
        reason=reason,
        used_by=used_by(feature, release),
    )


def _in_cpu(feature: Feature, known: _Knowledge) -> str:
    if known.cpu is not None:
        if feature.name in known.masked:
            return "masked"
        absent = "no" if feature.cpuinfo or known.whole else NOT_KNOWN
        return "yes" if feature.name in known.cpu.features else absent
    if known.named is not None:
        absent = "no" if feature.use else NOT_KNOWN  # names, levels and lists keep only features with flags
        return "yes" if feature.name in known.named.features else absent
    return NOT_KNOWN


def _kept(feature: Feature, known: _Knowledge, in_cpu: str) -> tuple[bool | None, str, str]:
    """Return whether the build is compiled for it (None if unknown), the flag for it, and why it is left out."""
    if not feature.use:
        return False, feature.flag, "never a flag: reached by intrinsics alone"
    if known.requested is not None and feature.name not in known.requested.features:
        masked = known.masked.get(feature.name, "")
        reasons = {
            "masked": masked,
            "no": known.disputed.get(feature.name, "not in this CPU"),
            NOT_KNOWN: "no kernel tells of it",
            "yes": uses.left_out(feature.name),
        }
        return False, feature.flag, reasons.get(in_cpu, "not asked for")
    if known.requested is None or known.flags is None:
        name, _, number = (known.flags.compiler if known.flags else "").partition("-")
        able = not feature.flag or (number and getattr(feature, name) <= int(number))
        return None, feature.flag, "" if able else f"known from gcc {feature.gcc}, clang {feature.clang} on"
    dropped = {item.feature: item.reason for item in known.flags.dropped}
    if feature.name in dropped:
        return False, feature.flag, dropped[feature.name]
    return True, _carrier(feature, known.requested, known.flags), ""


def _carrier(feature: Feature, requested: InstructionSet, flags: Flags) -> str:
    """Return the flag that switches the feature on: the level's, its own, or that of a feature that implies it."""
    march, *extensions = flags.flags[0].split("+")
    level = next((level for level in facts.levels(requested.arch) if f"-march={level.march}" == march), None)
    if level is not None and feature.name in level.features:
        return march
    own = {f"+{name}": name for name in extensions} | {name: name for name in flags.flags[1:]}
    by_flag = {
        flag: [row.name for row in facts.features(requested.arch) if row.flag == key] for flag, key in own.items()
    }
    if named := next((flag for flag, names in by_flag.items() if feature.name in names), ""):
        return named
    carriers = [
        (len(held), flag)
        for flag, names in by_flag.items()
        if feature.name in (held := frozenset(names).union(*map(compilers.switched_on, names)))
    ]
    return f"with {min(carriers)[1]}" if carriers else "no flag of its own"


def used_by(feature: Feature, release: str) -> tuple[str, ...]:
    """Return the parts of TensorFlow that are known to use the feature; "guard" if the release's message names it."""
    parts = [use.part for use in uses.table().use if feature.name in use.features]
    named = feature.tensorflow and release and feature.tensorflow in {row.name for row in releases.guard(release)}
    return (*parts, "guard") if named else tuple(parts)


# --- terminal ------------------------------------------------------------------------------------------------------


def show(explanation: Explanation, stream: IO[str] | None = None) -> None:
    """Print the table to `stream` (default: stdout), with a section for each level."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console(stream)
    head = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _head(explanation):
        head.add_row(name, Text(value))
    longest = 1 + max(len(_cells(row)[2]) for row in explanation.features)
    left = console.width - sum(COLUMNS.values()) - len(COLUMNS)
    widths = COLUMNS | {REST: max(LEAST_REASON, min(longest, left))}
    sections = [
        part
        for number, (title, rows) in enumerate(_sections(explanation))
        for part in ("", Text(title, "bold"), _table(rows, widths, header=number == 0))
    ]
    terminal.write(console, (head, *sections, "", Text(_legend(), "dim")))


def _table(rows: list[FeatureRow], widths: Mapping[str, int], *, header: bool) -> "Table":
    """Return one section; all have the same columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="dim")
    for name, width in widths.items():
        table.add_column(name, width=width)
    for row in rows:
        style = "green" if row.kept else "yellow" if row.kept is False and row.cpu == "yes" else "dim"
        table.add_row(*(Text(cell, style) for cell in _cells(row)))
    return table


def _head(explanation: Explanation) -> Iterable[tuple[str, str]]:
    yield "CPU", explanation.cpu or NOT_KNOWN
    yield "platform", explanation.platform
    yield "compiled for", explanation.instruction_set or NOT_KNOWN
    yield "compiler", explanation.compiler or NOT_KNOWN
    yield "release", explanation.release or NOT_KNOWN
    yield "Python", explanation.python or NOT_KNOWN
    yield "copts", " ".join(explanation.copts) or NOT_KNOWN


def _sections(explanation: Explanation) -> Iterable[tuple[str, list[FeatureRow]]]:
    """Yield the title and the rows of each level, and those in no level."""
    for level in facts.levels(PLATFORMS[explanation.platform]):
        rows = [row for row in explanation.features if row.level == level.name]
        lacking = [row.feature for row in rows if row.cpu != "yes"]
        held = f"the CPU lacks {', '.join(lacking)}" if lacking else "all in the CPU"
        if all(row.cpu == NOT_KNOWN for row in rows):
            held = "not known whether the CPU has it"
        if rows:
            yield f"{level.name}: {held}", rows
    yield "in no level", [row for row in explanation.features if not row.level]


def _cells(row: FeatureRow) -> tuple[str, ...]:
    text = row.flag if row.kept else f"{row.flag}: {row.reason}" if row.kept is None and row.reason else row.reason
    in_cpu = UNKNOWN if row.cpu == NOT_KNOWN else row.cpu
    return row.feature, in_cpu, text or row.flag or "no flag of its own", " ".join(row.used_by) or UNKNOWN


def _legend() -> str:
    by_flag = ", ".join(use.part for use in uses.table().use if use.when == "flag")
    at_run_time = ", ".join(use.part for use in uses.table().use if use.when == "run time")
    return (
        f"{by_flag}: code chosen by the flags. {at_run_time}: chosen at run time, whatever the flags. guard: named in "
        "TensorFlow's own message at start. unknown: no use found in the one version of each library that was read."
        f" --cpu NAME,{isa.EXACT} also keeps the features without a known effect."
    )
