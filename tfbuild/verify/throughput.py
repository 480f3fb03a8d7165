"""The throughput check: image against baseline, and image against itself, in interleaved rounds of persistent workers.

No absolute time is judged. A round times every workload in all three workers, in random order, the idle ones stopped;
the ratio is baseline over image (above 1: the image is faster) of CPU time, which neighbours disturb least.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tfbuild.engine import Engine, Worker
from tfbuild.proof import Benchmark, Interval, Throughput, Timing, Triple
from tfbuild.smoke.found import Prepared, Sample
from tfbuild.verify import paired, probe
from tfbuild.verify.asking import (
    FEWEST_CLEAN,
    MOST_FOREIGN,
    MOST_REPEATS,
    QUIET,
    SHORTEST_SAMPLE,
    alone,
    ask,
    bounded,
    checked,
    foreign,
)

WORKLOADS = ("convolution", "matmul", "elementwise", "jpeg")
ROUNDS = 9
# The rounds' share of the minute that a verification may take. A machine so busy that six rounds do not fit into it
# gets up to LONGEST.
SECONDS = 20.0
LONGEST = 90.0


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the throughput is compared with: an image, and what to change in its environment (empty: as if not set)."""

    ref: str
    env: Mapping[str, str]


class TooBusyError(Exception):
    """The machine is so busy that too few rounds fitted into the time: nothing is known of the image."""


@dataclass(frozen=True, kw_only=True)
class Trio:
    """The three workers; all are stopped but the one that is asked."""

    image: Worker
    baseline: Worker
    again: Worker

    def all(self) -> dict[str, Worker]:
        return {"image": self.image, "baseline": self.baseline, "again": self.again}


def measure(engine: Engine, ref: str, baseline: Baseline, *, seed: int = 0) -> Throughput:
    """Raises MeasurementError, TooBusyError, WorkerDied or TimeoutError."""
    shuffled = random.Random(seed)
    with trio(engine, ref, baseline) as workers:
        inner = {name: _calibrated(workers, name) for name in WORKLOADS}
        rounds = list(_rounds(workers, inner, shuffled))
    if len(rounds) < paired.FEWEST:
        raise TooBusyError(f"the machine is too busy: only {len(rounds)} rounds fitted into {LONGEST:g} s")
    return evaluate(rounds, inner, baseline)


@contextmanager
def trio(engine: Engine, ref: str, baseline: Baseline) -> Iterator[Trio]:
    """Starts and warms the three workers, at the same time; afterwards all are paused."""
    with ExitStack() as stack:
        workers = Trio(
            image=stack.enter_context(_start(engine, ref, {})),
            baseline=stack.enter_context(_start(engine, baseline.ref, baseline.env)),
            again=stack.enter_context(_start(engine, ref, {})),
        )
        pool = ThreadPoolExecutor(max_workers=3)
        # Not waited for: where one worker dies, or the user gives up, closing the containers ends the others' waiting.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        list(pool.map(_warm, workers.all().values()))
        for worker in workers.all().values():
            worker.pause()
        yield workers


def _start(engine: Engine, ref: str, env: Mapping[str, str]) -> Worker:
    unset = [name for name, value in env.items() if not value]
    command = ["python", probe.FOLDER, "worker", *unset]
    return engine.worker(ref, command, env={**QUIET, **env}, files=probe.files())


def _warm(worker: Worker) -> None:
    for name in WORKLOADS:
        ask(worker, Prepared, ask="warm", workload=name)


def _calibrated(workers: Trio, name: str) -> int:
    """Inner calls with which a sample takes a tenth of a second in the fastest worker: the same number for all."""
    inner = alone(workers.image, Prepared, ask="calibrate", workload=name).inner
    rehearsal = [_sample(worker, name, inner) for worker in workers.all().values()]
    fastest = max(min(sample.wall for sample in rehearsal), 1e-6)
    return bounded(inner * max(1.0, 1.1 * SHORTEST_SAMPLE / fastest))


def _rounds(workers: Trio, inner: Mapping[str, int], shuffled: random.Random) -> Iterator[dict[str, Triple]]:
    """Each round may repeat what was disturbed until its share of the time is over; the next one has its own."""
    begin = time.monotonic()
    for index in range(ROUNDS):
        spent = time.monotonic() - begin
        if spent > (SECONDS if index >= paired.FEWEST else LONGEST):
            return
        end = begin + SECONDS * (index + 1) / ROUNDS
        order = shuffled.sample(WORKLOADS, len(WORKLOADS))
        yield {name: _quiet_triple(workers, name, inner[name], shuffled, end) for name in order}


def _quiet_triple(workers: Trio, name: str, inner: int, shuffled: random.Random, end: float) -> Triple:
    """A triple that nobody disturbed, or the least disturbed of a few."""
    best = _triple(workers, name, inner, shuffled)
    for _ in range(MOST_REPEATS):
        if best.foreign <= MOST_FOREIGN or time.monotonic() > end:
            break
        best = min(best, _triple(workers, name, inner, shuffled), key=lambda triple: triple.foreign)
    return best


def _triple(workers: Trio, name: str, inner: int, shuffled: random.Random) -> Triple:
    named = list(workers.all().items())
    samples = {who: _sample(worker, name, inner) for who, worker in shuffled.sample(named, len(named))}
    timings = {who: Timing(wall=sample.wall, cpu=sample.cpu) for who, sample in samples.items()}
    return Triple(**timings, foreign=foreign(list(samples.values())))


def _sample(worker: Worker, name: str, inner: int) -> Sample:
    return checked(name, alone(worker, Sample, ask="sample", workload=name, inner=inner))


# --- evaluation: pure ------------------------------------------------------------------------------------------------


def evaluate(rounds: list[dict[str, Triple]], inner: Mapping[str, int], baseline: Baseline) -> Throughput:
    """The result of all rounds; where enough of them were quiet, of those alone."""
    clean = [row for row in rounds if all(triple.foreign <= MOST_FOREIGN for triple in row.values())]
    used = clean if len(clean) >= FEWEST_CLEAN else rounds

    def combined(ratio: Callable[[Triple], float]) -> Interval:
        return paired.interval([paired.geometric_mean([ratio(triple) for triple in row.values()]) for row in used])

    cpu, band = combined(_cpu), combined(_band)
    shares = [triple.foreign for row in rounds for triple in row.values()]
    return Throughput(
        metric="cpu",
        baseline=baseline.ref,
        retuned=dict(baseline.env),
        cpu=cpu,
        wall=combined(_wall),
        band=band,
        effect=paired.effect(cpu, band),
        rounds=len(rounds),
        clean=len(clean),
        foreign=sum(shares) / len(shares),
        benchmarks=tuple(_benchmark(name, inner[name], rounds, used) for name in inner),
    )


def _benchmark(name: str, inner: int, rounds: list[dict[str, Triple]], used: list[dict[str, Triple]]) -> Benchmark:
    cpu, wall, band = (paired.interval([ratio(row[name]) for row in used]) for ratio in (_cpu, _wall, _band))
    return Benchmark(
        name=name,
        inner=inner,
        rounds=tuple(row[name] for row in rounds),
        cpu=cpu,
        wall=wall,
        band=band,
        effect=paired.effect(cpu, band),
    )


def _cpu(triple: Triple) -> float:
    return triple.baseline.cpu / triple.image.cpu


def _wall(triple: Triple) -> float:
    return triple.baseline.wall / triple.image.wall


def _band(triple: Triple) -> float:
    return triple.again.cpu / triple.image.cpu
