"""The import check: TensorFlow imports and computes; if it does not, all checks that need it are skipped."""

import re
from dataclasses import replace

from tfbuild.engine import Process
from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.in_container.smoke.records import TensorFlow
from tfbuild.measure import probe
from tfbuild.plan import failures
from tfbuild.verify import libraries
from tfbuild.verify.verification import Start, Verification, VerificationCheck, fail_if, needs_start


def _run(verification: Verification) -> Judgement:
    seen: list[Process | None] = []
    result = verification.ask(judge.IMPORT, look=seen.append)
    start = Start(outcome=result.outcome)
    judged = with_known_failure(verification.judge(judge.IMPORT, result), verification.planned.release)
    judged = fail_if(other_compiler(verification.planned.compiler, start.tensorflow), judged)
    if judged.status == judge.FAIL and not start.tensorflow:
        start = replace(start, why="TensorFlow does not import (see import)")
    verification.start, verification.process = start, seen[0] if seen else None
    return check_process(judged, verification)


def other_compiler(planned: str, tensorflow: TensorFlow | None) -> str:
    """Return that TensorFlow says it was compiled by another compiler than the `planned` one ("clang-18"), else "".

    It says what the compiler's macro __VERSION__ has: "Ubuntu Clang 16.0.6 (++2023...)", but "9.3.1 20200408" of GCC.
    """
    said = tensorflow.compiler if tensorflow else ""
    number = re.search(r"\d+", said, re.ASCII)
    compiler = f"{'clang' if 'clang' in said.lower() else 'gcc'}-{number[0]}" if number else planned
    return "" if planned in ("", compiler) else f"TensorFlow was compiled by {compiler}, but its label says {planned}"


def with_known_failure(judged: Judgement, release: str) -> Judgement:
    """Add the workaround, if the message of a failed import is a known failure of the release."""
    rows = failures.known(release) if releases.has_facts(release) and judged.status == judge.FAIL else ()
    row = next((row for row in rows if row.matches(judged.detail)), None)
    known = f"; a known failure ({row.id}): {row.workaround}" if row else ""
    return replace(judged, detail=judged.detail + known)


def check_process(judged: Judgement, verification: Verification) -> Judgement:
    """Fail if the kernel shows another process than the probe reported; if it shows none, say so."""
    process = verification.process
    if judged.status != judge.PASS:
        return judged
    if process is None:
        return replace(judged, detail=f"{judged.detail}; its process cannot be inspected from here")
    library = libraries.framework_path(verification.planned)
    if process.program != verification.program:
        return Judgement(judge.FAIL, f"the process that answered does not run {probe.PYTHON}")
    if library not in process.code:
        return Judgement(judge.FAIL, f"the process that answered has not loaded {library}")
    return judged


CHECK = VerificationCheck(
    name="import",
    proves="TensorFlow imports and computes, and its version, compiler, Python and CUDA support are the plan's.",
    how="Imported in a process of its own, so that a crash by a signal is recognised; compared with the labels. It "
    "multiplied matrices that the host chose for this run. If the engine is on this machine, the kernel was asked "
    "which program the process runs, and whether it has loaded TensorFlow's library.",
    fix="read the message: SIGILL means a wrong instruction set; an error with NumPy 2 means that it needs numpy<2; "
    "remove files that Python runs at every start from the image, or from its base image",
    skip=needs_start,
    run=_run,
)
