"""Parse durations and counts in options, and write counts in messages."""

import re
from collections.abc import Sequence

from tfbuild.errors import UsageError

DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m(?:in)?)?(?:(\d{1,6})s)?", re.ASCII)
COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)


def limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Parse "5h30m", "90m", "90min" or "45s" as seconds, and "" as 0 for no limit. Raises UsageError."""
    match = DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise UsageError(f"{option} {text!r} cannot be read", hint=f"{option} 5h30m")
    return float(total)


def positive(option: str, text: str) -> int:
    """Parse an option's value as a positive integer. Raises UsageError."""
    if not COUNT.fullmatch(text):
        raise UsageError(f"--{option} {text!r} must be a positive integer below a million", hint=f"--{option} 3")
    return int(text)


def counted(number: int, noun: str) -> str:
    """Return "1 image", or "3 images"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first names, and how many more there are: "a, b and 3 more"."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")
