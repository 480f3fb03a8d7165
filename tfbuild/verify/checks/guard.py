"""The guard check: the image's entry point starts on this host, and would stop on a lesser one."""

from tfbuild.in_container.smoke import judge
from tfbuild.measure import probe
from tfbuild.verify.verification import Claim, Verification, VerificationCheck

ALIVE = "tfbuild"
NO_FEATURES = "/tmp/tfbuild-no-features"
UNFIT = 86


def _run(verification: Verification) -> judge.Judgement:
    command = ["python", "-c", f"print('{ALIVE}')"]
    try:
        run = verification.engine.run(verification.ref, command, timeout=probe.SECONDS)
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", timed_out=True))
    if run.exit_code == 0 and run.stdout != f"{ALIVE}\n":
        return judge.Judgement("guard", judge.FAIL, "the entry point does not start the command that it is given")
    if run.exit_code == 0 and not _stops_on_a_lesser_cpu(verification):
        return judge.Judgement("guard", judge.FAIL, "the entry point starts Python on a CPU that has no feature at all")
    return judge.guard(judge.Ended(run.exit_code, run.stderr))


def _stops_on_a_lesser_cpu(verification: Verification) -> bool:
    files, env = {NO_FEATURES: b"flags : none\nFeatures : none\n"}, {"TFBUILD_CPUINFO": NO_FEATURES}
    run = verification.engine.run(verification.ref, ["true"], env=env, files=files, timeout=probe.SECONDS)
    return run.exit_code == UNFIT


CHECK = VerificationCheck(
    name="guard",
    claim=Claim(
        proves="This host has every feature that the image requires, and Python starts behind its entry point.",
        how="The image's own entry point was started with a one-line Python program.",
        fix="run the image that the message names, or build one for this CPU: invoke build --cpu host",
    ),
    run=_run,
)
