"""`tfbuild-smoke`: the checks that work inside the image. Those of instruction set and throughput need the host.

Exit code 0: nothing failed; 1: a check failed; 2: the command line or the plan file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

from . import judge
from .judge import Ended, Judgement, Plan
from .records import Environment, Faults, GpuConvolution, OneDnnConvolution, Part, TensorFlow

SECONDS = 120
PLAN_FILE = "/opt/tfbuild/plan.json"
# By target, as in facts/targets.toml, which images do not contain.
CHECKS = {"mkl": ("onednn",), "cuda": ("cuda",)}
MARKS = {judge.PASS: "ok", judge.WARN: "WARN", judge.FAIL: "FAIL", judge.SKIP: "skip"}


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tfbuild-smoke", description="Check from inside that this image is what it promises to be."
    )
    parser.add_argument("--plan", default=PLAN_FILE, metavar="FILE", help="the plan of this image, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan, needed=options.plan != PLAN_FILE)
    except (OSError, ValueError) as error:
        print("tfbuild-smoke: {}: {}".format(options.plan, error), file=sys.stderr)
        return 2
    checks = run(plan)
    verdict = judge.verdict(checks)
    print(as_json(checks, verdict) if options.json else as_text(checks, verdict))
    return 1 if verdict == judge.FAIL else 0


def read_plan(path: str, needed: bool) -> Plan:
    """Read the plan from a JSON file, ignoring unknown keys; without a file, derive it from the environment."""
    if not needed and not os.path.exists(path):
        target = "mkl" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1" else ""
        return Plan(
            allocator="tcmalloc" if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else "",
            target=target,
            checks=CHECKS.get(target, ()),
        )
    with open(path) as file:
        content: Dict[str, Any] = json.load(file)
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    names = ("release", "python", "target", "threading", "allocator")
    defects = content.get("known_defects", [])
    values = {name: str(content.get(name) or "") for name in names}
    return Plan(known_defects=tuple(map(str, defects)), checks=CHECKS.get(values["target"], ()), **values)


def run(plan: Plan) -> List[Judgement]:
    start, ended, stderr = probe("start", (Environment, TensorFlow))
    environment = start[0] if start else None
    tensorflow = start[1] if len(start) > 1 else None
    first = judge.importing(environment, tensorflow, ended, plan)
    if first.status == judge.FAIL and tensorflow is None:
        return [
            first,
            *(judge.skipped(name, "TensorFlow does not import") for name in ("tcmalloc", "onednn", "numerics")),
        ]
    return [first, *(check(plan, environment, stderr) for check in (_tcmalloc, _onednn, _numerics, _cuda))]


def _tcmalloc(plan: Plan, environment: Optional[Environment], stderr: str) -> Judgement:
    if plan.allocator != "tcmalloc":
        return judge.tcmalloc(environment, None, stderr, Ended(0, ""), plan)
    records, ended, _ = probe("faults", (Faults,), **judge.NO_ONEDNN)
    return judge.tcmalloc(environment, records[0] if records else None, stderr, ended, plan)


def _onednn(plan: Plan, environment: Optional[Environment], _: str) -> Judgement:
    if "onednn" not in plan.checks:
        return judge.onednn("", environment, None, Ended(0, ""), plan)
    records, ended, stderr = probe("onednn", (OneDnnConvolution,), **judge.TALKATIVE)
    return judge.onednn(stderr, environment, records[0] if records else None, ended, plan)


def _numerics(plan: Plan, _: Optional[Environment], __: str) -> Judgement:
    records, ended, _stderr = probe("numerics", (Part,) * len(judge.LIMITS))
    return judge.numerics(records, ended, plan)


def _cuda(plan: Plan, _: Optional[Environment], __: str) -> Judgement:
    if "cuda" not in plan.checks:
        return judge.cuda(None, Ended(0, ""), plan)
    records, ended, _stderr = probe("cuda", (GpuConvolution,))
    return judge.cuda(records[0] if records else None, ended, plan)


def probe(name: str, kinds: Sequence[Type[Any]], **environment: str) -> Tuple[List[Any], Ended, str]:
    """Run a probe in a process of its own; return its records, how it ended, and its stderr."""
    command = [sys.executable, os.environ["TFBUILD_SMOKE"], "probe", name]
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, **environment),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [], Ended(1, "", timed_out=True), ""
    stderr = completed.stderr.decode(errors="replace")
    lines = completed.stdout.decode().splitlines()
    # A probe that died sent fewer lines. (zip has no `strict` before Python 3.10.)
    records = [kind(**tuples(json.loads(line))) for kind, line in zip(kinds, lines)]  # noqa: B905
    return records, Ended(completed.returncode, stderr), stderr


def tuples(record: Dict[str, Any]) -> Dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


def as_text(checks: Sequence[Judgement], verdict: str) -> str:
    lines = ["{:4}  {:9} {}".format(MARKS[check.status], check.name, check.detail) for check in checks]
    return "\n".join([*lines, "verdict: {}".format(verdict)])


def as_json(checks: Sequence[Judgement], verdict: str) -> str:
    rows = [
        {
            "name": check.name,
            "status": check.status,
            "detail": check.detail,
            "measures": {measure.name: measure.value for measure in check.measures},
        }
        for check in checks
    ]
    return json.dumps({"schema": "tfbuild.smoke/1", "verdict": verdict, "checks": rows}, indent=2)
