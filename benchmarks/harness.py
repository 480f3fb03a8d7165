"""Measurements in interleaved rounds, and the reports of all benchmarks."""

import json
import platform
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tfbuild.cpu import detect

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


def rounds(measurements: Mapping[str, Callable[[], T]], count: int) -> list[dict[str, T]]:
    """Each measurement once a round, in shuffled order; the first round warms up and does not count."""
    records = []
    for _ in range(count + 1):
        order = random.sample(list(measurements), len(measurements))
        records.append({name: measurements[name]() for name in order})
    return records[1:]


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
        "results": {**results},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
