"""`tfbuild-smoke` and its probes on the official TensorFlow, and what they say where there is none."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each
from tests.verify.test_judge import PLAN
from tfbuild.context import dockerfile
from tfbuild.in_container.smoke import command, judge
from tfbuild.in_container.smoke.judge import Ended, Judgement, Plan, Results
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
    call = [python, *ISOLATED, str(FOLDER), *words]
    done = subprocess.run(call, env={**os.environ, **env}, capture_output=True, text=True, check=False)
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
    call = [python, *ISOLATED, "-c", PROBES, str(FOLDER.parent), *kinds]
    env = {**os.environ, **judge.TALKATIVE}
    done = subprocess.run(
        call, input=b"".join(map(probe.question, asked.values())), env=env, capture_output=True, check=False
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
    assert "tensorflow-cpu==2.21.0" in environment.packages
    assert (environment.kernel, environment.machine) == (platform.release(), platform.machine())
    assert environment.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    described = Path("/proc/cpuinfo").read_text().split()
    assert environment.cpu_flags
    assert {*environment.cpu_flags, *environment.cpu_model.split()} <= {*described}
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
    assert checks["numerics"]["detail"] == "13 of 13 parts within their limits"
    measures = checks["numerics"]["measures"]
    assert measures.pop("training") == pytest.approx(TRAINED, abs=5e-4)
    # No sum of rounded numbers comes to exactly the same.
    exact = ["max_pool_nhwc", "max_pool_nchw_after_nhwc", "quantized"]
    assert [name for name, error in measures.items() if error == 0] == exact


def test_without_tensorflow_the_import_fails_and_the_rest_is_skipped() -> None:
    shown = smoke(sys.executable, code=1, TF_ENABLE_ONEDNN_OPTS="1").stdout.splitlines()
    assert shown[0].startswith("FAIL  import    exit code 1: ModuleNotFoundError: No module named ")
    assert shown[1:] == [
        *(f"skip  {name:9} TensorFlow does not import" for name in ("tcmalloc", "onednn", "numerics", "cuda")),
        "verdict: fail",
    ]


TUNED = {"TF_ENABLE_ONEDNN_OPTS": "1", "LD_PRELOAD": "/usr/lib/libtcmalloc_minimal.so.4"}


@each(
    "file, env, plan",
    [
        (None, {}, Plan()),
        (None, {"TF_ENABLE_ONEDNN_OPTS": "0", "LD_PRELOAD": "libjemalloc.so.2"}, Plan()),
        (None, TUNED, Plan(target="mkl", allocator="tcmalloc", checks=("onednn",))),
        ({}, TUNED, Plan()),
        ({"target": "cuda", "known_defects": ["xla"], "release": None, "more": 1},
         {}, Plan(target="cuda", checks=("cuda",), known_defects=("xla",))),
        ({"target": "cpu", "release": "2.4.1", "python": "3.8", "threading": "openmp", "allocator": "tcmalloc"},
         {}, Plan(target="cpu", release="2.4.1", python="3.8", threading="openmp", allocator="tcmalloc")),
    ],
)  # fmt: skip
def test_the_plan_is_the_file_s_or_follows_from_the_environment(
    file: dict[str, object] | None, env: dict[str, str], plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    if file is not None:
        path.write_text(json.dumps(file))
    with pytest.MonkeyPatch.context() as patch:
        for name in TUNED:
            patch.delenv(name, raising=False)
        for name, value in env.items():
            patch.setenv(name, value)
        assert command.read_plan(str(path), needed=False) == plan
    template = (dockerfile.TEMPLATES / "Dockerfile.j2").read_text(encoding="utf-8")
    folder, _, name = command.PLAN_FILE.rpartition("/")
    assert f"--target-directory={folder} /mnt/{name} " in template, "where it is in images"


def test_a_line_for_each_check_and_the_verdict() -> None:
    checks = {status: Judgement(status, f"why {status}") for status in ("pass", "warn", "fail", "skip")}
    assert command.as_text(checks, "fail").splitlines() == [
        "ok    pass      why pass", "WARN  warn      why warn", "FAIL  fail      why fail", "skip  skip      why skip",
        "verdict: fail",
    ]  # fmt: skip


@pytest.mark.parametrize(("plan", "why"), [(None, "No such file"), ("[]", "is not a JSON object"), ("{", "Expecting")])
def test_a_plan_that_cannot_be_read_is_named(plan: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    if plan is not None:
        file.write_text(plan)
    done = smoke(sys.executable, "--plan", str(file), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"tfbuild-smoke: {file}: ")
    assert why in done.stderr
