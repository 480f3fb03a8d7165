"""The order of the checks, and what depends on what: a check that cannot run is skipped with the reason."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from tfbuild import __version__, terminal
from tfbuild.binary import Guard, GuardUnreadable
from tfbuild.engine import Engine, Image, WorkerDied
from tfbuild.engine.progress import Progress
from tfbuild.inspection import CodeUnreadable
from tfbuild.proof import SCHEMA, Check, Host, ImageFacts, Interval, Measure, PlanFacts, Report, Software, Throughput
from tfbuild.smoke import judge
from tfbuild.smoke.found import Cuda, Environment, Faults, OneDnn, Part, TensorFlow
from tfbuild.verify import code, instructions, paired, probe, throughput
from tfbuild.verify.asking import MeasurementError
from tfbuild.verify.claims import CLAIMS
from tfbuild.verify.planned import PREFIX, Planned
from tfbuild.verify.probe import Outcome
from tfbuild.verify.throughput import Baseline, TooBusyError

ALIVE = "tfbuild"
NO_FEATURES = "/tmp/tfbuild-no-features"
UNFIT = 86
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is verified; each check is a step of `progress`."""

    engine: Engine
    ref: str
    planned: Planned
    progress: Progress

    def ask(self, name: str, *kinds: type, **env: str) -> Outcome:
        return probe.ask(self.engine, self.ref, name, kinds, env)

    def timed(self, name: str, work: Callable[[], tuple[judge.Check, T]]) -> tuple[Check, T]:
        """The check with its seconds and its claim, and what else `work` found."""
        with self.progress.step(f"verify: {name}") as step:
            found, more = work()
            step.outcome = found.status
        claim = CLAIMS[found.name]
        check = Check(
            name=found.name,
            status=found.status,
            detail=printable(found.detail),
            seconds=round(step.seconds, 2),
            measures=tuple(Measure(name=m.name, value=m.value, limit=m.limit) for m in found.measures),
            proves=claim.proves,
            how=claim.how,
            fix=claim.fix if found.status == judge.FAIL else "",
        )
        return check, more


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the first probe found; `why`: the reason for which nothing that needs TensorFlow can run, else empty."""

    outcome: Outcome
    why: str = ""

    @property
    def environment(self) -> Environment | None:
        return self.outcome.first(Environment)

    @property
    def tensorflow(self) -> TensorFlow | None:
        return self.outcome.first(TensorFlow, 1)


NO_BASELINE = "there is no baseline to compare with"


def verify(
    engine: Engine, ref: str, *, baseline: Baseline | None, progress: Progress, untimed: str = NO_BASELINE
) -> Report:
    """Runs every check on the image `ref`; without a `baseline` the throughput is skipped, for the reason `untimed`.

    Raises UnknownImage where it is not there or was not made by tfbuild, EngineMissing where the engine goes away. An
    image that is not what it claims to be is no error: the report says so.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    # By its id from here on: another build may move the name meanwhile.
    subject = Subject(
        engine=engine, ref=image.id, planned=Planned.of(ref, image.labels, image.architecture), progress=progress
    )
    guard, _ = subject.timed("guard", lambda: (_guard(subject), None))
    imported, start = subject.timed("import", lambda: _import(subject, guard))
    isa, compiled = subject.timed("isa", lambda: _isa(subject, start))
    machine, _ = subject.timed("code", lambda: (_code(subject), None))
    checks = [guard, imported, isa, machine]
    for name, run in (("onednn", _onednn), ("tcmalloc", _tcmalloc), ("cuda", _cuda), ("numerics", _numerics)):
        work = partial(_unless, start.why, name, partial(run, subject, start))
        checks.append(subject.timed(name, work)[0])
    speed, found = subject.timed("throughput", lambda: _measure(subject, baseline or untimed, checks, start))
    return _report(subject, image, ref, (*checks, speed), start, compiled, found, time.monotonic() - begin)


def printable(text: str) -> str:
    """Text from an image, fit for a terminal: no control characters, at most 600 characters."""
    return terminal.printable(text, 600)


def _unless(why: str, name: str, run: Callable[[], judge.Check]) -> tuple[judge.Check, None]:
    return judge.skipped(name, why) if why else run(), None


