"""The checks that an image has to pass, each with what it proves, when it applies, its probe and its judge."""

from dataclasses import replace

from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.plan import failures
from tfbuild.verify import Verification, VerificationCheck, probe_check
from tfbuild.verify.checks import configuration, guard, isa, throughput

# --- checks that judge one probe inside the image; their judges are in tfbuild/in_container/smoke/judge.py ------------


def _import(verification: Verification) -> Judgement:
    """Import TensorFlow; if that fails, all checks that need it are skipped."""
    verification.why = "TensorFlow does not import (see import)"  # also if the probe cannot be run
    results = verification.ask(judge.IMPORT)
    judged = verification.judge(judge.IMPORT, results)
    verification.start = results
    if judged.status != judge.FAIL or verification.tensorflow:
        verification.why = ""
    return with_known_failure(judged, verification.planned.release)


def with_known_failure(judged: Judgement, release: str) -> Judgement:
    """Add the workaround, if the message of a failed import is a known failure of the release."""
    rows = failures.known_failures(release) if releases.has_facts(release) and judged.status == judge.FAIL else ()
    row = next((row for row in rows if row.matches(judged.detail)), None)
    known = f"; a known failure ({row.id}): {row.workaround}" if row else ""
    return replace(judged, detail=judged.detail + known)


def _cuda(verification: Verification) -> Judgement:
    reason = verification.engine.lacks_gpus(verification.ref, verification.sandbox)
    judged = verification.judge(judge.CUDA, verification.ask(judge.CUDA, gpus=not reason))
    return Judgement(judge.SKIP, reason) if reason and judged.status == judge.SKIP else judged


IMPORT = probe_check(judge.IMPORT, _import)
ONEDNN, TCMALLOC, NUMERICS = map(probe_check, (judge.ONEDNN, judge.TCMALLOC, judge.NUMERICS))
CUDA = probe_check(judge.CUDA, _cuda)

# --- all checks ------------------------------------------------------------------------------------------------------

# In this order: a check may use the results of earlier ones.
CHECKS: tuple[VerificationCheck, ...] = (
    configuration.CHECK,
    guard.CHECK,
    IMPORT,
    isa.CHECK,
    isa.CODE,
    ONEDNN,
    TCMALLOC,
    CUDA,
    NUMERICS,
    throughput.CHECK,
)
# Those of an installed TensorFlow.
INSTALLED = (IMPORT, isa.CHECK, isa.CODE, ONEDNN, NUMERICS)
