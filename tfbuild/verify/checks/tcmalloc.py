"""The tcmalloc check: malloc is TCMalloc's, and it shows in the page faults of large tensors."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Faults
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, needs_tensorflow, unpromised


def _skip(verification: Verification) -> str:
    unprobed = judge.tcmalloc(None, None, "", judge.Ended(0, ""), verification.planned.smoke())
    return needs_tensorflow(verification) or unpromised(unprobed)


def _run(verification: Verification) -> judge.Judgement:
    outcome = verification.ask("faults", Faults, **judge.NO_ONEDNN)
    if outcome.broken:
        return judge.Judgement("tcmalloc", judge.FAIL, outcome.broken)
    start, faults = verification.start, outcome.first(Faults)
    plan = verification.planned.smoke()
    return judge.tcmalloc(start.environment, faults, start.outcome.output, outcome.ended, plan)


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
