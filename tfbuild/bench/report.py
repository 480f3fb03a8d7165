"""A benchmark as JSON, Markdown and a terminal table; written whole or not at all, and read back against its types."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tfbuild.bench import evaluate, results
from tfbuild.bench.experiments import Experiment
from tfbuild.bench.results import ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.errors import UsageError
from tfbuild.proof import Interval
from tfbuild.report import cell, replace_file

MOST_BYTES = 64 * 1024 * 1024
SCHEMA_FILE = Path(__file__).parent.with_name("bench.schema.json")
COLOURS = {results.FASTER: "green", results.SLOWER: "red", results.NO_DIFFERENCE: "dim"}
TOO_FEW = "too few rounds for a verdict"
DONE = (results.MEASURED, results.TRUNCATED, results.INTERRUPTED)


def to_json(report: BenchReport) -> str:
    """The report as one JSON document; its schema is tfbuild/bench.schema.json."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def from_json(text: str | bytes) -> BenchReport:
    """A report out of its JSON; ValueError where it is none, or one of another schema."""
    try:
        report = msgspec.json.decode(text, type=BenchReport)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a benchmark's report: {error}") from error
    if report.schema != results.SCHEMA:
        raise ValueError(f"a report of schema {report.schema!r}, not {results.SCHEMA!r}")
    if trouble := next(_contradictions(report), ""):
        raise ValueError(f"not a benchmark's report: {trouble}")
    return report


def _contradictions(report: BenchReport) -> Iterator[str]:
    """What no measurement gives, and nothing can be worked out from."""
    for case in (case for row in report.experiments for case in row.cases):
        if case.metric not in ("cpu", "wall"):
            yield f"{case.name} is judged by {case.metric!r}"
        if any(arm.items < 1 for arm in case.arms):
            yield f"{case.name} has an arm without items"
        if any(arm.seconds is not None and arm.seconds <= 0 for arm in case.arms):
            yield f"{case.name} has an arm that took no time"
        if any(raw.inner < 1 or raw.wall <= 0 for row in case.rounds for raw in row.samples.values()):
            yield f"{case.name} has a sample without calls or time"


def read(path: Path) -> BenchReport:
    """The report at `path`; UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return from_json(file.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint="a reports/bench-*.json, as invoke bench writes it") from error


def schema() -> str:
    """The JSON Schema of a report; `python -m tfbuild.bench.report` writes it to tfbuild/bench.schema.json."""
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": results.SCHEMA}
    return json.dumps(described | msgspec.json.schema(BenchReport), indent=2, sort_keys=True) + "\n"


def path(report: BenchReport, folder: Path, name: str = "") -> Path:
    """NAME.json; else bench-ID.json by the identifier that tfbuild gave the image, or by the image's own id."""
    if name:
        return folder / f"{name}.json"
    identifier = report.image.labels.get("io.tfbuild.id", "") or report.image.id.rpartition(":")[2][:12]
    return folder / f"bench-{re.sub(r'[^A-Za-z0-9_.+-]', '-', identifier)}.json"


def write(report: BenchReport, folder: Path, name: str = "") -> Path:
    """Writes JSON, Markdown and a page, each whole or not at all; the path of the JSON. Raises UsageError."""
    from tfbuild.bench import page

    target = path(report, folder, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(target, to_json(report) + "\n")
        replace_file(target.with_suffix(".md"), to_markdown(report))
        return replace_file(target.with_suffix(".html"), page.to_html(report)).with_suffix(".json")
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error}", hint=f"make {folder} writable") from error


# --- words -----------------------------------------------------------------------------------------------------------


def spelled(interval: Interval | None) -> str:
    """ "x1.39 [1.36, 1.41]"; the confidence only where it is under 95 %."""
    if interval is None:
        return ""
    sure = "" if interval.coverage >= 0.95 else f" at {interval.coverage:.0%}"
    return f"x{interval.median:.2f} [{interval.low:.2f}, {interval.high:.2f}]{sure}"


