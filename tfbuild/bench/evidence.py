"""Record which primitives an arm runs and how much memory it needs, in separate processes, while nothing is timed."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tfbuild.bench import findings
from tfbuild.errors import TfbuildError, reason_of
from tfbuild.in_container.bench.worker import Peak
from tfbuild.in_container.smoke import judge
from tfbuild.measure import probe, workers
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import Finding
from tfbuild.measure.workers import Key, Machine, MeasurementError, Pool
from tfbuild.util.quantities import few
from tfbuild.util.terminal import printable

MOST_LISTED, MOST_LETTERS = 4, 4000
LEAST_SECONDS = 30.0
# An experiment with less time observes only its first case.
ALL_SECONDS = 60.0
# The share of an experiment's time for observing.
SHARE = 0.35
# Batches grow by this factor until the process's memory has grown by so many MiB; the import alone takes 500.
STEP, GROWTH, MOST_POINTS = 4, 512.0, 7
# The share of the machine's memory that may be filled.
MOST_MEMORY = 0.25
# Errors that end a worker; its earlier answers stay valid.
LOST_ERRORS = (TfbuildError, OSError, MeasurementError)


def observe(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    """Record the evidence that the row asks for, within a share of the experiment's `seconds`."""
    watch = WATCHED.get(row.evidence)
    found = watch(row, cases, pool, machine, SHARE * seconds) if watch else ()
    # An image's log may have any text.
    return tuple(replace(one, text=printable(one.text, MOST_LETTERS)) for one in found)


# --- which primitives run -------------------------------------------------------------------------------------------


def _primitives(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> Iterator[Finding]:
    """List the primitives that oneDNN, switched on, logs for the workloads."""
    some = cases if seconds >= SHARE * ALL_SECONDS else cases[:1]
    asked = [{"ask": "once", "workload": row.work(case), "params": case.params} for case in some]
    begin = "TF_ENABLE_ONEDNN_OPTS=1: "
    try:
        run = pool.engine.run(
            machine.image,
            workers.program(),
            env={**workers.WORKER_ENV, **workers.NO_GPU, **judge.ONEDNN_LOGGING, "TF_ENABLE_ONEDNN_OPTS": "1"},
            files={**probe.probe_files(), **pool.more},
            stdin="".join(f"{json.dumps(question)}\n" for question in asked).encode(),
            timeout=max(LEAST_SECONDS, seconds / 2),
        )
        # Empty if one of the workloads ran.
        why = judge.Ended(run.exit_code, run.stderr).why or min(
            (answer.reason for answer in probe.parse_records(run.stdout, (Peak,) * len(asked))), default=""
        )
    except (TfbuildError, OSError, ValueError) as error:
        why = reason_of(error)
    log = f"{begin}oneDNN's log could not be read: {why}"
    yield Finding(text=log, values={}) if why else primitives(begin, run.stderr)


def primitives(begin: str, text: str) -> Finding:
    """Return a finding that starts with `begin`, from the lines that oneDNN prints with ONEDNN_VERBOSE=1."""
    runtime, isa, kinds = judge.primitives(text)
    ran = "; ".join(f"{kind}: {few(names, MOST_LISTED)}" for kind, names in sorted(kinds.items()))
    where = f"oneDNN on {runtime} ({isa}) runs " if kinds else "no primitive of oneDNN runs"
    return Finding(text=f"{begin}{where}{ran}", values={kind: float(len(names)) for kind, names in kinds.items()})


# --- what a batch needs ---------------------------------------------------------------------------------------------


def _batch_memory(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> Iterator[Finding]:
    """Run growing batches in a separate process for each case, whose peak is that of the largest batch so far."""
    end = time.monotonic() + seconds
    for case in cases:
        arms = row.arms(case)
        sizes = [batch for arm in arms if isinstance(batch := arm.params.get("batch"), int)]
        if not sizes or time.monotonic() > end:
            continue
        key = Key(image=machine.image, env=machine.key(case, arms[0]).env, process=f"memory of {case.name}")

        def ask(batch: int, key: Key = key, case: Case = case) -> Peak:
            params, left = {**case.params, "batch": batch}, max(1.0, end - time.monotonic())
            return pool.ask(key, Peak, left, ask="once", workload=row.work(case), params=params)

        try:
            pool.start([key])
            finding = findings.memory(case.name, *peaks_by_batch(ask, sizes, end))
        except LOST_ERRORS:
            continue
        finally:
            pool.close(key)
        if finding:
            yield finding


def peaks_by_batch(
    ask: Callable[[int], Peak], sizes: Sequence[int], end: float
) -> tuple[list[tuple[int, float]], float]:
    """Measure (items, MiB) at the smallest of `sizes`, the largest and beyond; return it with the MiB available."""
    points: list[tuple[int, float]] = []
    limit, batch = 0.0, min(sizes)
    for following in [max(sizes) * STEP**turn for turn in range(MOST_POINTS)]:
        try:
            answer = ask(batch)
        except LOST_ERRORS:
            break
        if answer.reason:
            break
        points.append((answer.items, answer.peak))
        limit = answer.limit
        grown = answer.peak - points[0][1]
        too_much = points[0][1] + grown * following / batch > MOST_MEMORY * limit
        if grown >= GROWTH or too_much or time.monotonic() > end:
            break
        batch = following
    return points, limit


WATCHED: dict[str, Callable[[Experiment, Sequence[Case], Pool, Machine, float], Iterator[Finding]]] = {
    "primitives": _primitives,
    "batch_memory": _batch_memory,
}
