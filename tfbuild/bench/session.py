"""Run experiments in order, divide the budget among them, and keep the results so far on Ctrl-C."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tfbuild import __version__
from tfbuild.bench import evidence, findings, wording
from tfbuild.errors import DiskFull, EngineMissing, UnknownImage, UsageError
from tfbuild.in_container.smoke.probes import Environment, TensorFlow
from tfbuild.measure import evaluate, experiments, probe, records, rounds, workers
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.probe import Runner
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult, Finding, Software, Subject
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import Machine, Pool
from tfbuild.util.process import interruptible
from tfbuild.util.progress import Progress, Step, duration
from tfbuild.util.terminal import printable

# The least share of a case's time, even if few rounds are missing: workers start and build their workloads again.
LEAST_PART = 0.25


@dataclass
class CaseGroup:
    """One case, or cases that take turns in each round, with their `runs` and their `results` so far."""

    row: Experiment
    cases: tuple[Case, ...]
    runs: list[CaseRun] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether a case, or an arm of one, had too little time."""
        return any(records.TRUNCATED in (case.status, *(arm.status for arm in case.arms)) for case in self.results)

    @property
    def progress(self) -> tuple[int, int]:
        """Return the numbers of measured arms and of rounds."""
        arms = [arm for case in self.results for arm in case.arms]
        return sum(arm.status == records.MEASURED for arm in arms), sum(len(case.rounds) for case in self.results)

    def begin(self, machine: Machine, pool: Pool, tell: Callable[[str], None]) -> list[CaseRun]:
        """Resume runs that only lack time; start all anew if an arm was never ready."""
        if not self.runs or not all(run.only_lacks_time() for run in self.runs):
            return [CaseRun(row=self.row, case=case, machine=machine, pool=pool, tell=tell) for case in self.cases]
        for run in self.runs:
            run.resume(tell)
        return self.runs

    def keep(self, runs: list[CaseRun], *, interrupted: bool = False) -> None:
        """Keep the results of these runs, unless more was known before."""
        results = [run.result(interrupted=interrupted) for run in runs]
        if not self.results or replace(self, results=results).progress > self.progress:
            self.runs, self.results = runs, results

    def not_begun(self, machine: Machine) -> None:
        """Record why the cases were not begun: they cannot run on this machine, or no time was left."""
        self.results = [_not_begun(self.row, case, machine) for case in self.cases]

    def missing(self, rounds: int) -> float:
        """Return the seconds that the cases still need for `rounds` rounds, by the row's weight."""
        done = min((len(case.rounds) for case in self.results if case.status == records.TRUNCATED), default=0)
        return sum(map(self.row.seconds, self.cases)) * max(LEAST_PART, 1 - done / rounds)


@dataclass
class ExperimentRun:
    """One experiment as it runs. `status`, `reason`: why it has no results; `observed`: findings besides times."""

    row: Experiment
    groups: list[CaseGroup]
    observed: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    status: str = ""
    reason: str = ""

    def cases(self) -> Iterator[CaseResult]:
        """Yield the results of all cases so far."""
        for group in self.groups:
            yield from group.results

    def result(self) -> ExperimentResult:
        """Return the experiment's record, with its findings."""
        cases = tuple(self.cases())
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
    """Return the experiment's status: the best of its cases', and the reason if nothing was measured."""
    statuses = [case.status for case in cases]
    for status in (records.MEASURED, records.TRUNCATED):
        if any(case.status == status and case.rounds for case in cases):
            return (records.TRUNCATED if records.TRUNCATED in statuses else records.MEASURED), ""
    first = cases[0] if cases else None
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

