"""The report of a verification: its records, its files, and how people see it (schema tfbuild.report/1).

As a page, as Markdown and in the terminal it begins with what to do about failures; the page folds each check's proof.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import msgspec
from markupsafe import Markup

from tfbuild.context.labels import read_labels
from tfbuild.errors import VerificationFailed
from tfbuild.in_container.smoke.judge import Measurement
from tfbuild.measure import records
from tfbuild.measure.records import Host, Interval, Software
from tfbuild.util import as_typed, terminal
from tfbuild.util.files import decode, read_regular, replace_file, writing
from tfbuild.util.terminal import foreign_cell as cell
from tfbuild.util.terminal import markdown_cell

SCHEMA = "tfbuild.report/1"
Schema = Annotated[str, msgspec.Meta(pattern=f"^{SCHEMA}$")]
Status = Annotated[str, msgspec.Meta(pattern="^(pass|warn|fail|skip)$")]
NO_START = "the image does not start on this host (see guard)"
Verdict = Annotated[str, msgspec.Meta(pattern="^(pass|warn|fail)$")]


def ratio_text(interval: Interval) -> str:
    """Return a ratio and its interval, such as "1.234 [1.200, 1.270]"."""
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One workload, by the rounds that were used."""

    name: str
    cpu: Interval
    wall: Interval
    band: Interval
    effect: str


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Ratios of the baseline's time to the image's, as geometric means of each round; above 1 the image is faster.

    `metric`: what is judged ("cpu" time); `band`: the image against itself in the same rounds; `clean`: how many of the
    `rounds` were undisturbed; `foreign`: mean share of the machine's time that other processes used; `retuned`: what
    the baseline's environment changed.
    """

    metric: str
    baseline: str
    retuned: dict[str, str]
    cpu: Interval
    wall: Interval
    band: Interval
    effect: str
    rounds: int
    clean: int
    foreign: float
    benchmarks: tuple[Benchmark, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """`status`: pass, warn, fail or skip; `detail`: what was observed.

    `proves`, `how`, `fix`: what a pass means, how it was tested, and what to do about a failure.
    """

    name: str
    status: Status
    detail: str
    seconds: float
    measures: tuple[Measurement, ...]
    proves: str
    how: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """`size` in bytes; `digests`: those in registries."""

    ref: str
    id: str
    digests: tuple[str, ...]
    size: int
    architecture: str
    labels: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ImageSoftware(Software):
    """The software in the image. `compiled_for`: the features of TensorFlow's CPU guard, in its names."""

    compiled_for: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """One verification. `source_would_add`: what a build for this CPU would use beyond it, in TensorFlow's names."""

    schema: Schema
    kind: str
    id: str
    created: str
    tool: str
    seconds: float
    verdict: Verdict
    image: ImageFacts
    host: Host | None
    software: ImageSoftware | None
    checks: tuple[Check, ...]
    throughput: Throughput | None
    source_would_add: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether checks passed and none failed. A warning (a known defect of the release) passes."""
        return self.verdict in ("pass", "warn")


# --- its files -------------------------------------------------------------------------------------------------------

MOST_BYTES = 32 * 1024 * 1024


def report_path(report: Report, folder: Path) -> Path:
    """Return ID.json or ID-failed.json, so that a failure never replaces the report of another image in use."""
    return folder / f"{report.id}{'' if report.passed else '-failed'}.json"


def write_report(report: Report, folder: Path) -> Path:
    """Write the report as JSON, Markdown and a page, each whole or not at all; return the JSON's path.

    A failure removes what said that the same image passed. Raises UsageError or DiskFull.
    """
    file = report_path(report, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not report.passed and proof(folder, report.id, report.image.id):
            for suffix in ("json", "md", "html"):
                (folder / f"{report.id}.{suffix}").unlink(missing_ok=True)
        replace_file(file.with_suffix(".md"), to_markdown(report))
        replace_file(file.with_suffix(".html"), to_html(report))
        return replace_file(file, records.to_json(report))


def proof(folder: Path, identifier: str, image: str) -> Report | None:
    """Return the report of a verification that the image with the id `image` passed; None where there is none."""
    try:
        report = decode(read_regular(folder / f"{identifier}.json", MOST_BYTES), Report)
    except (OSError, ValueError):
        return None
    return report if report.passed and (report.id, report.image.id) == (identifier, image) else None


def raise_if_failed(report: Report, image: str) -> None:
    """Raise VerificationFailed if a check failed, with what to do about the first one."""
    if report.passed:
        return
    failed = [check for check in report.checks if check.status == "fail"]
    names = ", ".join(check.name for check in failed) or "nothing could be proved"
    why = f"is not what it claims to be: {names}"
    # Nothing else is wrong with it: it may be right for another CPU.
    if names == "guard" and any(check.detail == NO_START for check in report.checks):
        why = f"was not verified: it does not start on this host: {failed[0].detail.removeprefix('tfbuild: ')}"
    raise VerificationFailed(f"{image} {why}", hint=failed[0].fix if failed else "")


# --- what every view shows -------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """How a status looks: its word and colour in the terminal, its sign (with a word, as not all see colours) and CSS
    class on the page; `counted` follows the number of checks with the status."""

    mark: str
    colour: str
    sign: str
    style: str
    counted: str


LOOKS = {
    "pass": Shown("ok", "green", "✓ pass", "good", "passed"),
    "warn": Shown("WARN", "yellow", "! warning", "warned", "passed with a warning"),
    "fail": Shown("FAIL", "bold red", "✗ FAIL", "bad", "failed"),
    "skip": Shown("skip", "dim", "– skipped", "quiet", "skipped"),
}


def baseline(report: Report) -> str:
    """Return what the image's speed was compared with, and what was changed in its environment."""
    if report.throughput is None:
        return ""
    changed = report.throughput.retuned
    settings = " ".join(f"{name}={value}" for name, value in sorted(changed.items()))
    return f"{report.throughput.baseline} with {settings}" if changed else report.throughput.baseline


