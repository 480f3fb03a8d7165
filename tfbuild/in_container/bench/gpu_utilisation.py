"""How busy the GPUs are, as nvidia-smi reports it: the share of time in which any kernel ran."""

from __future__ import annotations

import statistics
import subprocess
import threading
from typing import Any, Callable, List

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
# nvidia-smi averages over a sixth of a second to one second.
EVERY_SECONDS = 0.5
ANSWER_SECONDS = 10.0


def percent_busy(work: Callable[[], Any], fewest: int = 10) -> float:
    """Return the GPUs' utilisation in percent while `work` is called over and over: the median of the samples.

    Raises OSError if there is no nvidia-smi, and ValueError if its output has no utilisation.
    """
    samples: List[float] = []
    errors: List[Exception] = []
    over = threading.Event()

    def sample() -> None:
        try:
            while len(samples) < fewest and not over.wait(EVERY_SECONDS):
                samples.append(query())
        except Exception as error:
            errors.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        while not over.is_set():
            work()
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
    return statistics.median(samples)


def query() -> float:
    """Ask nvidia-smi once; return the mean over the GPUs."""
    done = subprocess.run(QUERY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ANSWER_SECONDS)
    return parse(done.stdout.decode(errors="replace"))


def parse(text: str) -> float:
    """Return 69.0 for "41\\n97\\n". GPUs that report "[N/A]" are left out; raises ValueError if all of them do."""
    percents = [float(line) for line in text.splitlines() if line.strip().isdigit()]
    if not percents:
        raise ValueError("nvidia-smi reports no utilisation: " + text.strip()[:100])
    return sum(percents) / len(percents)