def verdict(arm: ArmResult, case: CaseResult) -> str:
    """The verdict in the metric that is judged, or why there is none."""
    if arm.name == case.baseline:
        return "baseline" if arm.status in DONE else f"{arm.status}: {arm.reason}"
    if arm.effect:
        few = f" ({TOO_FEW})" if undecided(arm, case) else ""
        return arm.effect + few + ("" if arm.same is not False else "; computes something else")
    return f"{arm.status}: {arm.reason or case.reason}"


def undecided(arm: ArmResult, case: CaseResult) -> bool:
    """No difference is shown, and none could be."""
    return arm.effect == results.NO_DIFFERENCE and not evaluate.sure(judged(arm, case))


def judged(arm: ArmResult, case: CaseResult) -> Interval | None:
    """The ratio in the metric that is judged."""
    return arm.cpu if case.metric == "cpu" else arm.wall


def time(seconds: float | None) -> str:
    """Seconds for reading: "1.23 ms"."""
    if seconds is None:
        return ""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def noise(report: BenchReport) -> str:
    cases = [case for row in report.experiments for case in row.cases if case.rounds]
    if not cases:
        return "no round was timed"
    rounds = sum(len(case.rounds) for case in cases)
    shares = [row.foreign for case in cases for row in case.rounds]
    stops = sum(case.throttled for case in cases)
    return (
        f"{sum(case.clean for case in cases)} of {rounds} rounds undisturbed, others used "
        f"{sum(shares) / len(shares):.0%} of the machine" + (f", {stops} periods throttled" if stops else "")
    )


def caveat(case: CaseResult) -> str:
    """What makes a case's numbers less than they seem; empty where nothing does."""
    told = [case.reason if case.status in (results.TRUNCATED, results.INTERRUPTED) else ""]
    told.append(f"noisy: {case.clean} of {len(case.rounds)} rounds undisturbed" if case.noisy and case.rounds else "")
    told.append(f"{case.throttled} periods throttled by the cgroup's quota" if case.throttled else "")
    told.append(f"the baseline differs from itself: {spelled(case.band)}" if _off(case.band) else "")
    return "; ".join(text for text in told if text)


def _off(band: Interval | None) -> bool:
    """The same work in the same rounds is faster or slower for certain, to the digits that are shown: others may be so
    too, by as much."""
    return band is not None and evaluate.sure(band) and not round(band.low, 2) <= 1 <= round(band.high, 2)


def lines(cases: Sequence[CaseResult]) -> list[str]:
    """What an experiment found, a line an arm, for whoever watches."""
    return [
        f"  {case.name}: {arm.name}: {verdict(arm, case)} {spelled(judged(arm, case))}".rstrip()
        for case in cases
        for arm in case.arms
        if case.rounds and arm.name != case.baseline
    ]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One side's numbers, spelled for a table; "" is what it has not."""

    name: str
    verdict: str
    cpu: str = ""
    wall: str = ""
    time: str = ""
    faults: str = ""
    rss: str = ""


def table_row(arm: ArmResult, case: CaseResult) -> Row:
    error = f"; error {arm.error:.1e}" if arm.error is not None else ""
    return Row(
        name=arm.name + (f" ({arm.note})" if arm.note else ""),
        verdict=verdict(arm, case) + error,
        cpu=spelled(arm.cpu),
        wall=spelled(arm.wall),
        time=time(arm.seconds),
        faults=f"{arm.faults:.0f}" if arm.faults is not None else "",
        rss=f"{arm.rss:.0f}" if arm.rss is not None else "",
    )


# --- Markdown --------------------------------------------------------------------------------------------------------


def to_markdown(report: BenchReport) -> str:
    parts = [list(_head(report)), *(list(_experiment(row)) for row in report.experiments), list(_method())]
    return "\n".join(line for part in parts for line in (*part, "")) + "\n"


def _head(report: BenchReport) -> Iterator[str]:
    yield f"# Benchmark of `{report.image.ref}`{' (interrupted)' if report.interrupted else ''}"
    yield ""
    yield f"{report.created}, {report.seconds:.0f} s of {report.budget:.0f} s ({report.mode}), {report.tool};"
    found, host = report.software, report.host
    yield f"TensorFlow {found.tensorflow}, Python {found.python}, NumPy {found.numpy}, malloc of {found.malloc};"
    yield f"{cell(host.cpu)}, {host.cpus} CPUs (cgroup quota: {host.quota or 'none'}), {host.memory} MiB;"
    yield f"{noise(report)}."


