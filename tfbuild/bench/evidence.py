"""Observe what an arm really runs or needs, in separate processes and never while something is timed."""

import json
import time
from collections.abc import Callable, Iterator, Sequence

from tfbuild.bench import findings
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import GpuUtilisation, Peak, Ready
from tfbuild.in_container.smoke import judge
from tfbuild.measure import workers
from tfbuild.measure.experiments import Arm, Case, EvidenceKind, Experiment
from tfbuild.measure.records import Finding
from tfbuild.measure.sides import Machine
from tfbuild.measure.workers import FOLDER, Key, MeasurementError, Pool, files

# TensorFlow's own contraction calls this primitive with oneDNN off too, so it proves nothing.
UNPROVEN = "gemm_api"
MOST_LISTED = 4
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
LOST = (TfbuildError, TimeoutError, MeasurementError)


def observe(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    """Observe what the row's `evidence` asks for, within a share of the experiment's `seconds`."""
    watch = WATCHED.get(row.evidence)
    return watch(row, cases, pool, machine, seconds) if watch else ()


def _switched(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    within = max(LEAST_SECONDS, SHARE * seconds / 2)
    if seconds < ALL_SECONDS:
        return (_primitives(row, cases[:1], pool, machine, "1", within),)
    # One case is enough to show that oneDNN is off.
    return _primitives(row, cases, pool, machine, "1", within), _primitives(row, cases[:1], pool, machine, "0", within)


def _batch_memory(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    end = time.monotonic() + SHARE * seconds
    return tuple(finding for case in cases if (finding := _memory(row, case, pool, machine, end)))


def _pipeline_peaks(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    end = time.monotonic() + SHARE * seconds
    # Begin with the case of the fewest arms, which is the one about memory.
    pipelines = sorted((case for case in cases if case.workload == "pipeline"), key=lambda case: len(row.arms(case)))
    return tuple(finding for case in pipelines if (finding := _peaks(row, case, pool, machine, end)))


def _gpu_use(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, seconds: float
) -> tuple[Finding, ...]:
    return tuple(_trainings(row, pool.engine, machine.image)) if machine.gpus else ()


Watch = Callable[[Experiment, Sequence[Case], Pool, Machine, float], tuple[Finding, ...]]
WATCHED: dict[EvidenceKind, Watch] = {
    "primitives": _switched,
    "batch_memory": _batch_memory,
    "pipeline_peaks": _pipeline_peaks,
    "gpu_use": _gpu_use,
}


# --- which primitives run -------------------------------------------------------------------------------------------


def _primitives(
    row: Experiment, cases: Sequence[Case], pool: Pool, machine: Machine, switch: str, seconds: float
) -> Finding:
    """List the primitives that oneDNN logs for the workloads of these cases."""
    asked = [{"ask": "once", "workload": row.work(case), "params": case.params} for case in cases]
    env = {**workers.QUIET, **judge.TALKATIVE, "TF_ENABLE_ONEDNN_OPTS": switch}
    questions = "".join(f"{json.dumps(question)}\n" for question in asked).encode()
    command = ["python", f"{FOLDER}/bench"]
    begin = f"TF_ENABLE_ONEDNN_OPTS={switch}: "
    try:
        run = pool.engine.run(machine.image, command, env=env, files=files(), stdin=questions, timeout=seconds)
    except TimeoutError as error:
        return Finding(text=f"{begin}oneDNN's log could not be read: {error}", values={})
    if run.exit_code:
        why = judge.Ended(run.exit_code, run.stderr).why
        return Finding(text=f"{begin}oneDNN's log could not be read: {why}", values={})
    return primitives(begin, run.stderr)


def primitives(begin: str, text: str) -> Finding:
    """Return a finding that starts with `begin`, from the lines that oneDNN prints with ONEDNN_VERBOSE=1."""
    kinds = implementations(text)
    log = judge.primitives(text)
    ran = "; ".join(f"{kind}: {_few(names)}" for kind, names in kinds.items())
    where = f"oneDNN on {log.runtime} ({log.isa}) runs " if kinds else "no primitive of oneDNN runs"
    return Finding(text=f"{begin}{where}{ran}", values={kind: float(len(names)) for kind, names in kinds.items()})


def implementations(text: str) -> dict[str, tuple[str, ...]]:
    """Return the implementations that ran on the CPU by kind of primitive ("convolution"), the most frequent first."""
    counts: dict[str, dict[str, int]] = {}
    for match in judge.VERBOSE.finditer(text):
        kind, implementation = judge.executed(match.group(1).split(","))
        if kind and kind != UNPROVEN:
            names = counts.setdefault(kind, {})
            names[implementation] = names.get(implementation, 0) + 1
    return {
        kind: tuple(sorted(names, key=lambda name, names=names: (-names[name], name)))  # type: ignore[misc]
        for kind, names in sorted(counts.items())
    }


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


# --- what a batch needs ---------------------------------------------------------------------------------------------


def _memory(row: Experiment, case: Case, pool: Pool, machine: Machine, end: float) -> Finding | None:
    """Run growing batches in a separate process, whose peak is that of the largest batch so far."""
    key = Key(image=machine.image, env=machine.key(case, row.arms(case)[0]).env, process=f"memory of {case.name}")
    workload = row.work(case)
    sizes = [arm.params["batch"] for arm in row.arms(case) if isinstance(arm.params.get("batch"), int)]
    if not sizes or time.monotonic() > end:
        return None

    def ask(batch: int) -> Peak:
        left = max(1.0, end - time.monotonic())
        return pool.ask(key, Peak, left, ask="once", workload=workload, params={**case.params, "batch": batch})

    try:
        pool.start([key])
        points, limit = climb(ask, [int(size) for size in sizes if isinstance(size, int)], end)
    except LOST:
        return None
    finally:
        pool.close(key)
    return findings.memory(case.name, points, limit)


def _peaks(row: Experiment, case: Case, pool: Pool, machine: Machine, end: float) -> Finding | None:
    """Measure the peak memory of each arm in a separate process."""

    def ask(arm: Arm) -> Peak:
        key = Key(image=machine.image, env=machine.key(case, arm).env, process=f"memory of {arm.name}")
        workload = row.work(case, arm)
        try:
            pool.start([key])
            left = max(1.0, end - time.monotonic())
            return pool.ask(key, Peak, left, ask="once", workload=workload, params=machine.params(case, arm))
        finally:
            pool.close(key)

    return findings.peaks(case.name, peaks_by_arm(ask, row.arms(case), end))


def peaks_by_arm(ask: Callable[[Arm], Peak], arms: Sequence[Arm], end: float) -> dict[str, float]:
    """Return MiB by the arm's name, of the arms that ran before the `end` (monotonic)."""
    peaks: dict[str, float] = {}
    for arm in arms:
        if time.monotonic() > end:
            break
        try:
            answer = ask(arm)
        except LOST:
            continue
        if not answer.reason:
            peaks[arm.name] = answer.peak
    return peaks


def climb(ask: Callable[[int], Peak], sizes: Sequence[int], end: float) -> tuple[list[tuple[int, float]], float]:
    """Measure (items, MiB) at the smallest of `sizes`, the largest and beyond; return it with the MiB available."""
    points: list[tuple[int, float]] = []
    limit, batch = 0.0, min(sizes)
    for following in [max(sizes) * STEP**turn for turn in range(MOST_POINTS)]:
        try:
            answer = ask(batch)
        except LOST:
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


# --- how busy the GPUs are -------------------------------------------------------------------------------------------

SECONDS = 120.0


def _trainings(row: Experiment, engine: Engine, image: str) -> Iterator[Finding]:
    for arm in row.arms(row.case[0]):
        if arm.params.get("step") or arm.workload == "synthetic":
            text, values = _busy(engine, image, arm)
            yield Finding(text=f"{arm.name}: {text}", values=values)


def _busy(engine: Engine, image: str, arm: Arm) -> tuple[str, dict[str, float]]:
    key = Key(image=image, process="nvidia-smi", gpus=True)
    with workers.pool(engine, {}) as pool:
        try:
            pool.start([key])
            work = {"workload": arm.workload, "params": arm.params}
            ready = pool.ask(key, Ready, SECONDS, ask="prepare", key=arm.name, **work)
            if ready.reason or ready.guard:
                return f"GPU use could not be measured: {ready.reason or ready.guard}", {}
            use = pool.ask(key, GpuUtilisation, SECONDS, ask="busy", key=arm.name)
        except (TfbuildError, TimeoutError, MeasurementError) as error:
            return f"GPU use could not be measured: {error}", {}
    if use.reason:
        return f"GPU use could not be measured: {use.reason}", {}
    text = f"kernels ran on the GPUs {use.percent:.0f} % of the time (nvidia-smi; not necessarily on all units)"
    return text, {"gpu_busy": use.percent / 100}
