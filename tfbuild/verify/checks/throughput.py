"""The throughput check: all cases of the experiment in the role "verification", against this image's own baseline.

No absolute time is judged. The ratio is the CPU time of the baseline over that of the image (above 1: the image is
faster), because CPU time is disturbed least by other processes. The image runs twice; its ratio to itself is the band.
"""

import math
import random
import time
from collections.abc import Sequence
from statistics import fmean

from msgspec.structs import replace

from tfbuild.engine import WorkerDied
from tfbuild.errors import reason_of
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import evaluate, experiments, records, rounds, workers
from tfbuild.measure.evaluate import inverse
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.records import CaseResult
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import Machine, MeasurementError
from tfbuild.verify import Baseline, Verification, VerificationCheck
from tfbuild.verify.report import Benchmark, Throughput, ratio_text

ROUNDS = 9
# The rounds' share of the minute that a verification may take. On a machine so busy that six rounds do not fit, they
# may take up to LONGEST.
SECONDS = 20.0
LONGEST = 90.0
TOO_SLOW = 0.95


def measure(verification: Verification, baseline: Baseline) -> Throughput | str:
    """Measure the image against its baseline, or say why too few rounds fitted into the time to judge it.

    Raises MeasurementError, WorkerDied or TimeoutError.
    """
    row = against(baseline)
    # No placeholder in the row depends on the machine's numbers.
    machine = Machine(image=verification.ref, against=baseline.id, cpus=0, gpus=0)
    with workers.pool(verification.engine, {}, verification.sandbox) as pool:
        runs = [
            CaseRun(row=row, case=case, machine=machine, pool=pool, tell=lambda _: None, strict=True)
            for case in row.case
        ]
        rounds.prepare(runs, math.inf)
        begin = time.monotonic()
        limits = RoundLimits(rounds=ROUNDS, end=begin + SECONDS, latest=begin + LONGEST)
        rounds.run(runs, limits, random.Random(0))
    done = min(len(run.rounds) for run in runs)
    if done < evaluate.FEWEST:
        return f"the machine is too busy: only {done} rounds fitted into {LONGEST:g} s"
    return throughput([run.result() for run in runs], baseline)


def against(baseline: Baseline) -> Experiment:
    """Return the experiment with this baseline; its own is the image itself without its tuning."""
    row = experiments.in_role("verification")
    image, other = row.arm
    other = replace(other, image="against", env=dict(baseline.env), process="baseline")
    return replace(row, arm=(image, other), case=tuple(replace(case, needs="against") for case in row.case))


# --- the benchmark's records as those of a verification: pure ---------------------------------------------------------


def throughput(cases: Sequence[CaseResult], baseline: Baseline) -> Throughput:
    """Combine the cases. Raises ValueError if they have too few rounds for a mean."""
    (arm,) = {arm.name for case in cases for arm in case.arms if arm.name != case.baseline}
    mean = evaluate.together(cases)
    assert mean is not None  # they took turns
    cpu, band = inverse(mean.arms[arm].cpu), inverse(mean.band)
    return Throughput(
        metric=cases[0].metric,
        baseline=baseline.ref,
        retuned=dict(baseline.env),
        cpu=cpu,
        wall=inverse(mean.arms[arm].wall),
        band=band,
        effect=evaluate.effect(cpu, band),
        rounds=len(cases[0].rounds),
        clean=mean.clean,
        foreign=fmean(row.foreign for case in cases for row in case.rounds),
        benchmarks=tuple(_benchmark(case, arm) for case in cases),
    )


def _benchmark(case: CaseResult, name: str) -> Benchmark:
    (arm,) = (arm for arm in case.arms if arm.name == name)
    cpu, band = inverse(arm.cpu), inverse(case.band)
    return Benchmark(
        name=arm.workload,
        cpu=cpu,
        wall=inverse(arm.wall),
        band=band,
        effect=evaluate.effect(cpu, band),
    )


# --- the check -------------------------------------------------------------------------------------------------------


def _skip(verification: Verification) -> str:
    if any(check.name == "onednn" and check.status == judge.FAIL for check in verification.checks):
        return "oneDNN is not as planned (see onednn), and times would only show that"
    baseline = verification.baseline
    return verification.why or (baseline if isinstance(baseline, str) else "")


def _run(verification: Verification) -> Judgement:
    baseline = verification.baseline
    assert isinstance(baseline, Baseline)  # else the check is skipped
    try:
        result = measure(verification, baseline)
    except (MeasurementError, WorkerDied, TimeoutError) as error:
        why = reason_of(error)
        # The image itself has started: this CPU lacks what the baseline needs, as the official wheel needs AVX.
        if isinstance(error, WorkerDied) and error.code == judge.GUARD_EXIT:
            advice = judge.last_line(why, judge.MOST_ADVICE)
            return Judgement(judge.SKIP, f"the baseline does not start here: {advice}")
        return Judgement(judge.FAIL, f"could not be measured: {why}")
    if isinstance(result, str):
        return Judgement(judge.SKIP, result)
    verification.throughput = result
    return judge_speed(result)


def judge_speed(result: Throughput) -> Judgement:
    """Fail only where the whole interval of the CPU-time ratio lies under 0.95 of the baseline's speed.

    It must also lie under that of the image against itself. A machine on which the image differs from itself by as much
    is too noisy to tell, unless the image is too slow even after that difference is taken off.
    """
    summary = (
        f"{result.effect}: {ratio_text(result.cpu)} of the baseline's speed in CPU time, {ratio_text(result.wall)} in "
        f"wall time; the image against itself {ratio_text(result.band)}; {result.clean} of {result.rounds} rounds "
        "undisturbed"
    )
    measures = tuple(
        judge.Measurement(name, value, limit)
        for name, value, limit in (
            ("cpu_ratio", result.cpu.median, ""),
            ("cpu_ratio_high", result.cpu.high, f">= {TOO_SLOW}"),
            ("wall_ratio", result.wall.median, ""),
            ("band_low", result.band.low, ""),
            ("band_high", result.band.high, ""),
        )
    )
    slow = result.cpu.high < TOO_SLOW
    surely = result.cpu.high < TOO_SLOW * min(1.0, result.band.low, 1 / result.band.high)
    noisy = result.band.high < TOO_SLOW or result.band.low > 1 / TOO_SLOW
    if not surely and (noisy or (slow and result.effect != records.SLOWER)):
        return Judgement(judge.SKIP, f"the machine is too noisy to tell; {summary}", measures)
    return Judgement(judge.FAIL if slow else judge.PASS, summary, measures)


CHECK = VerificationCheck(
    name="throughput",
    proves="The image is not shown to be more than 5 % slower than its baseline.",
    how="Three persistent containers (image, baseline, image again), idle ones paused, interleaved in random "
    "order; per-round ratios of CPU time, their median and order-statistic interval, beside the image against "
    "itself. It fails only where the whole interval lies under 0.95 and under that of the image against itself.",
    fix="compare the environment and the threading with the baseline's; run again on a quiet machine",
    skip=_skip,
    run=_run,
)
