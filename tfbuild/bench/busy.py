"""Whether GPUs are busy on the trainings of an experiment: idle ones wait for their input. By nvidia-smi."""

from collections.abc import Iterator

from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import Busy, Ready
from tfbuild.measure import workers
from tfbuild.measure.experiments import Arm, Experiment
from tfbuild.measure.protocol import MeasurementError
from tfbuild.measure.records import Finding
from tfbuild.measure.workers import Key

SECONDS = 120.0


def of(row: Experiment, engine: Engine, image: str, gpus: int) -> tuple[Finding, ...]:
    """A finding a training of the row's first case; nothing where TensorFlow sees no GPU."""
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
            asked = {"workload": arm.workload, "params": arm.params}
            ready = pool.ask(key, Ready, SECONDS, ask="prepare", key=arm.name, **asked)
            if ready.reason or ready.guard:
                return f"it cannot be watched: {ready.reason or ready.guard}", {}
            busy = pool.ask(key, Busy, SECONDS, ask="busy", key=arm.name)
        except (TfbuildError, TimeoutError, MeasurementError) as error:
            return f"it cannot be watched: {error}", {}
    if busy.reason:
        return f"nobody can tell how busy the GPUs are: {busy.reason}", {}
    told = (
        f"kernels ran on the GPUs {busy.percent:.0f} % of the time (nvidia-smi; that does not mean all of their units)"
    )
    return told, {"gpu_busy": busy.percent / 100}
