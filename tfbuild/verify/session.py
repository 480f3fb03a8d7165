"""The order of the checks, and what depends on what: a check that cannot run is skipped with the reason."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tfbuild import __version__
from tfbuild.binary import Guard, GuardUnreadable
from tfbuild.engine import Engine, Image, WorkerDied
from tfbuild.proof import SCHEMA, Check, Host, ImageFacts, Interval, Measure, PlanFacts, Report, Software, Throughput
from tfbuild.smoke import judge
from tfbuild.smoke.found import Cuda, Environment, Faults, Part, TensorFlow
from tfbuild.verify import instructions, paired, probe, throughput
from tfbuild.verify.claims import CLAIMS
from tfbuild.verify.planned import PREFIX, Planned
from tfbuild.verify.probe import Outcome
from tfbuild.verify.throughput import Baseline, MeasurementError, TooBusyError

ALIVE = "tfbuild"
VERBOSE = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}
NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is verified; `progress` is told one line when a check has its result."""

    engine: Engine
    ref: str
    planned: Planned
    progress: Callable[[str], None]

    def ask(self, name: str, *kinds: type, **env: str) -> Outcome:
        return probe.ask(self.engine, self.ref, name, kinds, env)

    def timed(self, judged: Callable[[], judge.Check]) -> Check:
        """The check with its seconds and its claim; told to `progress`."""
        begin = time.monotonic()
        found = judged()
        claim = CLAIMS[found.name]
        check = Check(
            name=found.name,
            status=found.status,
            detail=printable(found.detail),
            seconds=round(time.monotonic() - begin, 2),
            measures=tuple(Measure(name=m.name, value=m.value, limit=m.limit) for m in found.measures),
            proves=claim.proves,
            how=claim.how,
            fix=claim.fix if found.status == judge.FAIL else "",
        )
        self.progress(f"{check.name}: {check.status}: {check.detail}")
        return check


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


