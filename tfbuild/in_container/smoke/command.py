"""`tfbuild-smoke`: the checks that work inside the image. Those of instruction set and throughput need the host.

Exit code 0: nothing failed; 1: a check failed; 2: the command line or the plan file cannot be read.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import fields
from typing import Any

from . import judge
from .judge import Ended, Judgement, Plan, ProbeCheck, Results

PLAN_FILE = "/opt/tfbuild/plan.json"
STATUS_WORDS = {judge.PASS: "ok", judge.WARN: "WARN", judge.FAIL: "FAIL", judge.SKIP: "skip"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tfbuild-smoke", description="Check from inside that this image is what it promises to be."
    )
    parser.add_argument("--plan", default=PLAN_FILE, metavar="FILE", help="the plan of this image, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        plan = read_plan(options.plan)
    except (OSError, ValueError, RecursionError) as error:
        print(f"tfbuild-smoke: {options.plan}: {error}", file=sys.stderr)
        return 2
    checks = run(plan)
    verdict = judge.verdict(check.status for check in checks.values())
    print(as_json(checks, verdict) if options.json else as_text(checks, verdict))
    return 1 if verdict == judge.FAIL else 0


def read_plan(path: str) -> Plan:
    """Read the plan from a JSON file, ignoring unknown keys. Raises OSError, ValueError or RecursionError."""
    with open(path) as file:
        content: dict[str, Any] = json.load(file)
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    known = {row.name: content[row.name] for row in fields(Plan) if content.get(row.name) is not None}
    return Plan(**tuples(known))


def run(plan: Plan) -> dict[str, Judgement]:
    """Run the checks, and return their judgements by name."""
    start = results_of(judge.IMPORT)
    checks = {judge.IMPORT.name: judge.importing(start, plan)}
    imports = len(start.records) == len(judge.IMPORT.kinds)
    for check in judge.PROBE_CHECKS[1:]:
        why = check.skip(plan) if imports else "TensorFlow does not import"
        if why:
            checks[check.name] = Judgement(judge.SKIP, why)
            continue
        found = results_of(check)
        seen = Results(found.records, found.ended, start.record, start.ended.stderr)
        checks[check.name] = check.judge(seen, plan)
    return checks


def results_of(check: ProbeCheck) -> Results:
    """Run a check's probe in a process of its own."""
    command, env = [sys.executable, os.environ["TFBUILD_SMOKE"], "probe", check.probe], {**os.environ, **check.env}
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=judge.SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Results((), Ended(1, "", judge.TOO_LONG))
    code, stderr = completed.returncode, completed.stderr.decode(errors="replace")
    # After the last newline is what a killed probe was writing, or nothing.
    *lines, _ = completed.stdout.decode(errors="replace").split("\n")
    # Such as of a package that runs something at Python's start.
    if foreign := [line[:60] for line in lines if not line.startswith("{")]:
        return Results((), Ended(code, stderr, f"Python prints on stdout as it starts: {foreign[0]!r}"))
    # A probe that died sent fewer lines.
    records = tuple(kind(**tuples(json.loads(line))) for kind, line in zip(check.kinds, lines, strict=False))
    return Results(records, Ended(code, stderr))


def tuples(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's fields with tuples in place of JSON's lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


def as_text(checks: dict[str, Judgement], verdict: str) -> str:
    """Return a line for each check, and the verdict."""
    lines = [f"{STATUS_WORDS[check.status]:4}  {name:9} {check.detail}" for name, check in checks.items()]
    return "\n".join([*lines, f"verdict: {verdict}"])


def as_json(checks: dict[str, Judgement], verdict: str) -> str:
    """Return the checks and the verdict as one JSON document."""
    rows = [
        {
            "name": name,
            "status": check.status,
            "detail": check.detail,
            "measures": {measure.name: measure.value for measure in check.measures},
        }
        for name, check in checks.items()
    ]
    return json.dumps({"schema": "tfbuild.smoke/1", "verdict": verdict, "checks": rows}, indent=2)
