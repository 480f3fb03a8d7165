"""Quantities as options give them: durations, counts and gigabytes."""

import re

from tfbuild.errors import UsageError

LIMIT = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)


def limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Read "5h30m", "90m" or "45s" as seconds, "" as 0, which is no limit; raises UsageError."""
    found = LIMIT.fullmatch(text)
    if found is None or (text and not any(found.groups())):
        raise UsageError(f"{option} {text!r} cannot be read", hint=f"{option} 5h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise UsageError(f"{option} {text!r} leaves no time", hint=f"{option} 5h30m")
    return float(total)


def positive(option: str, text: str) -> int:
    """Read an option's value as a number from 1 on; raises UsageError."""
    if not COUNT.fullmatch(text):
        raise UsageError(f"--{option} {text!r} is no number from 1 on", hint=f"--{option} 3")
    return int(text)


def gigabytes(text: str) -> int | None:
    """Read --need-disk as bytes, "0" as 0 ("do not look"), "" as None; raises UsageError."""
    if text == "0":
        return 0
    return positive("need-disk", text) * 10**9 if text else None