QUICK_SECONDS = 80.0
USUAL_SECONDS = 300.0
# The time of all rows by their weights, and some more.
FULL_SECONDS = 3600.0
ROUNDS = {"quick": 7, "budget": 15, "full": 21}
# Starting workers and six rounds of the shortest samples take at least this long.
LEAST_SECONDS = 6.0
# The share of a case's time for preparing; the rest is for rounds.
PREPARING = 0.6
# Six rounds, which an interval of 95 % needs, may take this many more shares, or seconds, at the expense of later
# experiments: a few experiments with an interval are worth more than many without.
GRACE = 2.0
GRACE_SECONDS = 20.0
# They end a run as Ctrl-C does.
LOST_ERRORS = (EngineMissing, DiskFull, UnknownImage)


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

    @property
    def most_rounds(self) -> int:
        """Return the number of rounds for each case."""
        return self.rounds or ROUNDS[self.mode]


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
        """Measure the experiments in order, then continue those that were cut short; Ctrl-C ends it."""
        clock = Clock(
            self.end, [sum(self._seconds(row, case) for case in row.cases(self.settings.quick)) for row in rows]
        )
        try:
            with interruptible(), workers.pool(self.engine, self.settings.more) as pool:
                pool.require_image = self._require_image
                for row in rows:
                    self._require_image()
                    self._experiment(row, pool, clock)
                self._rest(pool)
        except (KeyboardInterrupt, *LOST_ERRORS):
            self.interrupted = True

    def _require_image(self) -> None:
        """Raise one of LOST_ERRORS if the image or the engine is gone."""
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
        groups = [CaseGroup(row, members) for members in ([cases] if row.together else [(case,) for case in cases])]
        # The status if Ctrl-C ends it.
        run = ExperimentRun(row, groups, status=records.INTERRUPTED, reason="interrupted")
        self.runs.append(run)
        try:
            with self.progress.step(f"bench: {row.name}") as step:
                if all(self.machine.lacks(row, case) for case in cases):
                    for group in run.groups:
                        group.not_begun(self.machine)
                    run.status = ""
                elif share < LEAST_SECONDS:
                    run.status, run.reason = records.SKIPPED, "the budget leaves no time for it"
                else:
                    step.detail = "observing"
                    run.observed += evidence.observe(row, cases, pool, self.machine, share)
                    self._groups(run, pool, begin + share, step)
                    _close_special(pool)
                    run.status = ""
                    self._learn(run)
                status = run.result().status
                step.outcome = "done" if status == records.MEASURED else status
        finally:
            for line in wording.log_lines(list(run.cases())):
                self.progress(line)
            # Also on Ctrl-C, as the results so far are kept.
            run.seconds = time.monotonic() - begin

    def _learn(self, run: ExperimentRun) -> None:
        """Note the batches that a sweep found, for the rows after it; raise UsageError if it cannot run the model."""
        for case in filter(findings.sweeps_batches, run.cases()):
            first, given = case.arms[0], self.settings.model.get("given")
            if first.workload == experiments.SAVED and first.reason and first.status != records.TRUNCATED:
                hint = "it must load and run with TensorFlow alone, on inputs of numbers or text"
                raise UsageError(f"the model {case.name} cannot be measured: {first.reason}", hint=hint)
            batch = given or (findings.enough(case) or [first.items])[0]
            self.machine = replace(self.machine, model={**self.settings.model, "least": first.items, "batch": batch})

    def _groups(self, run: ExperimentRun, pool: Pool, end: float, step: Step) -> None:
        """Measure the experiment's groups until `end` (monotonic)."""
        weights = [sum(self._seconds(run.row, case) for case in group.cases) for group in run.groups]
        clock = Clock(end, weights)
        shuffled = random.Random(run.row.name)
        for turn, group in enumerate(run.groups):
            if turn and time.monotonic() > end:
                group.not_begun(self.machine)
            else:
                self._measure(group, pool, self._limits(clock.share()), shuffled, step)

    def _measure(self, group: CaseGroup, pool: Pool, limits: RoundLimits, shuffled: random.Random, step: Step) -> None:
        def tell(text: str) -> None:
            left = max(0.0, self.end - time.monotonic())
            step.detail = f"{duration(left)} left: {text}"
            self.progress.draw()

        runs = group.begin(self.machine, pool, tell)
        if group.row.fresh:
            pool.close(*{side.key for run in runs for side in run.live} & {*pool.running()})
        try:
            rounds.prepare(runs, time.monotonic() + PREPARING * (limits.latest - time.monotonic()))
            rounds.run(runs, limits, shuffled)
            pool.forget()
        except (KeyboardInterrupt, *LOST_ERRORS):
            group.keep(runs, interrupted=True)
            raise
        group.keep(runs)
        if group.row.fresh:
            _close_special(pool)

    def _rest(self, pool: Pool) -> None:
        """Spend the time that is left on the cases that were cut, as long as they make progress.

        Cases with the least results go first: a first interval is worth more than a narrower one.
        """
        before: list[tuple[int, int]] = []
        while cut := [(run, group) for run in self.runs for group in run.groups if group.cut]:
            progress = [group.progress for _, group in cut]
            if progress == before:
                return
            before = progress
            cut.sort(key=lambda pair: pair[1].progress)
            clock = Clock(self.end, [group.missing(self.settings.most_rounds) for _, group in cut])
            for run, group in cut:
                if self.end - time.monotonic() < LEAST_SECONDS:
                    return
                self._go_on(run, group, pool, self._limits(clock.share()))

    def _go_on(self, run: ExperimentRun, group: CaseGroup, pool: Pool, limits: RoundLimits) -> None:
        begin, before = time.monotonic(), group.progress
        shuffled = random.Random(f"{run.row.name} {before}")
        try:
            with self.progress.step(f"bench: {run.row.name}, continued") as step:
                self._measure(group, pool, limits, shuffled, step)
                _close_special(pool)
                step.outcome = records.TRUNCATED if group.cut else "done"
        finally:
            if group.progress > before:
                for line in wording.log_lines(group.results):
                    self.progress(line)
            run.seconds += time.monotonic() - begin

    def _limits(self, seconds: float) -> RoundLimits:
        end = time.monotonic() + max(0.0, seconds)
        latest = min(self.end, end + max(GRACE_SECONDS, GRACE * max(0.0, seconds)))
        return RoundLimits(rounds=self.settings.most_rounds, end=min(end, latest), latest=latest)