def _guard(subject: Subject) -> judge.Check:
    try:
        run = subject.engine.run(subject.ref, ["python", "-c", f"print('{ALIVE}')"], timeout=probe.SECONDS)
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", timed_out=True))
    if run.exit_code == 0 and run.stdout != f"{ALIVE}\n":
        return judge.Check("guard", judge.FAIL, "the entry point does not start the command that it is given")
    if run.exit_code == 0 and not _stops_on_a_lesser_cpu(subject):
        return judge.Check("guard", judge.FAIL, "the entry point starts Python on a CPU that has no feature at all")
    return judge.guard(judge.Ended(run.exit_code, run.stderr))


def _stops_on_a_lesser_cpu(subject: Subject) -> bool:
    files, env = {NO_FEATURES: b"flags : none\nFeatures : none\n"}, {"TFBUILD_CPUINFO": NO_FEATURES}
    return subject.engine.run(subject.ref, ["true"], env=env, files=files, timeout=probe.SECONDS).exit_code == UNFIT


def _import(subject: Subject, guard: Check) -> tuple[judge.Check, Start]:
    nothing = Outcome(found=(), ended=judge.Ended(1, ""), output="")
    if guard.status == judge.FAIL:
        why = "the image does not start on this host (see guard)"
        return judge.skipped("import", why), Start(outcome=nothing, why=why)
    outcome = subject.ask("start", Environment, TensorFlow)
    start = Start(outcome=outcome)
    if outcome.broken:
        check = judge.Check("import", judge.FAIL, outcome.broken)
    else:
        check = judge.importing(start.environment, start.tensorflow, outcome.ended, subject.planned.smoke())
    if check.status == judge.FAIL and not start.tensorflow:
        start = Start(outcome=outcome, why="TensorFlow does not import (see import)")
    return check, start


def _isa(subject: Subject, start: Start) -> tuple[judge.Check, Guard]:
    nothing = Guard(compiled=(), unused=())
    if subject.planned.arch != "x86_64":
        return judge.skipped("isa", f"TensorFlow's guard knows no feature of {subject.planned.arch}"), nothing
    try:
        guard = instructions.read(subject.engine, subject.ref, subject.planned)
    except GuardUnreadable as error:
        return judge.Check("isa", judge.FAIL, error.reason), nothing
    flags = start.environment.cpu_flags if start.environment else ()
    message = judge.message(start.outcome.output) if start.tensorflow else None
    return instructions.check(subject.planned, guard, flags, message, start.why), guard


def _code(subject: Subject) -> judge.Check:
    try:
        libraries = code.read(subject.engine, subject.ref, subject.planned)
    except CodeUnreadable as error:
        return judge.Check("code", judge.FAIL, error.reason)
    return code.check(subject.planned, libraries)