def check_numbers(check: Check) -> str:
    """Return the numbers behind a check, with their limits."""
    return ", ".join(f"{m.name} {m.value:.4g}{f' ({m.limit})' if m.limit else ''}" for m in check.measures)


def plan_fields(report: Report) -> dict[str, str]:
    """Return the labels, and the parts of the plan in them, that are not empty."""
    return {name: text for name, text in read_labels(report.image.labels).own.items() if text and name != "plan"}


def environment_facts(report: Report) -> dict[str, str]:
    """Return the facts of image, host and software that are known."""
    host, software, image = report.host, report.software, report.image
    rows = {
        "image": f"{image.ref} ({image.id})",
        "digests": " ".join(image.digests),
        "size": f"{image.size / 1e6:.0f} MB" if image.size else "",
        "architecture": image.architecture,
    }
    if host and software:
        rows |= records.surroundings(host, software) | {"compiled for": " ".join(software.compiled_for)}
    return {name: value for name, value in rows.items() if value}


# --- the page --------------------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """Render the report as one page that loads nothing else."""
    # Verbs that only read reports need no templates.
    from tfbuild import pages

    return pages.render(
        "verify/report.html",
        report=report,
        failed=[check for check in report.checks if check.status == "fail"],
        warned=[check for check in report.checks if check.status == "warn"],
        summary=_summary(report.checks),
        shown=LOOKS,
        numbers=check_numbers,
        baseline=baseline(report),
        chart=_chart(report.throughput) if report.throughput else Markup(),
        plan=plan_fields(report),
        environment=environment_facts(report),
    )


def _summary(checks: tuple[Check, ...]) -> str:
    """Count the checks by status, as "9 passed, 1 skipped"."""
    counts = Counter(check.status for check in checks)
    return ", ".join(f"{counts[status]} {shown.counted}" for status, shown in LOOKS.items() if counts[status])


def _chart(throughput: Throughput) -> Markup:
    """Draw the mean and each workload."""
    from tfbuild import pages

    rows: list[tuple[str, Benchmark | Throughput]] = [("all (geometric mean)", throughput)]
    rows += [(row.name, row) for row in throughput.benchmarks]
    lines = [pages.Line(label=name, ratio=row.cpu, effect=row.effect, band=row.band) for name, row in rows]
    named = "throughput of the image relative to the baseline"
    return pages.ratios(named, [("CPU time, relative to the baseline", lines)])


# --- Markdown ------------------------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """Return what a CI's summary shows, as Markdown: what to do first, then the checks."""
    parts = (_head, _to_do, _table)
    return "\n".join(line for part in parts for line in (*part(report), "")) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"# {report.id}: {report.verdict}"
    yield ""
    yield f"`{cell(report.image.ref).replace('`', ' ')}` ({report.image.id})"
    yield f"verified {report.created} in {report.seconds:.0f} s by {report.tool}."


def _to_do(report: Report) -> Iterator[str]:
    for check in report.checks:
        if check.status == "fail":
            fix = f" *Fix:* {markdown_cell(as_typed(check.fix))}" if check.fix else ""
            yield f"- **{check.name}** failed: {cell(as_typed(check.detail))}.{fix}"
    if report.source_would_add:
        yield f"- On this CPU a build from source would add: {' '.join(report.source_would_add)}."


def _table(report: Report) -> Iterator[str]:
    yield "| check | | what was seen | s |"
    yield "|---|---|---|---|"
    for check in report.checks:
        yield f"| {check.name} | {LOOKS[check.status].mark} | {cell(as_typed(check.detail))} | {check.seconds:.1f} |"


# --- terminal ------------------------------------------------------------------------------------------------------


def show_report(report: Report, stream: IO[str] | None = None) -> None:
    """Print a table to `stream` (default: stdout), in colour on a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for check in report.checks:
        shown = LOOKS[check.status]
        fix = f"\nfix: {check.fix}" if check.status == "fail" and check.fix else ""
        table.add_row(Text(shown.mark, shown.colour), check.name, Text(as_typed(check.detail + fix), overflow="fold"))
    last = Text(f"{report.id}: {report.verdict} in {report.seconds:.0f} s", LOOKS[report.verdict].colour)
    more = Text(f"a build from source would add {' '.join(report.source_would_add)} on this CPU")
    print(terminal.rendered([table, *([more] if report.source_would_add else []), last], stream), end="", file=stream)
