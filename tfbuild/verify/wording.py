"""The text of a verification's results, for every table, page and message."""

from typing import Any

from tfbuild.measure.records import Interval
from tfbuild.verify.records import Check, Report

MARKS = {"pass": "ok", "warn": "WARN", "fail": "FAIL", "skip": "skip"}


def spelled(interval: Interval) -> str:
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def baseline(report: Report) -> str:
    """Return what the image's speed was compared with, and what was changed in its environment."""
    if report.throughput is None:
        return ""
    changed = report.throughput.retuned
    settings = " ".join(f"{name}={value}" for name, value in sorted(changed.items()))
    return f"{report.throughput.baseline} with {settings}" if changed else report.throughput.baseline


def numbers(check: Check) -> str:
    """Return the numbers behind a check, with their limits."""
    return ", ".join(f"{m.name} {m.value:.4g}{f' ({m.limit})' if m.limit else ''}" for m in check.measures)


def plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