def _onednn(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.target != "mkl":
        return judge.onednn("", None, None, judge.Ended(0, ""), subject.planned.smoke())
    outcome = subject.ask("onednn", OneDnn, **judge.TALKATIVE)
    if outcome.broken:
        return judge.Check("onednn", judge.FAIL, outcome.broken)
    ran = outcome.first(OneDnn)
    return judge.onednn(outcome.output, start.environment, ran, outcome.ended, subject.planned.smoke())


def _tcmalloc(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.allocator != "tcmalloc":
        return judge.tcmalloc(None, None, "", judge.Ended(0, ""), subject.planned.smoke())
    outcome = subject.ask("faults", Faults, **judge.NO_ONEDNN)
    if outcome.broken:
        return judge.Check("tcmalloc", judge.FAIL, outcome.broken)
    plan = subject.planned.smoke()
    return judge.tcmalloc(start.environment, outcome.first(Faults), start.outcome.output, outcome.ended, plan)


def _cuda(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.target != "cuda":
        return judge.cuda(None, judge.Ended(0, ""), subject.planned.smoke())
    lacks = subject.engine.lacks_gpus(subject.ref)
    outcome = probe.ask(subject.engine, subject.ref, "cuda", (Cuda,), gpus=not lacks)
    if outcome.broken:
        return judge.Check("cuda", judge.FAIL, outcome.broken)
    check = judge.cuda(outcome.first(Cuda), outcome.ended, subject.planned.smoke())
    return judge.skipped("cuda", lacks) if lacks and check.status == judge.SKIP else check


def _numerics(subject: Subject, start: Start) -> judge.Check:
    outcome = subject.ask("numerics", *(Part for _ in judge.LIMITS))
    if outcome.broken:
        return judge.Check("numerics", judge.FAIL, outcome.broken)
    return judge.numerics(outcome.found, outcome.ended, subject.planned.smoke())


def _measure(
    subject: Subject, baseline: Baseline | str, checks: list[Check], start: Start
) -> tuple[judge.Check, Throughput | None]:
    """`baseline`: what to compare with, or why there is nothing."""
    why = start.why or (baseline if isinstance(baseline, str) else "")
    if any(check.name == "onednn" and check.status == judge.FAIL for check in checks):
        why = "oneDNN is not what was planned (see onednn), and a time would only say that again"
    if why or isinstance(baseline, str):
        return judge.skipped("throughput", why), None
    try:
        found = throughput.measure(subject.engine, subject.ref, baseline)
    except TooBusyError as error:
        return judge.skipped("throughput", str(error)), None
    except (MeasurementError, WorkerDied, TimeoutError) as error:
        return judge.Check("throughput", judge.FAIL, f"could not be measured: {error}"), None
    return judge_speed(found), found


def judge_speed(found: Throughput) -> judge.Check:
    """Fails only where the whole interval of the CPU-time ratio lies under 0.95 of the baseline's speed."""
    told = (
        f"{found.effect}: {_ratio(found.cpu)} of the baseline's speed in CPU time, {_ratio(found.wall)} in wall time; "
        f"the image against itself {_ratio(found.band)}; {found.clean} of {found.rounds} rounds undisturbed"
    )
    measures = tuple(
        judge.Measure(name, value, limit)
        for name, value, limit in (
            ("cpu_ratio", found.cpu.median, ""),
            ("cpu_ratio_high", found.cpu.high, f">= {paired.SLOWER}"),
            ("wall_ratio", found.wall.median, ""),
            ("band_low", found.band.low, ""),
            ("band_high", found.band.high, ""),
        )
    )
    if paired.too_noisy(found.band):
        return judge.Check("throughput", judge.SKIP, f"the machine is too noisy to tell; {told}", measures)
    return judge.Check("throughput", judge.FAIL if paired.too_slow(found.cpu) else judge.PASS, told, measures)


def _ratio(interval: Interval) -> str:
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


# --- the report ----------------------------------------------------------------------------------------------------


def _report(
    subject: Subject,
    image: Image,
    ref: str,
    checks: tuple[Check, ...],
    start: Start,
    compiled: Guard,
    speed: Throughput | None,
    seconds: float,
) -> Report:
    environment = start.environment
    return Report(
        schema=SCHEMA,
        kind="smoke",
        id=subject.planned.id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"tfbuild {__version__}",
        seconds=round(seconds, 1),
        verdict=judge.verdict([judge.Check(check.name, check.status, "") for check in checks]),
        image=_image_facts(image, ref),
        plan=_plan_facts(image),
        host=host(environment, subject.engine) if environment else None,
        software=_software(environment, start.tensorflow, compiled) if environment else None,
        checks=checks,
        throughput=speed,
        source_would_add=instructions.unused(compiled, environment.cpu_flags) if environment else (),
    )


def _image_facts(image: Image, ref: str) -> ImageFacts:
    return ImageFacts(
        ref=ref,
        id=image.id,
        digests=image.repo_digests,
        size=image.size,
        architecture=image.architecture,
        labels={name: printable(value) for name, value in image.labels.items()},
    )


def _plan_facts(image: Image) -> PlanFacts:
    def told(name: str) -> str:
        return printable(image.labels.get(PREFIX + name, ""))

    names = ("release", "python", "target", "platform", "compiler", "bazel", "threading", "allocator", "onednn")
    return PlanFacts(
        **{name: told(name) for name in (*names, "wheel", "requirement")},
        instruction_set=told("instruction-set"),
        features=tuple(told("features").split()),
        copts=tuple(told("copts").split()),
    )


def host(environment: Environment, engine: Engine) -> Host:
    """Where the containers ran, by what a probe in one of them found."""
    return Host(
        cpu=environment.cpu_model,
        flags=environment.cpu_flags,
        machine=environment.machine,
        kernel=environment.kernel,
        cpus=environment.cpus,
        quota=environment.quota,
        memory=environment.memory,
        engine=engine.version,
    )


def _software(environment: Environment, tensorflow: TensorFlow | None, guard: Guard) -> Software:
    return Software(
        tensorflow=tensorflow.version if tensorflow else "",
        git=tensorflow.git if tensorflow else "",
        compiler=tensorflow.compiler if tensorflow else "",
        python=environment.python,
        numpy=environment.numpy,
        malloc=environment.malloc,
        compiled_for=guard.compiled,
        packages=environment.packages,
    )
