"""How busy GPUs are while something runs, by nvidia-smi: the share of time in which any kernel ran, no more."""

from __future__ import annotations

import statistics
import subprocess
import threading
from typing import Any, Callable, List

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
# It looks back over a sixth of a second to a second.
EVERY_SECONDS = 0.5
ANSWER_SECONDS = 10.0


def busy(work: Callable[[], Any], fewest: int = 10) -> float:
    """Percent of the time, the median over samples of all GPUs, while `work` is called over and over.

    Raises OSError where there is no nvidia-smi, ValueError where it answers with something else.
    """
    found: List[float] = []
    failed: List[Exception] = []
    over = threading.Event()

    def sample() -> None:
        try:
            while len(found) < fewest and not over.wait(EVERY_SECONDS):
                found.append(asked())
        except Exception as error:
            failed.append(error)
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
    if failed:
        raise failed[0]
    return statistics.median(found)


def asked() -> float:
    """One answer of nvidia-smi: the mean of its GPUs."""
    done = subprocess.run(QUERY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ANSWER_SECONDS)
    return parsed(done.stdout.decode(errors="replace"))


def parsed(text: str) -> float:
    """ "41\\n97\\n" as 69.0; a GPU that cannot tell ("[N/A]") is left out. ValueError where none can."""
    numbers = [float(line) for line in text.splitlines() if line.strip().isdigit()]
    if not numbers:
        raise ValueError("nvidia-smi tells no utilisation: " + text.strip()[:100])
    return sum(numbers) / len(numbers)
