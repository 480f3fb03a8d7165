"""How busy the GPUs are in the trainings of an experiment, by nvidia-smi: idle GPUs wait for their input."""

from collections.abc import Iterator

from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import GpuUtilisation, Ready
from tfbuild.measure import workers
from tfbuild.measure.experiments import Arm, Experiment
from tfbuild.measure.protocol import MeasurementError
from tfbuild.measure.records import Finding
from tfbuild.measure.workers import Key

SECONDS = 120.0


def of(row: Experiment, engine: Engine, image: str, gpus: int) -> tuple[Finding, ...]:
    """Return a finding for each training of the row's first case; nothing if TensorFlow sees no GPU."""
    return tuple(_trainings(row, engine, image)) if gpus else ()


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
