"""The work that is timed (compute, networks, images, files), on TensorFlow: what it computes is recorded."""

import importlib
import json
import os
import re
import subprocess
from typing import Any

import pytest

from tests.measure.test_experiments import ROOT, workloads

WORK = ROOT / "tests" / "data" / "bench" / "work.py"
# Each line: a workload, its parameters, and what work.py printed of it. To make it anew, in tfbuild/:
# PYTHONPATH=. ../.venv/tensorflow/bin/python ../tests/data/bench/work.py <../tests/data/bench/work.jsonl
RECORDED = WORK.with_suffix(".jsonl")
# What differs from machine to machine.
OWN = re.compile(r"\d+ (?=threads|MiB of memory)")
UNFIT = ["this CPU has no instructions for bfloat16"]


def same(told: Any, rounding: float) -> Any:
    """Return a result that equals one with the same numbers but for rounding."""
    if isinstance(told, list):
        return [same(part, rounding) for part in told]
    # An error of rounding itself has no digit that is the same on all CPUs.
    return pytest.approx(told, rel=rounding, abs=1e-6) if isinstance(told, float) else told


def test_each_workload_computes_what_is_recorded(python: str) -> None:
    able = any("bf16" in flag for flag in importlib.import_module("tfbuild.in_container.smoke.probes").cpu()[0])
    lines = RECORDED.read_text(encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": ".", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [python, "-B", str(WORK)]
    done = subprocess.run(
        command, cwd=ROOT / "tfbuild", env=env, input=lines, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [[json.loads(OWN.sub("", line)) for line in text.splitlines()] for text in (lines, done.stdout)]
    assert {name for name, *_ in rows[0]} == workloads().keys()
    for (name, params, recorded), (*_, told) in zip(*rows, strict=True):
        expected = UNFIT if (name, params.get("dtype"), able) == ("product", "bfloat16", False) else recorded
        # Sums of many products differ from CPU to CPU, means of pixels hardly.
        exact = name in ("decode", "jpeg", "pipeline") and not params.get("step")
        assert told == same(expected, 1e-5 if exact else 2e-3), (name, params)


def test_the_training_of_bolt_does_each_kind_of_work(python: str) -> None:
    script = "import bolt; works = list(bolt.training()); [(work(), work()) for work in works]; print(len(works))"
    done = subprocess.run(
        [python, "-B", "-c", script], cwd=ROOT / "tfbuild" / "in_container", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr[-3000:]