def _experiment(row: ExperimentResult) -> Iterator[str]:
    yield f"## {row.name}"
    yield ""
    yield f"*{row.question}*"
    yield ""
    yield f"{row.compares}. It would change: {row.changes}."
    for finding in row.findings:
        yield f"- **{cell(finding.text)}**"
    yield ""
    if not row.cases:
        yield f"{row.status}: {cell(row.reason)}"
        return
    yield "| case | | CPU time | wall time | per item | faults | MiB | verdict |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in row.cases:
        for arm in case.arms:
            yield f"| {' | '.join(_columns(case, arm))} |"
        if not case.arms:
            yield f"| {cell(case.name)} | | | | | | | {case.status}: {cell(case.reason)} |"
        if case.band:
            yield f"| {cell(case.name)} | baseline again ({case.metric}) | {_band(case)} | {cell(caveat(case))} |"


def _band(case: CaseResult) -> str:
    shown = spelled(case.band)
    return f"{shown} | | | |" if case.metric == "cpu" else f"| {shown} | | |"


def _columns(case: CaseResult, arm: ArmResult) -> Iterator[str]:
    told = table_row(arm, case)
    yield from map(cell, (case.name, told.name))
    yield from (told.cpu, told.wall, told.time, told.faults, told.rss)
    yield cell(told.verdict)


def _method() -> Iterator[str]:
    yield "## Method"
    yield ""
    yield "Persistent processes, all stopped but the one that is timed; rounds in random order, samples of 0.1 s and"
    yield "more; ratios are the baseline's time over the arm's, per item and per round (above 1: the arm is faster),"
    yield "with their median and an interval of order statistics that holds the true one with 95 % or more."
    yield "An effect is claimed only beyond 1 and beyond the baseline against itself in the same rounds."
    yield "Absolute times are for reading only: on a shared machine they drift. The JSON has every sample."


# --- terminal --------------------------------------------------------------------------------------------------------


def show(report: BenchReport, stream: IO[str] | None = None) -> None:
    """Tables on `stream` (default: stdout); colours only on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = stream or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else 140, soft_wrap=False, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "case", "", "CPU time", "wall time", "verdict"):
        table.add_column(name)
    for row in report.experiments:
        if not row.cases:
            table.add_row(Text(row.name), "", "", "", "", Text(f"{row.status}: {row.reason}", "dim"))
        for case in row.cases:
            if not case.arms:
                table.add_row(Text(row.name), Text(case.name), "", "", "", Text(f"{case.status}: {case.reason}", "dim"))
            for arm in [arm for arm in case.arms if arm.name != case.baseline or not case.rounds]:
                told = (row.name, case.name, arm.name, spelled(arm.cpu), spelled(arm.wall))
                word = verdict(arm, case) + (f" ({caveat(case)})" if case.rounds and caveat(case) else "")
                table.add_row(*map(Text, told), Text(word, COLOURS.get(arm.effect, "dim")))
    console.print(table)
    for row in report.experiments:
        for finding in row.findings:
            console.print(Text(f"{row.name}: {finding.text}"))
    ended = "interrupted" if report.interrupted else "done"
    console.print(Text(f"{report.image.ref}: {ended} after {report.seconds:.0f} s; {noise(report)}"))


def listed(rows: tuple[Experiment, ...], *, quick: bool, stream: IO[str] | None = None) -> None:
    """The experiments with their questions and cases, as a table on stdout."""
    for row in rows:
        print(f"{row.name:12}{row.question}", file=stream)
        print(f"{'':12}{row.compares}", file=stream)
        for case in row.cases(quick) or row.case:
            arms = ", ".join(arm.name for arm in row.arms(case))
            print(f"{'':14}- {case.name}: {arms}{f' (needs: {case.needs})' if case.needs else ''}", file=stream)


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), encoding="utf-8")
