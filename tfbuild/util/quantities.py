"""Parse durations, counts and gigabytes in options, and write counts in messages."""

import re

from tfbuild.errors import UsageError

LIMIT = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m(?:in)?)?(?:(\d{1,6})s)?", re.ASCII)
COUNT = re.compile(r"[1-9]\d{0,5}", re.ASCII)


def limit_seconds(text: str, option: str = "--time-limit") -> float:
    """Parse "5h30m", "90m", "90min" or "45s" as seconds, and "" as 0 for no limit. Raises UsageError."""
    match = LIMIT.fullmatch(text)
    if text.isdecimal() and text.isascii():
        raise UsageError(f"{option} {text!r} has no unit", hint=f"{option} {text}m, or {text}h for hours")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise UsageError(f"{option} {text!r} cannot be read", hint=f"{option} 5h30m")
    return float(total)


def positive(option: str, text: str) -> int:
    """Parse an option's value as a positive integer. Raises UsageError."""
    if not COUNT.fullmatch(text):
        begun = COUNT.match(text)
        large = begun and text.isdecimal()
        why = "is more than 999999" if large else "must be a positive integer"
        raise UsageError(f"--{option} {text!r} {why}", hint=f"--{option} {begun[0] if begun and not large else 3}")
    return int(text)


def gigabytes(text: str) -> int | None:
    """Parse --need-disk as bytes, "0" as 0 ("do not check"), "" as None. Raises UsageError."""
    if text == "0":
        return 0
    return positive("need-disk", text) * 10**9 if text else None


def counted(number: int, noun: str) -> str:
    """Return "1 image", or "3 images"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
