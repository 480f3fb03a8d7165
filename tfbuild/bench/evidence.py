"""What shows that an arm was what its name says: seen in a process of its own, never while something is timed."""

from tfbuild.bench import busy
from tfbuild.bench.arms import Place
from tfbuild.bench.results import Finding
from tfbuild.engine import Engine
from tfbuild.smoke import judge
from tfbuild.smoke.found import Part
from tfbuild.verify import probe

VERBOSE = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}


def of(name: str, engine: Engine, place: Place) -> tuple[Finding, ...]:
    if name == "bottleneck":
        return busy.of(engine, place.image, place.gpus)
    return _onednn(engine, place) if name == "onednn" else ()


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
