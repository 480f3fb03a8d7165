"""The throughput check: the benchmark's experiment `tuning`, all of its cases, against this image's own baseline.

No absolute time is judged. The ratio is baseline over image (above 1: the image is faster) of CPU time, which
neighbours disturb least; the image runs twice, and what it differs from itself is the band.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tfbuild.bench import experiments, rounds, together, workers
from tfbuild.bench.arms import Place
from tfbuild.bench.evaluate import AGAIN
from tfbuild.bench.experiments import Experiment
from tfbuild.bench.results import CaseResult, Round, Sample
from tfbuild.bench.rounds import Comparison, Limits
from tfbuild.engine import Engine
from tfbuild.proof import Benchmark, Interval, Throughput, Timing, Triple
from tfbuild.verify import paired

EXPERIMENT = "tuning"
ROUNDS = 9
# The rounds' share of the minute that a verification may take. A machine so busy that six rounds do not fit into it
# gets up to LONGEST.
SECONDS = 20.0
LONGEST = 90.0


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the throughput is compared with: an image, and what to change in its environment (empty: as if not set).

    `ref`: what reports call it; `id`: by what it is run, where its name may go to another one meanwhile.
    """

    ref: str
    env: Mapping[str, str]
    id: str = ""

    @property
    def image(self) -> str:
        return self.id or self.ref


class TooBusyError(Exception):
    """The machine is so busy that too few rounds fitted into the time: nothing is known of the image."""


def measure(engine: Engine, ref: str, baseline: Baseline, *, seed: int = 0) -> Throughput:
    """Raises MeasurementError, TooBusyError, WorkerDied or TimeoutError."""
    row = against(baseline)
    # Nothing that the row does is filled with the machine's numbers.
    place = Place(image=ref, against=baseline.image, cpus=0, gpus=0)
    with workers.pool(engine, {}) as pool:
        made = [
            Comparison(row=row, case=case, place=place, pool=pool, tell=lambda _: None, strict=True)
            for case in row.case
        ]
        rounds.prepare(made, math.inf)
        begin = time.monotonic()
        limits = Limits(rounds=ROUNDS, end=begin + SECONDS, latest=begin + LONGEST)
        rounds.run(made, limits, random.Random(seed))
    done = min(len(one.rounds) for one in made)
    if done < paired.FEWEST:
        raise TooBusyError(f"the machine is too busy: only {done} rounds fitted into {LONGEST:g} s")
    return throughput([one.result() for one in made], baseline)


def against(baseline: Baseline) -> Experiment:
    """The experiment with this baseline in place of its own, which is the image itself without its tuning."""
    (row,) = experiments.select([EXPERIMENT], quick=True)
    image, other = row.arm
    other = replace(other, image="against", env=dict(baseline.env), process="baseline")
    return replace(row, arm=(image, other), case=tuple(replace(case, needs="against") for case in row.case))


# --- the benchmark's records as verification's: pure ------------------------------------------------------------------


def throughput(cases: Sequence[CaseResult], baseline: Baseline) -> Throughput:
    """ValueError where the cases have no mean: they lack rounds."""
    (arm,) = {arm.name for case in cases for arm in case.arms if arm.name != case.baseline}
    found = together.mean(cases, arm)
    if found is None:
        raise ValueError("too few rounds for a ratio")
    return Throughput(
        metric=cases[0].metric,
        baseline=baseline.ref,
        retuned=dict(baseline.env),
        cpu=inverse(found.cpu),
        wall=inverse(found.wall),
        band=inverse(found.band),
        effect=paired.effect(inverse(found.cpu), inverse(found.band)),
        rounds=found.rounds,
        clean=found.clean,
        foreign=found.foreign,
        benchmarks=tuple(_benchmark(case, arm) for case in cases),
    )


def _benchmark(case: CaseResult, name: str) -> Benchmark:
    (arm,) = (arm for arm in case.arms if arm.name == name)
    if arm.cpu is None or arm.wall is None or case.band is None:
        raise ValueError(f"{case.name}: too few rounds for a ratio")
    cpu, band = inverse(arm.cpu), inverse(case.band)
    inner = case.rounds[0].samples[case.baseline].inner
    return Benchmark(
        name=arm.workload,
        inner=inner,
        rounds=tuple(_triple(row, case.baseline, name, inner) for row in case.rounds),
        cpu=cpu,
        wall=inverse(arm.wall),
        band=band,
        effect=paired.effect(cpu, band),
    )


def _triple(row: Round, image: str, baseline: str, inner: int) -> Triple:
    return Triple(
        image=_timing(row.samples[image], inner),
        baseline=_timing(row.samples[baseline], inner),
        again=_timing(row.samples[AGAIN], inner),
        foreign=row.foreign,
    )


def _timing(sample: Sample, inner: int) -> Timing:
    """For `inner` calls: a sample that was too short was taken again with more."""
    return Timing(wall=sample.wall * (inner / sample.inner), cpu=sample.cpu * (inner / sample.inner))


def inverse(ratio: Interval) -> Interval:
    """The benchmark's baseline is the image: its ratios are the other way round."""
    return Interval(median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low, coverage=ratio.coverage)
