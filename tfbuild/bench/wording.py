"""Verdicts, times, noise and caveats as text, for every table, page and message of the benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tfbuild.measure import records
from tfbuild.measure.evaluate import FEWEST, Verdict, interval_text
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, Interval
from tfbuild.util.quantities import counted

COLOURS = {records.FASTER: "green", records.SLOWER: "red", records.NO_DIFFERENCE: "dim"}
# What each metric of a case is called.
METRICS = {"cpu": "CPU time", "wall": "wall time"}
# How numbers are made, for every page and file.
METHOD = (
    "All processes are paused except the one being timed. Rounds are in random order; a sample takes 0.1 s or more.",
    "A ratio is the baseline's time divided by the arm's, per item and per round. The page shows the median of the "
    "rounds' ratios and an interval of order statistics that contains the true median with 95 % confidence. It covers "
    "what varies from round to round, not what differs between two starts of the same process.",
    "The baseline also runs against itself in the same rounds, which shows part of that difference. An effect is "
    "claimed only if it lies beyond that band and beyond 1.",
    "The verdict uses CPU time if other load would disturb wall time, and wall time if waiting is what is measured.",
    "A disturbed round is repeated up to twice. If too few are clean, all count and the case is noisy.",
    "Absolute times and memory are informative only: times drift on a shared machine, and memory is that of the whole "
    "process, which arms with the same environment share.",
)
MEASURED_STATUSES = (records.MEASURED, records.TRUNCATED, records.INTERRUPTED)


def verdict(arm: ArmResult, case: CaseResult) -> str:
    """Return the verdict in the case's metric, or why there is none."""
    if arm.name == case.baseline:
        return "baseline" if arm.status in MEASURED_STATUSES else f"{arm.status}: {arm.reason or case.reason}"
    if arm.effect:
        return arm.effect + ("" if arm.same is not False else "; computes something else")
    return f"{arm.status}: {arm.reason or case.reason}"


def judged_ratio(ratios: ArmResult | Verdict, case: CaseResult) -> Interval | None:
    """Return the ratio in the case's metric."""
    return ratios.cpu if case.metric == "cpu" else ratios.wall


def time(seconds: float | None) -> str:
    """Format seconds, as "1.23 ms"."""
    if seconds is None:
        return ""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if float(f"{seconds * factor:.3g}") >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def noise_note(report: BenchReport) -> str:
    """Say how quiet the machine was, and what was cut short; no other text repeats the latter."""
    cases = [case for row in report.experiments for case in row.cases if case.rounds]
    if not cases:
        return "no round was timed"
    shares = [row.foreign for case in cases for row in case.rounds]
    text = f"{sum(case.clean for case in cases)} of {len(shares)} rounds undisturbed, other load used "
    text += f"{fmean(shares):.0%} of the machine"
    if stops := sum(case.throttled for case in cases):
        text += f", {stops} periods throttled"
    if cut := [len(case.rounds) for case in cases if case.status == records.TRUNCATED]:
        rounds = f"{min(cut)} to {max(cut)}" if min(cut) < max(cut) else f"{max(cut)}"
        text += f"; {len(cut)} of {counted(len(cases), 'case')} cut short after {rounds} rounds, so "
        text += "with wider intervals" if min(cut) >= FEWEST else "with wider intervals, or none with fewer than six"
    return text


def caveat(case: CaseResult) -> str:
    """Say what makes a case's numbers less reliable than they seem; "" if nothing does.

    That a case was cut short is said once, by `noise_note`.
    """
    return join(
        case.reason if case.status == records.INTERRUPTED else "",
        disturbance([case]),
        f"{case.throttled} periods throttled by the cgroup's quota" if case.throttled else "",
        f"the baseline differs from itself: {interval_text(case.band)}" if _off(case.band) else "",
    )


def disturbance(cases: Sequence[CaseResult]) -> str:
    """Return how many rounds of the noisy cases were undisturbed; "" if no case is noisy."""
    noisy = [case for case in cases if case.noisy and case.rounds]
    clean, rounds = sum(case.clean for case in noisy), sum(len(case.rounds) for case in noisy)
    return f"noisy: {clean} of {rounds} rounds undisturbed" if noisy else ""


def join(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "; ".join(text for text in texts if text)


def _off(band: Interval | None) -> bool:
    """Whether the baseline surely differs from itself, to the digits shown; other arms may be off by as much."""
    return band is not None and not round(band.low, 2) <= 1 <= round(band.high, 2)


def log_lines(cases: Sequence[CaseResult]) -> list[str]:
    """Return an experiment's results, a line for each arm, for the log."""
    return [
        f"  {case.name}: {arm.name}: {verdict(arm, case)} {interval_text(judged_ratio(arm, case))}".rstrip()
        for case in cases
        for arm in case.arms
        if case.rounds and arm.name != case.baseline
    ]


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """An arm's numbers as text for a table; "" if there are none. `style`: of the verdict on a page."""

    name: str
    verdict: str
    cpu: str = ""
    wall: str = ""
    time: str = ""
    faults: str = ""
    rss: str = ""
    style: str = "quiet"


def table_row(arm: ArmResult, case: CaseResult) -> TableRow:
    """Format an arm's numbers for a table."""
    error = f"; error {arm.error:.1e}" if arm.error is not None else ""
    return TableRow(
        name=arm.name + (f" ({arm.note})" if arm.note else ""),
        verdict=verdict(arm, case) + error,
        cpu=interval_text(arm.cpu),
        wall=interval_text(arm.wall),
        time=time(arm.seconds),
        faults=f"{arm.faults:.0f}" if arm.faults is not None else "",
        rss=f"{arm.rss:.0f}" if arm.rss is not None else "",
        style=arm.effect if arm.effect in (records.FASTER, records.SLOWER) else "quiet",
    )
