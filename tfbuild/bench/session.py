"""The order of the experiments, their shares of the budget, and an end by Ctrl-C that keeps what was measured."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tfbuild import __version__
from tfbuild.bench import allocators, evidence, findings, profiled, results, rounds, together, workers
from tfbuild.bench import report as reporting
from tfbuild.bench.arms import Place
from tfbuild.bench.experiments import Case, Experiment
from tfbuild.bench.inplace import recorded
from tfbuild.bench.live import Nobody, Watch
from tfbuild.bench.results import BenchReport, CaseResult, ExperimentResult, Finding, Software, Subject
from tfbuild.bench.rounds import Comparison, Limits
from tfbuild.bench.workers import Pool
from tfbuild.engine import Engine
from tfbuild.engine.process import interruptible
from tfbuild.engine.progress import Progress, Step
from tfbuild.errors import UnknownImage
from tfbuild.smoke.found import Environment, TensorFlow
from tfbuild.verify import probe
from tfbuild.verify.session import host, printable

QUICK_SECONDS = 80.0
USUAL_SECONDS = 300.0
FULL_SECONDS = 1800.0
ROUNDS = {"quick": 7, "budget": 15, "full": 21}
# Less than this is not enough for workers to start and for six rounds of the shortest samples.
LEAST_SECONDS = 6.0
# Of a case's time; the rest is for rounds.
PREPARING = 0.6
# Six rounds, which the smallest interval of 95 % needs, may take this many shares more, or seconds: a few experiments
# with an interval are worth more than many with none. What comes later gets less then.
GRACE = 2.0
GRACE_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`mode`: quick, budget or full; `budget`: seconds of the whole run; `more`: further files for the workers.

    `command`: a script of the user's own to watch, in its time.
    `ca`: a company's CA certificates, for packages that are fetched.
    """

    mode: str
    budget: float
    against: str = ""
    more: Mapping[str, bytes] = field(default_factory=dict)
    ca: Path | None = None
    seed: int = 0
    command: profiled.Command | None = None

    @property
    def quick(self) -> bool:
        return self.mode == "quick"


@dataclass
class Clock:
    """Shares out what is left of the budget by the weights of what is left to do."""

    end: float
    weights: list[float]

    def share(self) -> float:
        """Seconds for the next piece of work, which is then no longer to come; not too few, while there are enough."""
        left, total = self.end - time.monotonic(), sum(self.weights)
        return max(left * self.weights.pop(0) / (total or 1.0), min(left, LEAST_SECONDS))


@dataclass(frozen=True)
class Share:
    """Until when (monotonic) an experiment should be over, and until when the whole run must be."""

    end: float
    last: float


@dataclass
class Session:
    """One run on one image. `done`: what was measured so far, whatever ends the run."""

    engine: Engine
    settings: Settings
    place: Place
    progress: Progress
    watch: Watch = field(default_factory=Nobody)
    done: list[ExperimentResult] = field(default_factory=list)
    interrupted: bool = False

    def run(self, rows: Sequence[Experiment]) -> None:
        clock = Clock(time.monotonic() + self.settings.budget, [self._weight(row) for row in rows])
        self.watch.plan([row.name for row in rows], clock.end)
        try:
            with interruptible(), workers.pool(self.engine, self.settings.more) as pool:
                for row in rows:
                    self._experiment(row, pool, clock)
        except KeyboardInterrupt:
            self.interrupted = True

    def _weight(self, row: Experiment) -> float:
        return sum(self._seconds(row, case) for case in self._cases(row))

    def _seconds(self, row: Experiment, case: Case) -> float:
        """0 where it cannot run here: then the others may have its time."""
        return 0.0 if self.place.lacks(row, case) else row.seconds(case)

    def _cases(self, row: Experiment) -> tuple[Case, ...]:
        return row.cases(self.settings.quick) or row.case

    def _experiment(self, row: Experiment, pool: Pool, clock: Clock) -> None:
        share, begin = clock.share(), time.monotonic()
        cases: list[CaseResult] = []
        seen: list[Finding] = []
        status, reason = results.INTERRUPTED, "interrupted"
        try:
            with self.progress.step(f"bench: {row.name}") as step:
                if share < LEAST_SECONDS:
                    status, reason = results.SKIPPED, "the budget leaves no time for it"
                else:
                    step.detail = "what it really is"
                    seen += self._beforehand(row, pool, share)
                    self._cases_of(row, pool, Share(begin + share, clock.end), step, cases)
                    _close_special(pool)
                    status, reason = _outcome(cases)
                step.outcome = "done" if status == results.MEASURED else status
        finally:
            for line in reporting.lines(cases):
                self.progress(line)
            # Also where Ctrl-C ends it: what was measured until then stands.
            mean = together.findings(cases) if row.together else ()
            found = (*findings.of(row.name, cases), *mean, *seen)
            self.done.append(_result(row, cases, time.monotonic() - begin, status, reason, found))

    def _beforehand(self, row: Experiment, pool: Pool, share: float) -> tuple[Finding, ...]:
        found = evidence.of(row, self._cases(row), pool, self.place, share)
        # --quick reaches for no network.
        if self.settings.quick or not allocators.wanted(row):
            return found
        files, told = allocators.bring(self.engine, self.place.image, self.settings.ca, share)
        pool.more = {**pool.more, **files}
        return (*found, told)

    def _cases_of(self, row: Experiment, pool: Pool, share: Share, step: Step, cases: list[CaseResult]) -> None:
        wanted = self._cases(row)
        groups = [wanted] if row.together else [(case,) for case in wanted]
        clock = Clock(share.end, [sum(self._seconds(row, case) for case in group) for group in groups])
        shuffled = random.Random(f"{self.settings.seed} {row.name}")

        def tell(text: str) -> None:
            step.detail = text
            self.watch.draw()

        for group in groups:
            if cases and time.monotonic() > share.end:
                cases += [_not_begun(row, case, self.place) for case in group]
                continue
            limits = self._limits(clock.share(), share.last)
            made = [Comparison(row=row, case=case, place=self.place, pool=pool, tell=tell) for case in group]
            self.watch.cases(made)
            try:
                rounds.prepare(made, time.monotonic() + PREPARING * (limits.latest - time.monotonic()))
                rounds.run(made, limits, shuffled)
                pool.forget()
            except KeyboardInterrupt:
                cases += [one.result(interrupted=True) for one in made]
                raise
            cases += [one.result() for one in made]
            if row.fresh:
                _close_special(pool)

    def _limits(self, seconds: float, last: float) -> Limits:
        end = time.monotonic() + max(0.0, seconds)
        latest = min(last, end + max(GRACE_SECONDS, GRACE * max(0.0, seconds)))
        return Limits(rounds=ROUNDS[self.settings.mode], end=min(end, latest), latest=latest)


