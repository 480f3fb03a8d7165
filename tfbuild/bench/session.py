"""Run experiments in order, divide the budget among them, and keep the results so far on Ctrl-C."""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tfbuild import __version__
from tfbuild.bench import evidence, findings, wording
from tfbuild.engine import Image
from tfbuild.errors import TfbuildError, UnknownImage, UsageError
from tfbuild.in_container.smoke.probes import Environment, TensorFlow
from tfbuild.measure import evaluate, experiments, probe, records, rounds, workers
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.probe import Runner
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult, Finding, Other, Subject
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import Machine, Pool
from tfbuild.util.process import interruptible
from tfbuild.util.progress import Progress, Step, duration
from tfbuild.util.terminal import printable


@dataclass
class ExperimentRun:
    """One experiment as it runs, with the results so far.

    `status`, `reason`: why it has none; `observed`: findings besides times.
    """

    row: Experiment
    status: str = ""
    reason: str = ""
    cases: list[CaseResult] = field(default_factory=list)
    observed: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def result(self) -> ExperimentResult:
        """Return the experiment's record, with its findings."""
        cases = tuple(self.cases)
        status, reason = (self.status, self.reason) if self.status else _outcome(cases)
        mean = evaluate.findings(cases) if self.row.together else ()
        return ExperimentResult(
            name=self.row.name,
            question=self.row.question,
            compares=self.row.compares,
            changes=self.row.changes,
            source=self.row.source,
            status=status,
            reason=reason,
            seconds=round(self.seconds, 1),
            cases=cases,
            findings=(*findings.derive(self.row.finding, cases), *mean, *self.observed),
        )


def _outcome(cases: Sequence[CaseResult]) -> tuple[str, str]:
    """Return the experiment's status, truncated if a case is, and the reason if nothing was measured.

    The status and reason are then those of the first case that could run here, or else of the first.
    """
    statuses = [case.status for case in cases]
    if any(case.band and case.status in (records.MEASURED, records.TRUNCATED) for case in cases):
        return (records.TRUNCATED if records.TRUNCATED in statuses else records.MEASURED), ""
    first = next((case for case in cases if case.status != records.SKIPPED), cases[0] if cases else None)
    return (first.status, first.reason) if first else (records.SKIPPED, "it has no case")


def _not_begun(row: Experiment, case: Case, machine: Machine) -> CaseResult:
    lacks = machine.lacks(row, case)
    return CaseResult(
        name=case.name,
        metric=case.metric or row.metric,
        status=records.SKIPPED if lacks else records.TRUNCATED,
        reason=lacks or "the experiment's time budget ended before it began",
        baseline=machine.fill(row.arms(case)[0].name),
        arms=(),
    )


# --- a run -----------------------------------------------------------------------------------------------------------

# By mode; --full has the time of all rows by their weights, and some more.
SECONDS = {"quick": 80.0, "budget": 300.0, "full": 3600.0}
ROUNDS = {"quick": 7, "budget": 15, "full": 21}
# Starting workers and six rounds of the shortest samples take at least this long.
LEAST_SECONDS = 6.0
# The share of a case's time for preparing; the rest is for rounds.
PREPARING = 0.6
# Six rounds, which an interval of 95 % needs, may take this many more shares, or seconds, at the expense of later
# experiments: a few experiments with an interval are worth more than many without.
GRACE = 2.0
GRACE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`mode`: quick, budget or full; `budget`: seconds for the whole run; `more`: further files for the workers.

    `rounds`: for each case, instead of the mode's number; `model`: see Machine.
    """

    mode: str
    budget: float
    against: str = ""
    more: Mapping[str, bytes] = field(default_factory=dict)
    rounds: int = 0
    model: Mapping[str, object] = field(default_factory=dict)

    @property
    def quick(self) -> bool:
        return self.mode == "quick"


@dataclass
class Clock:
    """Divides the remaining time among the remaining work, by weight."""

    end: float
    weights: list[float]

    def share(self) -> float:
        """Return the next piece's seconds, by its weight: no fewer than LEAST_SECONDS unless less is left."""
        left, total = self.end - time.monotonic(), sum(self.weights)
        return max(left * self.weights.pop(0) / (total or 1.0), min(left, LEAST_SECONDS))


