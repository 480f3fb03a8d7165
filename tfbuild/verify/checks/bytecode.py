"""The bytecode check: what Python loads is a compile of the sources beside it."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Bytecode
from tfbuild.verify.verification import NO_START, Claim, Verification, VerificationCheck

# No bytecode is there, so this Python compiles all sources that it imports.
FROM_SOURCE = ("-X", "pycache_prefix=/nowhere")


def _skip(verification: Verification) -> str:
    return NO_START if verification.unstartable else ""


def _run(verification: Verification) -> judge.Judgement:
    outcome = verification.ask("bytecode", Bytecode, options=FROM_SOURCE).outcome
    if outcome.broken:
        return judge.Judgement("bytecode", judge.FAIL, outcome.broken)
    return judge.bytecode(outcome.first(Bytecode), outcome.ended)


CHECK = VerificationCheck(
    name="bytecode",
    claim=Claim(
        proves="The bytecode of Python's library and of all packages comes from the sources beside it, so that reading "
        "the sources tells what runs.",
        how="The image's own Python, which loaded no bytecode itself, compiled each source and compared the results "
        "with the files in __pycache__.",
        fix="compile changed sources again: python -m compileall -f FILE; build an image again that was not changed",
    ),
    skip=_skip,
    run=_run,
)
