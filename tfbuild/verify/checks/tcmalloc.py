"""The tcmalloc check: malloc is TCMalloc's, and it shows in the page faults of large tensors."""

from pathlib import PurePosixPath

from tfbuild.engine import Process
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Faults
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, answered, needs_tensorflow, unpromised


def _skip(verification: Verification) -> str:
    unprobed = judge.tcmalloc(None, None, "", judge.Ended(0, ""), verification.planned.smoke())
    return needs_tensorflow(verification) or unpromised(unprobed)


def _run(verification: Verification) -> judge.Judgement:
    result = verification.ask("faults", Faults, env=judge.NO_ONEDNN)
    outcome = result.outcome
    if outcome.broken:
        return judge.Judgement("tcmalloc", judge.FAIL, outcome.broken)
    start, faults = verification.start, outcome.first(Faults)
    plan = verification.planned.smoke()
    judged = judge.tcmalloc(start.environment, faults, start.outcome.output, outcome.ended, plan)
    if judged.status == judge.PASS and (process := verification.process) and not _loaded(process):
        return judge.Judgement("tcmalloc", judge.FAIL, "the process that imported TensorFlow has not loaded TCMalloc")
    return answered(judged, result)


def _loaded(process: Process) -> bool:
    return any("tcmalloc" in PurePosixPath(path).name for path in process.code)


CHECK = VerificationCheck(
    name="tcmalloc",
    claim=Claim(
        proves="TCMalloc is the allocator in use, and it takes the page faults out of large tensors.",
        how="The mapping that malloc resolves into, the loader's messages, and a count of page faults per 40 MiB "
        "tensor with oneDNN's pool out of the way (TF_ENABLE_ONEDNN_OPTS=0, TF_DISABLE_MKL=1). A count, not a time: no "
        "load changes it.",
        fix="LD_PRELOAD must name /usr/local/lib/libtcmalloc_minimal.so.4, and libtcmalloc-minimal4 must be installed",
    ),
    skip=_skip,
    run=_run,
)
