"""Every feature of an architecture: in the CPU, in which level, kept as which flag or why not, used by what.

Nothing here refuses: what of a request cannot be understood becomes a note, and the table is filled as far as the rest
of it tells.
"""

import platform as host_platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cpu import ARCHITECTURES, Cpu, cpuid, isa
from tfbuild.cpu.isa import Flags, InstructionSet
from tfbuild.errors import TfbuildError
from tfbuild.facts import Facts, Feature, base_images, releases
from tfbuild.plan import failures, rules, selection
from tfbuild.plan.build import MACHINES, PLATFORMS, Request
from tfbuild.util import terminal

if TYPE_CHECKING:
    from rich.table import Table

NOT_KNOWN = "not known"
UNKNOWN = "unknown"
# The table's columns and their widths, 0 for what is left of the line; together no wider than 80 characters.
COLUMNS = {"feature": 19, "CPU": 7, "flag, or why none": 0, "used by": 26}
LEAST_REASON = 24

T = TypeVar("T")


class Use(Facts, frozen=True):
    """A library in TensorFlow that has code for these features, chosen by "flag" or at "run time"."""

    part: str
    when: Literal["flag", "run time"]
    features: tuple[str, ...]
    source: str


class UseTable(Facts, frozen=True):
    use: tuple[Use, ...]


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One feature. `cpu`: "yes", "no", "masked" or "not known"; `kept`: whether it is compiled for, None where that
    cannot be told; `flag`: what switches it on; `level`: the smallest that holds it ("" where none does); `used_by`:
    empty where nothing is known of its use.
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
    """The whole answer; an empty field is one that could not be told, and `notes` say why."""

    platform: str
    cpu: str
    instruction_set: str
    level: str
    compiler: str
    release: str
    copts: tuple[str, ...]
    features: tuple[FeatureRow, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        shown = asdict(self)
        return {key: (value if value != "" else None) for key, value in shown.items()}


def explain(request: Request) -> Explanation:
    """The table for the CPU, compiler, release and platform of `request`, whatever they are."""
    notes: list[str] = []
    if request.cpuinfo and not _means_host(request):
        notes.append(f"--cpuinfo {request.cpuinfo} is not read: --cpu {request.cpu} names another CPU than the host")
    host = _attempt(notes, lambda: _host(request))
    arch, asked = _asked(request, host, notes)
    fitting = host if host is not None and host.arch == arch and _means_host(request) else None
    release = _attempt(notes, lambda: releases.find(request.release or releases.newest_first()[0])) or ""
    compiler = request.compiler or base_images.compiler(release)
    asked_of = asked or _smallest(arch)
    flags = _attempt(notes, lambda: isa.flags(asked_of, compiler, release=release, named=request.cpu))
    notes += flags.notes if flags and asked else ()
    # A plan that is refused has no fixes, and its reason is no answer to what was asked here.
    planned = _attempt([], lambda: selection.select(replace(request, release=release), host))
    notes += failures.notes(planned.fixes) if planned else ()
    compiled = flags.instruction_set if flags and asked else asked  # without what is dropped, as copts and plan say it
    seen = _Seen(cpu=fitting, whole=fitting is not None and _whole(request), asked=asked, flags=flags)
    return Explanation(
        platform=MACHINES[arch],
        cpu=fitting.model if fitting else asked.name if asked else "",
        instruction_set=compiled.name if compiled else "",
        level=compiled.level if compiled else "",
        compiler=flags.compiler if flags else "",
        release=release,
        copts=flags.copts if flags and asked else (),
        features=tuple(_row(feature, seen, release) for feature in facts.features(arch)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _attempt(notes: list[str], call: Callable[[], T]) -> T | None:
    """What `call` gives, or None and one more note."""
    try:
        return call()
    except TfbuildError as error:
        notes.append("; ".join(part for part in (error.reason, error.hint) if part))
        return None


# --- what was asked ------------------------------------------------------------------------------------------------


def _means_host(request: Request) -> bool:
    return request.cpu in ("", "host")


def _host(request: Request) -> Cpu | None:
    """The CPU that "host" means, where the request means one."""
    if not _means_host(request):
        return None
    return cpus.detect(Path(request.cpuinfo) if request.cpuinfo else None)


def _whole(request: Request) -> bool:
    """Whether that CPU's description has CPUID's words, too: they tell of what no kernel prints."""
    text = cpus.read(Path(request.cpuinfo)) if request.cpuinfo else cpuid.loader()
    return cpuid.diagnostics(text) is not None


def _asked(request: Request, host: Cpu | None, notes: list[str]) -> tuple[str, InstructionSet | None]:
    """The architecture and the instruction set; a name of another architecture than this one's is looked for there."""
    place = _attempt(notes, lambda: rules.choose_platform(Request(platform=request.platform)))
    arch = PLATFORMS[place] if place else ARCHITECTURES.get(request.platform.rpartition("/")[2], "") or _this_machine()
    if _means_host(request):
        if host is None:
            return arch, None
        if request.platform and place and host.arch != arch:
            notes.append(f"{host.model} is {host.arch}, not {place}; leave out --platform {request.platform}")
            return arch, None
        return host.arch, isa.of_cpu(host)
    found = _attempt(notes, lambda: isa.resolve(request.cpu, arch=arch))
    other = next(name for name in PLATFORMS.values() if name != arch)
    there = None if found or request.platform else _attempt([], lambda: isa.resolve(request.cpu, arch=other))
    if there is None:
        return arch, found
    notes[-1] = f"{request.cpu} is for {other}: shown for {MACHINES[other]}"
    return other, there


def _this_machine() -> str:
    return ARCHITECTURES.get(host_platform.machine().lower(), "x86_64")


def _smallest(arch: str) -> InstructionSet:
    """Stands in where no CPU is known: the compiler is told of all the same."""
    return isa.instruction_set(facts.levels(arch)[0].features, arch)


# --- one feature ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What is known of the machine and the compile; None where it is not; `whole`: what no kernel prints, too."""

    cpu: Cpu | None
    whole: bool
    asked: InstructionSet | None
    flags: Flags | None

    @property
    def masked(self) -> dict[str, str]:
        return {item.feature: item.reason for item in isa.hidden(self.cpu)} if self.cpu else {}

    @property
    def disputed(self) -> dict[str, str]:
        """Why a feature that some source lists is none of this CPU's."""
        rows = self.cpu.disagreements if self.cpu else ()
        return {row.feature: row.reason for row in rows if not row.held}


def _row(feature: Feature, seen: _Seen, release: str) -> FeatureRow:
    found = _in_cpu(feature, seen)
    kept, flag, reason = _kept(feature, seen, found)
    return FeatureRow(
        feature=feature.name,
        cpu=found,
        level=next((level.name for level in facts.levels(feature.arch) if feature.name in level.features), ""),
        kept=kept,
        flag=flag,
        reason=reason,
        used_by=used_by(feature, release),
    )


def _in_cpu(feature: Feature, seen: _Seen) -> str:
    if seen.cpu is not None:
        if feature.name in seen.masked:
            return "masked"
        absent = "no" if feature.cpuinfo or seen.whole else NOT_KNOWN
        return "yes" if feature.name in seen.cpu.features else absent
    if seen.asked is not None:
        absent = "no" if feature.use else NOT_KNOWN  # of a name, a level or a list only what gets a flag is kept
        return "yes" if feature.name in seen.asked.features else absent
    return NOT_KNOWN


def _kept(feature: Feature, seen: _Seen, found: str) -> tuple[bool | None, str, str]:
    """Whether it is compiled for, the flag that does it (or would), and why it is not."""
    if not feature.use:
        return False, feature.flag, "never a flag: reached by intrinsics alone"
    if seen.asked is not None and feature.name not in seen.asked.features:
        masked = seen.masked.get(feature.name, "")
        told = {
            "masked": masked,
            "no": seen.disputed.get(feature.name, "not in this CPU"),
            NOT_KNOWN: "no kernel tells of it",
        }
        return False, feature.flag, told.get(found, "not asked for")
    if seen.asked is None or seen.flags is None:
        return None, feature.flag, _known_from(feature, seen.flags.compiler if seen.flags else "")
    dropped = {item.feature: item.reason for item in seen.flags.dropped}
    if feature.name in dropped:
        return False, feature.flag, dropped[feature.name]
    return True, _carrier(feature, seen.asked, seen.flags), ""


def _known_from(feature: Feature, compiler: str) -> str:
    """Which compilers know the flag; empty where the one that was named does."""
    name, _, version = compiler.partition("-")
    if not feature.flag or (version and getattr(feature, name) <= int(version)):
        return ""
    return f"known from gcc {feature.gcc}, clang {feature.clang} on"


def _carrier(feature: Feature, asked: InstructionSet, flags: Flags) -> str:
    """The flag among `flags` that switches the feature on: the level's, its own, or that of one that implies it."""
    march, *extensions = flags.flags[0].split("+")
    level = next((level for level in facts.levels(asked.arch) if f"-march={level.march}" == march), None)
    if level is not None and feature.name in level.features:
        return march
    own = {f"+{name}": name for name in extensions} | {name: name for name in flags.flags[1:]}
    by_flag = {flag: [row.name for row in facts.features(asked.arch) if row.flag == key] for flag, key in own.items()}
    if named := next((flag for flag, names in by_flag.items() if feature.name in names), ""):
        return named
    carriers = [
        (len(held), flag)
        for flag, names in by_flag.items()
        if feature.name in (held := frozenset(names).union(*map(isa.switched_on, names)))
    ]
    return f"with {min(carriers)[1]}" if carriers else "no flag of its own"


def used_by(feature: Feature, release: str) -> tuple[str, ...]:
    """The parts of TensorFlow that are known to use the feature; "guard" where its message of that release names it."""
    parts = [use.part for use in uses() if feature.name in use.features]
    named = feature.tensorflow and release and feature.tensorflow in releases.guard_names(release)
    return (*parts, "guard") if named else tuple(parts)


def uses() -> tuple[Use, ...]:
    return facts.load("uses", UseTable).use


# --- terminal ------------------------------------------------------------------------------------------------------


def show(found: Explanation, stream: IO[str] | None = None) -> None:
    """The table on `stream` (default: stdout), a section a level."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console(stream)
    head = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _head(found):
        head.add_row(name, Text(value))
    sections = [
        part
        for place, (title, rows) in enumerate(_sections(found))
        for part in ("", Text(title, "bold"), _table(rows, console.width, header=place == 0))
    ]
    terminal.write(console, (head, *sections, "", Text(_legend(), "dim")))


def _table(rows: list[FeatureRow], width: int, *, header: bool) -> "Table":
    """One section; all have the same columns, so that they stand below each other."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="dim")
    rest = max(LEAST_REASON, width - sum(COLUMNS.values()) - len(COLUMNS))
    for name, size in COLUMNS.items():
        table.add_column(name, width=size or rest)
    for row in rows:
        style = "green" if row.kept else "yellow" if row.kept is False and row.cpu == "yes" else "dim"
        table.add_row(*(Text(cell, style) for cell in _cells(row)))
    return table


def _head(found: Explanation) -> Iterable[tuple[str, str]]:
    yield "CPU", found.cpu or NOT_KNOWN
    yield "platform", found.platform
    yield "compiled for", found.instruction_set or NOT_KNOWN
    yield "compiler", found.compiler or NOT_KNOWN
    yield "release", found.release or NOT_KNOWN
    yield "copts", " ".join(found.copts) or NOT_KNOWN


def _sections(found: Explanation) -> Iterable[tuple[str, list[FeatureRow]]]:
    for level in facts.levels(PLATFORMS[found.platform]):
        if rows := [row for row in found.features if row.level == level.name]:
            yield f"{level.name}: {_held(rows)}", rows
    yield "in no level", [row for row in found.features if not row.level]


def _held(rows: list[FeatureRow]) -> str:
    if all(row.cpu == NOT_KNOWN for row in rows):
        return "not known whether the CPU has it"
    lacking = [row.feature for row in rows if row.cpu != "yes"]
    return f"the CPU lacks {', '.join(lacking)}" if lacking else "all in the CPU"


def _cells(row: FeatureRow) -> tuple[str, ...]:
    told = row.flag if row.kept else f"{row.flag}: {row.reason}" if row.kept is None and row.reason else row.reason
    seen = UNKNOWN if row.cpu == NOT_KNOWN else row.cpu
    return row.feature, seen, told or row.flag or "no flag of its own", " ".join(row.used_by) or UNKNOWN


def _legend() -> str:
    by_flag = ", ".join(use.part for use in uses() if use.when == "flag")
    at_run_time = ", ".join(use.part for use in uses() if use.when == "run time")
    return (
        f"{by_flag}: code chosen by the flags. {at_run_time}: chosen at run time, whatever the flags. guard: named in "
        "TensorFlow's own message at start. unknown: nothing tells of it in what was read, one version of each library."
    )
