"""Run the checks, some of them beside others, skip those that cannot run with the reason, and make the report."""

import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

from tfbuild import __version__
from tfbuild.context.labels import read_labels
from tfbuild.cpu.isa import relevant
from tfbuild.cpu.recordings import canonical
from tfbuild.engine import Engine, Image
from tfbuild.errors import BadInput, TfbuildError
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.probes import Environment
from tfbuild.measure import probe
from tfbuild.util.files import check_writable
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import printable
from tfbuild.verify import Baseline, Verification, VerificationCheck, labelled_build, libraries
from tfbuild.verify.checks import CHECKS, INSTALLED, isa
from tfbuild.verify.checks.guard import LESSER_CPU, lesser_cpu
from tfbuild.verify.report import SCHEMA, Check, ImageFacts, ImageSoftware, Report, write_report

Checks = Sequence[VerificationCheck]
NO_BASELINE = "there is no baseline to compare with"


def verify(
    engine: Engine, ref: str, *, progress: Progress, baseline: Baseline | str = NO_BASELINE, checks: Checks = ()
) -> Report:
    """Run the `checks` (default: all) on the image `ref`; `baseline`: to compare its speed with, or why not.

    Raises UnknownImage if the image is missing or was not made by tfbuild, EngineMissing if a check does not pass and
    the engine ended before that, even if it was started again, DiskFull where no space is left for it, or for files of
    the image. An image that is not what it claims to be is not an error: the report says so.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    planned = labelled_build(ref, image.labels, image.architecture)
    with (
        engine.watched("verification") as require_engine,
        probe.sandbox(engine, image.id, {LESSER_CPU: lesser_cpu(planned)}) as sandbox,
    ):
        # Use the id from here on, because another build may move the name meanwhile.
        verification = Verification(
            engine=engine,
            ref=image.id,
            planned=planned,
            version=read_labels(image.labels).get("version"),
            baseline=baseline,
            sandbox=sandbox,
        )
        _run(verification, checks or CHECKS, partial(_timed, verification, progress, require_engine))
    return _report(verification, image, ref, time.monotonic() - begin)


def verify_installed(python: str, progress: Progress, reports: Path) -> Report:
    """Verify the TensorFlow of an environment; write its report. Raises what `InstalledWheel.image` raises."""
    check_writable(reports)
    result = verify(cast(Engine, libraries.InstalledWheel()), python, progress=progress, checks=INSTALLED)
    # An image of the same identifier keeps its own report, which push reads.
    result = replace(result, id=f"{result.id}-installed")
    write_report(result, reports)
    return result


def _run(verification: Verification, checks: Checks, timed: Callable[[VerificationCheck], Check]) -> None:
    """Run the checks; their results are in the same order. If one of them raises, the others end too."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        try:
            beside = {check.name: threads.submit(timed, check) for check in checks if check.beside}
            for check in checks:
                verification.checks.append(beside[check.name].result() if check.beside else timed(check))
        finally:
            verification.over.set()


def _timed(
    verification: Verification, progress: Progress, require_engine: Callable[[], None], check: VerificationCheck
) -> Check:
    """Run a check as a step of `progress`, and add its seconds and its claim."""
    with progress.step(f"verify: {check.name}") as step:
        why = check.skip(verification)
        result = judge.Judgement(judge.SKIP, why) if why else judged(check, verification)
        if not why and result.status != judge.PASS:
            # To a check, an image whose engine ends, or has no space left, looks like one that crashes.
            require_engine()
        step.outcome = result.status
    return Check(
        name=check.name,
        status=result.status,
        detail=printable(result.detail),
        seconds=round(step.seconds, 2),
        measures=result.measures,
        proves=check.proves,
        how=check.how,
        fix=check.fix if result.status == judge.FAIL else "",
    )


def judged(check: VerificationCheck, verification: Verification) -> judge.Judgement:
    """Run a check that is not skipped; a file of the image that cannot be read fails it."""
    try:
        return check.run(verification)
    except BadInput as error:
        return judge.Judgement(judge.FAIL, error.reason)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            why = f"this machine cannot run the check {check.name}: {error.strerror}"
            raise TfbuildError(why, hint="free memory, or raise the limit of processes or files (ulimit -a)") from error
        path = f"{error.filename} cannot be read: " if error.filename else ""
        return judge.Judgement(judge.FAIL, f"{path}{error.strerror or error}")


# --- the report ----------------------------------------------------------------------------------------------------


def _report(verification: Verification, image: Image, ref: str, seconds: float) -> Report:
    environment = verification.environment
    return Report(
        schema=SCHEMA,
        kind="smoke",
        id=read_labels(image.labels).id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"tfbuild {__version__}",
        seconds=round(seconds, 1),
        verdict=judge.verdict(check.status for check in verification.checks),
        image=ImageFacts(
            ref=ref,
            id=image.id,
            digests=image.repo_digests,
            size=image.size,
            architecture=image.architecture,
            labels={name: printable(value) for name, value in image.labels.items()},
        ),
        host=probe.host(environment, verification.engine) if environment else None,
        software=_software(environment, verification) if environment else None,
        checks=tuple(verification.checks),
        throughput=verification.throughput,
        source_would_add=_would_add(verification, environment) if environment else (),
    )


def _would_add(verification: Verification, environment: Environment) -> tuple[str, ...]:
    """Return what `--cpu host` would add: neither AMX, which needs no flag, nor AVX_VNNI beside AVX512_VNNI."""
    held = relevant(canonical(environment.cpu_flags, "x86_64"))
    return isa.unused(verification.guard, verification.planned.release, held)


def _software(environment: Environment, verification: Verification) -> ImageSoftware:
    own = probe.software(environment, verification.tensorflow)
    return ImageSoftware(**vars(own), compiled_for=verification.guard.compiled, packages=environment.packages)
