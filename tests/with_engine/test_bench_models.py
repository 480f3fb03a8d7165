"""On a real image: whole models are measured, and docs/layouts.md's model takes both layouts."""

import json
import re
from collections.abc import Callable

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild.bench import session
from tfbuild.bench.session import Settings
from tfbuild.engine import Engine
from tfbuild.measure import experiments, intervals
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine


@pytest.mark.nightly
def test_a_model_is_measured_on_both_kinds_of_data(engine: Engine, image: Callable[..., str]) -> None:
    """The smallest of Keras' applications, and as few rounds as have an interval: in whatever time they take here."""
    row = experiments.model_row(["mobilenet"], 2)
    settings = Settings(mode="quick", budget=3600, rounds=intervals.FEWEST)
    report = session.bench(engine, image("2.21.0"), (row,), settings, Progress(), engine.require_answer)
    (done,) = report.experiments
    for case in done.cases:
        for arm in case.arms:
            assert (arm.status, arm.reason) == ("measured", ""), (case.name, arm.name)
    assert [len(case.rounds) for case in done.cases] == [intervals.FEWEST] * len(done.cases)
    assert all("images/s" in finding.text for finding in done.findings)


CHECK = """
import json, sys
import numpy as np
wanted = sys.argv[1]
network("channels_first").set_weights(model.get_weights())
other = network(wanted)
random = np.random.default_rng(2)
other.set_weights([abs(random.normal(size=weight.shape)) * 0.1 for weight in other.get_weights()])
images = as_layout(tf.constant(random.random((8, 32, 32, 3), np.float32)), wanted)
told = {"logits": other(images).numpy().tolist()}
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(other(images, training=True)))
    return loss, tape.gradient(loss, other.trainable_variables)
try:
    loss, slopes = step()
    told["training"] = [float(loss), *(float(tf.reduce_sum(abs(slope))) for slope in slopes)]
except Exception as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


@pytest.mark.nightly
def test_the_manual_s_model_computes_the_same_in_both_layouts(engine: Engine, image: Callable[..., str]) -> None:
    """In a process each."""
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block
    results = {}
    for layout in ("channels_last", "channels_first"):
        done = engine.run(image("2.21.0"), ["python", "-c", block[1] + CHECK, layout], timeout=300)
        assert done.exit_code == 0, done.stderr[-2000:]
        results[layout] = json.loads(done.stdout)
    last, first = results["channels_last"], results["channels_first"]
    for mine, theirs in zip(first["logits"], last["logits"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)
    assert first["training"] == pytest.approx(last["training"], rel=1e-2)