def bench(
    engine: Runner,
    ref: str,
    rows: Sequence[Experiment],
    settings: Settings,
    progress: Progress,
    require_engine: Callable[[], None],
) -> BenchReport:
    """Measure `rows` in the image `ref`, which any tool may have built; `require_engine`: see Session.

    Raises UnknownImage if the image does not exist or cannot import TensorFlow. After Ctrl-C, or if the engine or the
    image is lost, the report has the results so far.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    against = engine.image(settings.against).id if settings.against else ""
    with progress.step("bench: the image and this machine"):
        no_gpu = engine.lacks_gpus(image.id)
        environment, tensorflow = _start(engine, ref, image.id, gpus=not no_gpu)
    machine = Machine(
        image=image.id,
        against=against,
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
        ),
        host=probe.host(environment, engine),
        software=Software(
            tensorflow=tensorflow.version,
            git=tensorflow.git,
            compiler=tensorflow.compiler,
            python=environment.python,
            numpy=environment.numpy,
            malloc=environment.malloc,
        ),
        experiments=tuple(run.result() for run in session.runs),
    )


def _start(engine: Runner, ref: str, image: str, *, gpus: bool) -> tuple[Environment, TensorFlow]:
    outcome = probe.ask(engine, image, "start", (Environment, TensorFlow), gpus=gpus)
    environment, tensorflow = outcome.first(Environment), outcome.first(TensorFlow, 1)
    if environment is None or tensorflow is None:
        why = outcome.broken or outcome.ended.why or "it exited without output"
        raise UnknownImage(
            f"{ref} cannot import TensorFlow: {why}",
            hint="its `python` must be the one with TensorFlow, and 3.10 or newer; for tfbuild's images, invoke verify "
            "IMAGE says more",
        )
    return environment, tensorflow


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
