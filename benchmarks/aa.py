"""How often the benchmark claims a difference where there is none, and finds one where a tenth is planted.

    .venv/bin/python -m benchmarks.aa [IMAGE] [--repeats 20]

Each repeat is a comparison as `invoke bench` makes it: 15 rounds of work against the same work, in one process and in
two; and of four times as many rounds, which a tenth of wall time needs on two cores, against the same work with a sleep
of a tenth after it. At most one repeat in twenty may claim a difference, and at most one in twenty may miss the sleep.
A repeat of fewer than six rounds shows neither: too many of those are a failure, too, and so is a sleep that does not
measure as a tenth.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from benchmarks.harness import record
from tfbuild.bench import session
from tfbuild.bench.session import Settings
from tfbuild.bench.wording import judged_ratio
from tfbuild.engine import Engine
from tfbuild.measure.experiments import Arm, Case, Experiment, Metric
from tfbuild.measure.probe import FOLDER
from tfbuild.measure.records import NO_DIFFERENCE, SLOWER, BenchReport, CaseResult, ExperimentResult, Value
from tfbuild.util.progress import Progress

PLANTED = Path(__file__).parent.parent / "tests" / "data" / "bench" / "planted.py"
IMAGE = "tfbuild:2.21.0-mkl-py3.11-f16c"
REPEATS = 20
MOST_WRONG = 0.05
ASLEEP = "a tenth asleep"
# What is planted in it, as a ratio of speeds, and how far the median of the repeats may be from it.
TENTH, WIDE = 1 / 1.1, 0.02
SLEEPY_ROUNDS = 60
# A repeat takes ten seconds on two quiet cores, one with a sleep thirty; the rounds, not the time, are what ends it.
SECONDS, SLEEPY_SECONDS = 45.0, 90.0
# One operation family each, as the benchmark's own rows have them.
WORK: tuple[tuple[str, dict[str, Value]], ...] = (
    ("convolution", {"train": True}),
    ("elementwise", {}),
    ("matmul", {}),
    ("decode", {"fused": True, "window": [75, 138, 224, 224]}),
)
SIZE: dict[str, Value] = {"size": 1024}
SLEEPY: dict[str, Value] = {**SIZE, "how": "sleep"}


def rows(repeats: int) -> tuple[Experiment, ...]:
    works = list(islice(cycle(WORK), repeats))
    return (
        experiment("one process", [same(turn, *work) for turn, work in enumerate(works)]),
        experiment("two processes", [same(turn, *work, apart=True) for turn, work in enumerate(works)]),
    )


def sleepy(repeats: int) -> Experiment:
    return experiment(ASLEEP, [asleep(turn) for turn in range(repeats)], metric="wall")


def experiment(name: str, cases: list[Case], metric: Metric = "cpu") -> Experiment:
    return Experiment(
        name=name, question="-", compares="-", changes="-", source="-", metric=metric, fresh=True, case=tuple(cases)
    )


def same(turn: int, workload: str, params: dict[str, Value], *, apart: bool = False) -> Case:
    # A process with a name is a new one in each repeat.
    first, second = f"{turn}", f"{turn} other" if apart else f"{turn}"
    arms = (Arm(name="this", process=first), Arm(name="the same", process=second))
    return Case(name=f"{turn + 1}: {workload}", workload=workload, params=params, arm=arms)


def asleep(turn: int) -> Case:
    arms = (
        Arm(name="this", workload="plain", params=SIZE, process=f"{turn}"),
        Arm(name="asleep", workload="delayed", params=SLEEPY, process=f"{turn}"),
    )
    return Case(name=f"{turn + 1}: element-wise", arm=arms)


def outcome(case: CaseResult) -> dict[str, object]:
    arm = case.arms[-1]
    ratio = judged_ratio(arm, case)
    return {
        "case": case.name,
        "effect": arm.effect or f"{arm.status}: {arm.reason}",
        "ratio": [ratio.median, ratio.low, ratio.high] if ratio else None,
        "band": [case.band.median, case.band.low, case.band.high] if case.band else None,
        "rounds": len(case.rounds),
        "clean": case.clean,
    }


def middle(row: ExperimentResult) -> float | None:
    """The median of the repeats' ratios."""
    ratios = [ratio.median for case in row.cases if case.arms and (ratio := judged_ratio(case.arms[-1], case))]
    return median(ratios) if ratios else None


def words(row: ExperimentResult) -> list[str]:
    """The verdicts of the repeats that had rounds enough for one."""
    return [case.arms[-1].effect for case in row.cases if case.arms and case.arms[-1].effect]


def summary(report: BenchReport, rows: Sequence[ExperimentResult]) -> dict[str, object]:
    results: dict[str, object] = {"image": report.image.ref, "tensorflow": report.software.tensorflow}
    for row in rows:
        verdicts = words(row)
        same, slower = verdicts.count(NO_DIFFERENCE), verdicts.count(SLOWER)
        results[row.name] = {
            "repeats": len(verdicts),
            "no difference shown": same,
            "slower": slower,
            "median": middle(row),
            "each": [outcome(case) for case in row.cases if case.arms],
        }
        print(f"{row.name:16} {same} of {len(verdicts)} show no difference, {slower} are slower")
    return results


def troubles(rows: Sequence[ExperimentResult], repeats: int) -> Iterator[str]:
    """What speaks against the method, or that too little was measured to say."""
    most = MOST_WRONG * repeats
    for row in rows:
        verdicts = words(row)
        wanted = SLOWER if row.name == ASLEEP else NO_DIFFERENCE
        wrong = len(verdicts) - verdicts.count(wanted)
        if repeats - len(verdicts) > most:
            yield f"{row.name}: only {len(verdicts)} of {repeats} repeats had rounds enough for a verdict"
        if wrong > most:
            yield f"{row.name}: {wrong} of {len(verdicts)} repeats do not say {wanted!r}"
        measured = middle(row)
        if row.name == ASLEEP and measured and abs(measured - TENTH) > WIDE:
            yield f"{row.name}: the planted tenth was not measured: the median is {measured:.3f}, not {TENTH:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default=IMAGE)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    more = {f"{FOLDER}/bench/workloads/planted.py": PLANTED.read_bytes()}
    usual = Settings(mode="budget", budget=2 * SECONDS * options.repeats, more=more)
    longer = replace(usual, budget=SLEEPY_SECONDS * options.repeats, rounds=SLEEPY_ROUNDS)
    engine, measured = Engine.connect(), list[ExperimentResult]()
    for wanted, settings in ((rows(options.repeats), usual), ((sleepy(options.repeats),), longer)):
        report = session.bench(engine, options.image, wanted, settings, Progress(), engine.require_answer)
        measured += report.experiments
        if report.interrupted:
            sys.exit("interrupted; nothing was recorded")
    print(record("aa", summary(report, measured)))
    if wrong := list(troubles(measured, options.repeats)):
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