def verify(
    engine: Engine, ref: str, *, baseline: Baseline | None, progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Runs every check on the image `ref`; `baseline` None: there is nothing to compare the throughput with.

    Raises UnknownImage where it is not there or was not made by tfbuild, EngineMissing where the engine goes away. An
    image that is not what it claims to be is no error: the report says so.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    # By its id from here on: another build may move the name meanwhile.
    subject = Subject(engine=engine, ref=image.id, planned=Planned.of(ref, image.labels), progress=progress)
    guard = subject.timed(lambda: _guard(subject))
    start = _start(subject, guard)
    imported = subject.timed(lambda: _import(subject, start))
    if imported.status == judge.FAIL and not start.tensorflow:
        start = Start(outcome=start.outcome, why=start.why or "TensorFlow does not import (see import)")
    compiled = _read_guard(subject)
    checks = [guard, imported, subject.timed(lambda: _isa(subject, start, compiled))]
    for name, run in (("onednn", _onednn), ("tcmalloc", _tcmalloc), ("cuda", _cuda), ("numerics", _numerics)):
        checks.append(subject.timed(lambda name=name, run=run: _unless(start.why, name, lambda: run(subject, start))))  # type: ignore[misc]
    speed = _measure(subject, baseline, checks, start)
    checks.append(subject.timed(lambda: speed.check))
    return _report(subject, image, ref, tuple(checks), start, compiled, speed.found, time.monotonic() - begin)


def printable(text: str) -> str:
    """Text from an image, fit for a terminal: no control characters, at most 600 characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:600]


def _unless(why: str, name: str, run: Callable[[], judge.Check]) -> judge.Check:
    return judge.skipped(name, why) if why else run()


def _guard(subject: Subject) -> judge.Check:
    try:
        run = subject.engine.run(subject.ref, ["python", "-c", f"print('{ALIVE}')"], timeout=probe.SECONDS)
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", timed_out=True))
    if run.exit_code == 0 and run.stdout != f"{ALIVE}\n":
        return judge.Check("guard", judge.FAIL, "the entry point does not start the command that it is given")
    return judge.guard(judge.Ended(run.exit_code, run.stderr))


def _start(subject: Subject, guard: Check) -> Start:
    if guard.status == judge.FAIL:
        nothing = Outcome(found=(), ended=judge.Ended(1, ""), output="")
        return Start(outcome=nothing, why="the image does not start on this host (see guard)")
    return Start(outcome=subject.ask("start", Environment, TensorFlow))


def _import(subject: Subject, start: Start) -> judge.Check:
    if start.why:
        return judge.skipped("import", start.why)
    if start.outcome.broken:
        return judge.Check("import", judge.FAIL, start.outcome.broken)
    return judge.importing(start.environment, start.tensorflow, start.outcome.ended, subject.planned.smoke())


def _read_guard(subject: Subject) -> Guard | GuardUnreadable:
    try:
        return instructions.read(subject.engine, subject.ref, subject.planned)
    except GuardUnreadable as error:
        return error


def _isa(subject: Subject, start: Start, guard: Guard | GuardUnreadable) -> judge.Check:
    if subject.planned.arch != "x86_64":
        return judge.skipped("isa", f"TensorFlow's guard knows no feature of {subject.planned.arch}")
    if isinstance(guard, GuardUnreadable):
        return judge.Check("isa", judge.FAIL, guard.reason)
    flags = start.environment.cpu_flags if start.environment else ()
    message = judge.message(start.outcome.output) if start.tensorflow else None
    return instructions.check(subject.planned, guard, flags, message, start.why)


def _onednn(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.target != "mkl":
        return judge.onednn("", None, judge.Ended(0, ""), subject.planned.smoke())
    outcome = subject.ask("onednn", Part, **VERBOSE)
    if outcome.broken:
        return judge.Check("onednn", judge.FAIL, outcome.broken)
    return judge.onednn(outcome.output, start.environment, outcome.ended, subject.planned.smoke())


def _tcmalloc(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.allocator != "tcmalloc":
        return judge.tcmalloc(None, None, "", judge.Ended(0, ""), subject.planned.smoke())
    outcome = subject.ask("faults", Faults, **NO_ONEDNN)
    if outcome.broken:
        return judge.Check("tcmalloc", judge.FAIL, outcome.broken)
    plan = subject.planned.smoke()
    return judge.tcmalloc(start.environment, outcome.first(Faults), start.outcome.output, outcome.ended, plan)


def _cuda(subject: Subject, start: Start) -> judge.Check:
    if subject.planned.target != "cuda":
        return judge.cuda(None, judge.Ended(0, ""), subject.planned.smoke())
    outcome = subject.ask("cuda", Cuda)
    if outcome.broken:
        return judge.Check("cuda", judge.FAIL, outcome.broken)
    return judge.cuda(outcome.first(Cuda), outcome.ended, subject.planned.smoke())


def _numerics(subject: Subject, start: Start) -> judge.Check:
    outcome = subject.ask("numerics", *(Part for _ in judge.LIMITS))
    if outcome.broken:
        return judge.Check("numerics", judge.FAIL, outcome.broken)
    return judge.numerics(outcome.found, outcome.ended, subject.planned.smoke())


@dataclass(frozen=True, kw_only=True)
class Speed:
    check: judge.Check
    found: Throughput | None = None


def _measure(subject: Subject, baseline: Baseline | None, checks: list[Check], start: Start) -> Speed:
    why = start.why or ("" if baseline else "there is no baseline to compare with")
    if any(check.name == "onednn" and check.status == judge.FAIL for check in checks):
        why = "oneDNN is not what was planned (see onednn), and a time would only say that again"
    if why or baseline is None:
        return Speed(check=judge.skipped("throughput", why))
    subject.progress("throughput: interleaved rounds of three containers, half a minute")
    try:
        found = throughput.measure(subject.engine, subject.ref, baseline)
    except TooBusyError as error:
        return Speed(check=judge.skipped("throughput", str(error)))
    except (MeasurementError, WorkerDied, TimeoutError) as error:
        return Speed(check=judge.Check("throughput", judge.FAIL, f"could not be measured: {error}"))
    return Speed(check=judge_speed(found), found=found)


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
    guard: Guard | GuardUnreadable,
    speed: Throughput | None,
    seconds: float,
) -> Report:
    compiled = guard if isinstance(guard, Guard) else Guard(compiled=(), unused=())
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
        host=_host(environment, subject.engine) if environment else None,
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


def _host(environment: Environment, engine: Engine) -> Host:
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
