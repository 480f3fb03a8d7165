"""`tfbuild-smoke` and its probes on the official TensorFlow, and what they say where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.verify.test_judge import PLAN
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Ended, Results
from tfbuild.in_container.smoke.records import (
    Environment,
    Faults,
    GpuConvolution,
    OneDnnConvolution,
    OperationAnswer,
    Part,
    TensorFlow,
)
from tfbuild.measure import probe
from tfbuild.verify import challenges

FOLDER = Path(judge.__file__).parent
ISOLATED = ("-I", "-S", "-B")
# What training comes to depends on each number that the parts draw before it.
TRAINED = 0.11928
# All in one process, because importing TensorFlow takes longest.
PROBES = """
import sys
sys.path.insert(0, sys.argv[1])
from smoke.isolated import add_site_packages
add_site_packages()
from smoke import probes, records
channel = records.open_channel()
for name in sys.argv[2:]:
    probes.PROBES[name](channel, records.read_challenge(sys.stdin.readline()))
"""


def smoke(python: str, *words: str, code: int, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [python, *ISOLATED, str(FOLDER), *words]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def test_each_probe_answers_its_challenge(python: str) -> None:
    # The last one reads on until its input ends.
    kinds: dict[str, list[type]] = {
        "numerics": [Part] * len(judge.LIMITS), "onednn": [OneDnnConvolution], "faults": [Faults],
        "cuda": [GpuConvolution], "start": [Environment, TensorFlow],
    }  # fmt: skip
    asked = {name: challenges.draw(name) for name in kinds}
    answering: dict[str, Any] = {**challenges.OPERATIONS, "cuda": ()}
    command = [python, *ISOLATED, "-c", PROBES, str(FOLDER.parent), *kinds]
    env = {**os.environ, **judge.TALKATIVE}
    done = subprocess.run(
        command, input=b"".join(map(probe.question, asked.values())), env=env, capture_output=True, check=False
    )
    stderr = done.stderr.decode()
    assert done.returncode == 0, stderr[-3000:]
    lines = done.stdout.decode().splitlines()
    sent: dict[str, tuple[Any, ...]] = {}
    for name, own in kinds.items():
        expected = [*own, *[OperationAnswer] * len(answering[name])]
        text = "".join(f"{lines.pop(0)}\n" for _ in expected)
        records = probe.records(text, expected)
        sent[name], answers = records[: len(own)], records[len(own) :]
        assert name == "cuda" or challenges.error_in(name, asked[name], answers) == ""
    assert lines == []
    assert judge.onednn(Results(sent["onednn"], Ended(0, stderr), sent["start"][0]), PLAN).status == "pass"
    assert challenges.is_traced(stderr, asked["onednn"])
    assert 0 <= sent["faults"][0].per_tensor < 20_000
    assert sent["cuda"][0] == GpuConvolution(gpus=0, device="", error=None)
    environment, tensorflow = sent["start"]
    assert (tensorflow.version, tensorflow.cuda_build, tensorflow.gpus) == (PLAN.release, False, 0)
    assert 0 < tensorflow.seconds < 600
    assert 200 < tensorflow.peak_mib < 4000
    assert environment.numpy.startswith("2.")
    assert (environment.cpus, Path(environment.malloc).name) == (len(os.sched_getaffinity(0)), "libc.so.6")


def test_the_official_tensorflow_passes(python: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    named = {"release": PLAN.release, "python": version.rpartition(".")[0], "target": "mkl", "threading": "threadpool"}
    plan.write_text(json.dumps({**named, "known_defects": [], "more": 1}))
    told = json.loads(smoke(python, "--json", "--plan", str(plan), code=0).stdout)
    checks = {row["name"]: row for row in told["checks"]}
    assert (told["schema"], told["verdict"]) == ("tfbuild.smoke/1", "pass")
    assert [(name, row["status"]) for name, row in checks.items()] == [
        ("import", "pass"), ("tcmalloc", "skip"), ("onednn", "pass"), ("numerics", "pass"), ("cuda", "skip"),
    ]  # fmt: skip
    assert checks["import"]["detail"].startswith(f"TensorFlow {PLAN.release} (")
    assert checks["numerics"]["detail"] == "12 of 12 parts within their limits"
    measures = checks["numerics"]["measures"]
    assert measures.pop("training") == pytest.approx(TRAINED, abs=5e-4)
    # No sum of rounded numbers comes to exactly the same.
    assert [name for name, error in measures.items() if error == 0] == ["max_pool_nhwc", "max_pool_nchw_after_nhwc"]


def test_without_tensorflow_the_import_fails_and_the_rest_is_skipped() -> None:
    shown = smoke(sys.executable, code=1, TF_ENABLE_ONEDNN_OPTS="1").stdout.splitlines()
    assert shown[0].startswith("FAIL  import    exit code 1: ModuleNotFoundError: No module named ")
    assert shown[1:] == [
        *(f"skip  {name:9} TensorFlow does not import" for name in ("tcmalloc", "onednn", "numerics", "cuda")),
        "verdict: fail",
    ]


@pytest.mark.parametrize(("plan", "why"), [(None, "No such file"), ("[]", "is not a JSON object"), ("{", "Expecting")])
def test_a_plan_that_cannot_be_read_is_named(plan: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    if plan is not None:
        file.write_text(plan)
    done = smoke(sys.executable, "--plan", str(file), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"tfbuild-smoke: {file}: ")
    assert why in done.stderr
