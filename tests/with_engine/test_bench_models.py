"""On a real image: a user's scripts are watched, whole models measured, docs/layouts.md's model takes both layouts."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild.bench import page, session, user_script
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.bench.user_script import Command
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.measure import experiments, intervals
from tfbuild.measure.records import ExperimentResult
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
SCRIPTS = ROOT / "tests" / "data" / "bench" / "scripts"


def watched(engine: Engine, ref: str, script: str, seconds: float = 120) -> ExperimentResult:
    command = Command(words=("python", script), folder=SCRIPTS)
    return user_script.experiment(engine, engine.image(ref).id, command, seconds, Progress(), release="2.21.0")


@pytest.mark.nightly
@pytest.mark.alone
def test_a_script_that_waits_for_its_input_is_input_bound(engine: Engine, image: Callable[..., str]) -> None:
    """Keras' own loop."""
    (finding,) = watched(engine, image("2.21.0"), "slow_input.py").findings
    assert finding.text.startswith("python slow_input.py: input-bound"), finding
    assert finding.values["waiting"] > 0.25, finding
    assert finding.values["batches"] > 10, finding


@pytest.mark.nightly
@pytest.mark.alone
def test_a_script_that_computes_is_compute_bound(
    image: Callable[..., str], invoke: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A loop of its own, which ends by itself; as a user would ask."""
    ref = image("2.21.0")
    command = ("--command", "python slow_step.py", "--mount", str(SCRIPTS))
    done = invoke("bench", ref, "--only", "bottleneck", *command, "--budget", "2m", "--json")
    report = reporting.from_json(done.stdout)
    (row,) = report.experiments
    (finding,) = row.findings
    assert (row.name, row.status) == ("bottleneck", "measured")
    # On a machine that others use, Python's own part may be long.
    verdicts = ("python slow_step.py: compute-bound", "python slow_step.py: not input-bound")
    assert finding.text.startswith(verdicts), finding
    assert finding.values["compute"] > 0.6, finding
    assert finding.text in page.to_markdown(report)


def test_a_script_that_fails_says_how(engine: Engine, image: Callable[..., str]) -> None:
    with pytest.raises(TfbuildError, match=r"exited with code 1:[\s\S]*InvalidArgumentError[\s\S]*--mount"):
        watched(engine, image("2.21.0"), "crash.py")


def test_a_script_can_change_nothing_of_the_user_s(engine: Engine, image: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "mine: all of it"
    folder.mkdir(mode=0o700)
    (folder / "write.py").write_text("open('/tmp/x', 'w').close()\nopen('x', 'w').close()\n", encoding="utf-8")
    command = Command(words=("python", "write.py"), folder=folder)
    with pytest.raises(TfbuildError, match="Read-only file system: 'x'"):
        user_script.experiment(engine, engine.image(image("2.21.0")).id, command, 120, Progress(), release="2.21.0")
    assert [path.name for path in folder.iterdir()] == ["write.py"]


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