def bench(
    engine: Engine,
    ref: str,
    rows: Sequence[Experiment],
    settings: Settings,
    progress: Progress,
    watch: Watch | None = None,
) -> BenchReport:
    """Measures `rows` in the image `ref`, which any tool may have made; `watch` is told how it goes.

    Raises UnknownImage where it is not there or has no TensorFlow that imports. Ctrl-C ends it early, which the report
    says.
    """
    begin = time.monotonic()
    image = engine.image(ref)
    against = engine.image(settings.against).id if settings.against else ""
    with progress.step("bench: the image and this machine"):
        environment, tensorflow = _start(engine, ref, image.id)
    place = Place(
        image=image.id,
        against=against,
        cpus=environment.cpus,
        gpus=tensorflow.gpus,
        sets=frozenset(name for name, _, value in (line.partition("=") for line in image.env) if value),
    )
    # The start is part of the run: what it took is not there for the experiments.
    left = max(0.0, settings.budget - (time.monotonic() - begin))
    session = Session(engine, replace(settings, budget=left), place, progress, watch or Nobody())
    session.run(rows)
    if settings.command:
        session.done.append(profiled.experiment(engine, image.id, settings.command, left, progress))
    return BenchReport(
        schema=results.SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"tfbuild {__version__}",
        mode=settings.mode,
        budget=settings.budget,
        seconds=round(time.monotonic() - begin, 1),
        interrupted=session.interrupted,
        image=Subject(
            ref=ref,
            id=image.id,
            labels=_labels(image.labels),
            against=settings.against,
            env=_labels(recorded(image.env)),
        ),
        host=host(environment, engine),
        software=_software(environment, tensorflow),
        experiments=tuple(session.done),
    )


def _start(engine: Engine, ref: str, image: str) -> tuple[Environment, TensorFlow]:
    outcome = probe.ask(engine, image, "start", (Environment, TensorFlow))
    environment, tensorflow = outcome.first(Environment), outcome.first(TensorFlow, 1)
    if environment is None or tensorflow is None:
        why = outcome.broken or outcome.ended.why or "it ended without a word"
        raise UnknownImage(
            f"{ref} has no TensorFlow that imports: {why}",
            hint="its `python` must be the one with TensorFlow; invoke verify IMAGE says more of tfbuild's own images",
        )
    return environment, tensorflow


def _outcome(cases: Sequence[CaseResult]) -> tuple[str, str]:
    """The experiment's status: the best of what its cases have, and the reason where nothing was measured."""
    told = [case.status for case in cases]
    for status in (results.MEASURED, results.TRUNCATED):
        if any(case.status == status and case.rounds for case in cases):
            return (results.TRUNCATED if results.TRUNCATED in told else results.MEASURED), ""
    first = cases[0] if cases else None
    return (first.status, first.reason) if first else (results.SKIPPED, "it has no case")


def _result(
    row: Experiment,
    cases: Sequence[CaseResult],
    seconds: float,
    status: str,
    reason: str,
    found: tuple[Finding, ...] = (),
) -> ExperimentResult:
    return ExperimentResult(
        name=row.name,
        question=row.question,
        compares=row.compares,
        changes=row.changes,
        source=row.source,
        status=status,
        reason=reason,
        seconds=round(seconds, 1),
        cases=tuple(cases),
        findings=found,
    )


def _not_begun(row: Experiment, case: Case, place: Place) -> CaseResult:
    return CaseResult(
        name=case.name,
        metric=case.metric or row.metric,
        status=results.TRUNCATED,
        reason="the experiment's time was over before it began",
        baseline=place.fill(row.arms(case)[0].name),
        arms=(),
    )


def _close_special(pool: Pool) -> None:
    """Workers that nothing sets apart serve the next experiment too: a started TensorFlow is worth keeping."""
    pool.close(*(key for key in pool.running() if key.env or key.process not in ("", "again")))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: printable(value) for name, value in labels.items()}


def _software(environment: Environment, tensorflow: TensorFlow) -> Software:
    return Software(
        tensorflow=tensorflow.version,
        git=tensorflow.git,
        compiler=tensorflow.compiler,
        python=environment.python,
        numpy=environment.numpy,
        malloc=environment.malloc,
    )
