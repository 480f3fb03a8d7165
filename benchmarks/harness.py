"""Ratios within one run: measurements in interleaved rounds, compared round by round."""

import json
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TypeVar

from tfbuild.cpu import detect

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median of the rounds' ratios a/b with its smallest and largest; `a` and `b`: every sample, in its own unit."""

    median: float
    low: float
    high: float
    a: tuple[float, ...]
    b: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}] ({len(self.a)} rounds)"


def rounds(measurements: Mapping[str, Callable[[], T]], count: int) -> list[dict[str, T]]:
    """Each measurement once a round, in shuffled order; the first round warms up and does not count."""
    records = []
    for _ in range(count + 1):
        order = random.sample(list(measurements), len(measurements))
        records.append({name: measurements[name]() for name in order})
    return records[1:]


def compare(a: Callable[[], float], b: Callable[[], float], count: int) -> Ratio:
    """Two measurements, in `count` rounds."""
    return ratio([(each["a"], each["b"]) for each in rounds({"a": a, "b": b}, count)])


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio a/b of the samples of each round."""
    ratios = [x / y for x, y in pairs]
    return Ratio(
        median=median(ratios),
        low=min(ratios),
        high=max(ratios),
        a=tuple(x for x, _ in pairs),
        b=tuple(y for _, y in pairs),
    )


def record(name: str, results: Mapping[str, object]) -> Path:
    """Write benchmarks/results/NAME.json with the machine that it was measured on."""
    cpu = detect()
    document = {
        "benchmark": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu.model,
            "level": cpu.level,
            "kernel": platform.release().partition("-")[0],
            "python": platform.python_version(),
        },
        "results": {key: asdict(value) if isinstance(value, Ratio) else value for key, value in results.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