@dataclass
class Session:
    """A run on one image until `end` (monotonic). `runs`: the experiments so far, kept however the run ends.

    `require_engine`: raises if the engine ended since the run began, or if its disk is full.
    """

    engine: Runner
    settings: Settings
    machine: Machine
    progress: Progress
    require_engine: Callable[[], None]
    end: float
    runs: list[ExperimentRun] = field(default_factory=list)
    interrupted: bool = False

    def run(self, rows: Sequence[Experiment]) -> None:
        """Measure the experiments in order; Ctrl-C ends it, and so does an engine that is lost or refuses.

        Raises UsageError before anything is measured, for a model of the user's own that cannot run, or an environment
        that is gone.
        """
        clock = Clock(
            self.end, [sum(self._seconds(row, case) for case in row.cases(self.settings.quick)) for row in rows]
        )
        try:
            with interruptible(), workers.pool(self.engine, self.settings.more) as pool:
                pool.require_image = self._require_image
                for row in rows:
                    self._require_image()
                    self._experiment(row, pool, clock)
        except (KeyboardInterrupt, TfbuildError) as error:
            if isinstance(error, UsageError) and not any(case.rounds for run in self.runs for case in run.cases):
                raise
            self.interrupted = True
            if isinstance(error, TfbuildError):
                self.progress(f"bench: {error.reason}")

    def _require_image(self) -> None:
        """Raise TfbuildError if the image or the engine is gone."""
        self.require_engine()
        self.engine.image(self.machine.image)

    def _seconds(self, row: Experiment, case: Case) -> float:
        """Return the seconds that a case takes, or 0 if it cannot run here, so that the others get its time."""
        return 0.0 if self.machine.lacks(row, case) else row.seconds(case)

    def _experiment(self, row: Experiment, pool: Pool, clock: Clock) -> None:
        share, begin = clock.share(), time.monotonic()
        # By name, because the batches that a sweep found may be the same.
        settled = {case.name: case for case in map(self.machine.settle, row.cases(self.settings.quick))}
        cases = (*settled.values(),)
        # The status if Ctrl-C ends it.
        run = ExperimentRun(row, records.INTERRUPTED, "interrupted")
        self.runs.append(run)
        try:
            with self.progress.step(f"bench: {row.name}") as step:
                if all(self.machine.lacks(row, case) for case in cases):
                    run.cases += [_not_begun(row, case, self.machine) for case in cases]
                    run.status = ""
                elif share < LEAST_SECONDS:
                    run.status, run.reason = records.SKIPPED, "the budget leaves no time for it"
                else:
                    step.detail = "observing"
                    run.observed += evidence.observe(row, cases, pool, self.machine, share)
                    self._cases(run, cases, pool, begin + share, step)
                    _close_special(pool)
                    run.status = ""
                    self._learn(run)
                status = run.result().status
                step.outcome = "done" if status == records.MEASURED else status
        finally:
            for line in wording.log_lines(run.cases):
                self.progress(line)
            # Also on Ctrl-C, as the results so far are kept.
            run.seconds = time.monotonic() - begin

    def _learn(self, run: ExperimentRun) -> None:
        """Note the batches that a sweep found, for the rows after it; raise UsageError if it cannot run the model."""
        for case in filter(findings.sweeps_batches, run.cases):
            first, given = case.arms[0], self.settings.model.get("given")
            if first.workload == experiments.SAVED and first.reason and first.status != records.TRUNCATED:
                hint = "it must load and run with TensorFlow alone, on inputs of numbers or text"
                raise UsageError(f"the model {case.name} cannot be measured: {first.reason}", hint=hint)
            batch = given or (findings.enough(case) or [first.items])[0]
            self.machine = replace(self.machine, model={**self.settings.model, "least": first.items, "batch": batch})

    def _cases(self, run: ExperimentRun, cases: tuple[Case, ...], pool: Pool, end: float, step: Step) -> None:
        """Measure the cases one after the other, or in turns, until `end` (monotonic)."""
        groups = [cases] if run.row.together else [(case,) for case in cases]
        clock = Clock(end, [sum(self._seconds(run.row, case) for case in group) for group in groups])
        shuffled = random.Random(run.row.name)
        for turn, group in enumerate(groups):
            if turn and time.monotonic() > end:
                run.cases += [_not_begun(run.row, case, self.machine) for case in group]
            else:
                self._measure(run, group, pool, self._limits(clock.share()), shuffled, step)

    def _measure(
        self,
        run: ExperimentRun,
        cases: tuple[Case, ...],
        pool: Pool,
        limits: RoundLimits,
        shuffled: random.Random,
        step: Step,
    ) -> None:
        def tell(text: str) -> None:
            left = max(0.0, self.end - time.monotonic())
            step.detail = f"{duration(left)} left: {text}"
            self.progress.draw()

        runs = [CaseRun(row=run.row, case=case, machine=self.machine, pool=pool, tell=tell) for case in cases]
        if run.row.fresh:
            pool.close(*(side.key for one in runs for side in one.live))
        try:
            rounds.prepare(runs, time.monotonic() + PREPARING * (limits.latest - time.monotonic()))
            rounds.run(runs, limits, shuffled)
            pool.forget()
        except (KeyboardInterrupt, TfbuildError):
            run.cases += [one.result(interrupted=True) for one in runs]
            raise
        run.cases += [one.result() for one in runs]
        if run.row.fresh:
            _close_special(pool)

    def _limits(self, seconds: float) -> RoundLimits:
        end = time.monotonic() + max(0.0, seconds)
        latest = min(self.end, end + max(GRACE_SECONDS, GRACE * max(0.0, seconds)))
        most = self.settings.rounds or ROUNDS[self.settings.mode]
        return RoundLimits(rounds=most, end=min(end, latest), latest=latest)


