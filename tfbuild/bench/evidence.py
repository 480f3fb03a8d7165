"""What shows that an arm was what its name says: seen in a process of its own, never while something is timed."""

from collections.abc import Iterator

from tfbuild.bench import experiments, workers
from tfbuild.bench.experiments import Arm
from tfbuild.bench.results import Finding
from tfbuild.bench.rounds import PREPARE_SECONDS, Place
from tfbuild.bench.workers import Key
from tfbuild.benches.found import Busy, Ready
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.smoke import judge
from tfbuild.smoke.found import Part
from tfbuild.verify import probe
from tfbuild.verify.asking import MeasurementError

VERBOSE = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}


def of(name: str, engine: Engine, place: Place) -> tuple[Finding, ...]:
    if name == "bottleneck" and place.gpus:
        return tuple(_busy(engine, place))
    return _onednn(engine, place) if name == "onednn" else ()


def _busy(engine: Engine, place: Place) -> Iterator[Finding]:
    """How busy the GPUs are on each training of the row: idle ones wait for their input."""
    (row,) = (row for row in experiments.known() if row.name == "bottleneck")
    for arm in row.arms(row.case[0]):
        if arm.params.get("step") or arm.workload == "synthetic":
            text, values = _busy_in(engine, place, arm)
            yield Finding(text=f"{arm.name}: {text}", values=values)


def _busy_in(engine: Engine, place: Place, arm: Arm) -> tuple[str, dict[str, float]]:
    key = Key(image=place.image, process="nvidia-smi")
    with workers.pool(engine, {}) as pool:
        try:
            pool.start([key])
            asked = {"workload": arm.workload, "params": arm.params}
            ready = pool.ask(key, Ready, PREPARE_SECONDS, ask="prepare", key=arm.name, **asked)
            if ready.reason or ready.guard:
                return f"it cannot be watched: {ready.reason or ready.guard}", {}
            busy = pool.ask(key, Busy, PREPARE_SECONDS, ask="busy", key=arm.name)
        except (TfbuildError, TimeoutError, MeasurementError) as error:
            return f"it cannot be watched: {error}", {}
    if busy.reason:
        return f"nobody can tell how busy the GPUs are: {busy.reason}", {}
    told = (
        f"kernels ran on the GPUs {busy.percent:.0f} % of the time (nvidia-smi; that does not mean all of their units)"
    )
    return told, {"gpu_busy": busy.percent / 100}


def _onednn(engine: Engine, place: Place) -> tuple[Finding, ...]:
    """Only a convolution's line counts: TensorFlow's own contraction calls oneDNN's gemm with oneDNN off too."""
    return tuple(_primitives(engine, place, switch) for switch in ("1", "0"))


def _primitives(engine: Engine, place: Place, switch: str) -> Finding:
    outcome = probe.ask(engine, place.image, "onednn", (Part,), {**VERBOSE, "TF_ENABLE_ONEDNN_OPTS": switch})
    told = judge.primitives(outcome.output)
    if outcome.broken or outcome.ended.why:
        ran = f"a convolution could not be watched: {outcome.broken or outcome.ended.why}"
    elif told.convolutions:
        ran = f"a convolution runs as {', '.join(told.convolutions)} on {told.runtime} ({told.isa})"
    else:
        ran = "no convolution runs in oneDNN"
    return Finding(text=f"TF_ENABLE_ONEDNN_OPTS={switch}: {ran}", values={"convolutions": len(told.convolutions)})