def bench(
    engine: Runner,
    ref: str,
    rows: Sequence[Experiment],
    settings: Settings,
    progress: Progress,
    require_engine: Callable[[], None],
) -> BenchReport:
    """Measure `rows` in the image `ref`, which any tool may have built; `require_engine`: see Session.

    Raises UnknownImage if an image does not exist or cannot import TensorFlow. After Ctrl-C, or if the engine or the
    image is lost, the report has the results so far.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    against = engine.image(settings.against) if settings.against else None
    with progress.step("bench: the image and this machine"):
        no_gpu = engine.lacks_gpus(image.id)
        environment, tensorflow = _start(engine, ref, image.id, gpus=not no_gpu)
        other = _other(engine, settings.against, against) if against else None
    machine = Machine(
        image=image.id,
        against=other.id if other else "",
        cpus=environment.cpus,
        gpus=tensorflow.gpus,
        nodes=environment.nodes,
        no_gpu=no_gpu,
        model=settings.model,
        sets=frozenset(name for name, _, value in (line.partition("=") for line in image.env) if value),
    )
    session = Session(engine, settings, machine, progress, require_engine, end=begin + settings.budget)
    session.run(rows)
    return BenchReport(
        schema=records.SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"tfbuild {__version__}",
        mode=settings.mode,
        budget=settings.budget,
        seconds=round(time.monotonic() - begin, 1),
        interrupted=session.interrupted,
        image=Subject(
            ref=ref,
            id=image.id,
            labels=_printable(image.labels),
            against=settings.against,
            env=_printable(recorded_settings(image.env)),
            other=other,
        ),
        host=probe.host(environment, engine),
        software=probe.software(environment, tensorflow),
        experiments=tuple(run.result() for run in session.runs),
    )


def _start(engine: Runner, ref: str, image: str, *, gpus: bool) -> tuple[Environment, TensorFlow]:
    started = probe.ask(engine, image, "start", (Environment, TensorFlow), gpus=gpus)
    if len(started.records) < 2:
        why = started.ended.why or "it exited without output"
        raise UnknownImage(
            f"{ref} cannot import TensorFlow: {why}",
            hint="its `python` must be the one with TensorFlow, and 3.10 or newer; for tfbuild's images, invoke verify "
            "IMAGE says more",
        )
    environment, tensorflow = started.records
    return environment, tensorflow


def _other(engine: Runner, ref: str, image: Image) -> Other:
    """Return what the other image is: another release or another setting would explain a difference, too."""
    _, tensorflow = _start(engine, ref, image.id, gpus=False)
    return Other(id=image.id, tensorflow=tensorflow.version, env=_printable(recorded_settings(image.env)))


def _close_special(pool: Pool) -> None:
    """Close workers with special settings; the others serve the next experiment, since starting TensorFlow is slow."""
    pool.close(*(key for key in pool.running() if key.env or key.gpus or key.place or key.process not in ("", "again")))


def recorded_settings(lines: Iterable[str]) -> dict[str, str]:
    """Return the variables that experiments set from `lines` (NAME=VALUE); others may hold secrets."""
    cases = ((row, case) for row in experiments.known_experiments() for case in row.case)
    names = {name for row, case in cases for env in (case.env, *(arm.env for arm in row.arms(case))) for name in env}
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, _, value in pairs if value and name in names}


def _printable(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: printable(value) for name, value in texts.items()}
