"""The order of the experiments, their shares of the budget, and an end by Ctrl-C that keeps what was measured."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tfbuild import __version__
from tfbuild.bench import allocators, evidence, profiled, wording
from tfbuild.bench.inplace import recorded
from tfbuild.bench.live import LiveWatch, Nobody
from tfbuild.bench.underway import Group, Underway
from tfbuild.engine import Engine
from tfbuild.errors import UnknownImage
from tfbuild.in_container.smoke.records import Environment, TensorFlow
from tfbuild.measure import probe, records, rounds, workers
from tfbuild.measure.arms import Machine
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import BenchReport, ExperimentResult, Finding, Software, Subject
from tfbuild.measure.rounds import RoundLimits
from tfbuild.measure.workers import Pool
from tfbuild.util.process import interruptible
from tfbuild.util.progress import Progress, Step
from tfbuild.util.terminal import printable

QUICK_SECONDS = 80.0
USUAL_SECONDS = 300.0
# What the rows say that they take by their weights, and some.
FULL_SECONDS = 3000.0
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
    `rounds`: of each case, in place of the mode's.
    """

    mode: str
    budget: float
    against: str = ""
    more: Mapping[str, bytes] = field(default_factory=dict)
    ca: Path | None = None
    seed: int = 0
    command: profiled.Command | None = None
    rounds: int = 0

    @property
    def quick(self) -> bool:
        return self.mode == "quick"

    @property
    def most_rounds(self) -> int:
        return self.rounds or ROUNDS[self.mode]


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
class BudgetShare:
    """Until when (monotonic) an experiment should be over, and until when the whole run must be."""

    end: float
    last: float


@dataclass
class Session:
    """One run on one image. `underway`: what was measured so far, whatever ends the run."""

    engine: Engine
    settings: Settings
    machine: Machine
    progress: Progress
    watch: LiveWatch = field(default_factory=Nobody)
    underway: list[Underway] = field(default_factory=list)
    interrupted: bool = False

    @property
    def done(self) -> tuple[ExperimentResult, ...]:
        return tuple(one.result() for one in self.underway)

    def run(self, rows: Sequence[Experiment]) -> None:
        clock = Clock(time.monotonic() + self.settings.budget, [self._weight(row) for row in rows])
        self.watch.plan([row.name for row in rows], clock.end)
        try:
            with interruptible(), workers.pool(self.engine, self.settings.more) as pool:
                for row in rows:
                    self._experiment(row, pool, clock)
                self._rest(pool, clock.end)
        except KeyboardInterrupt:
            self.interrupted = True

    def _weight(self, row: Experiment) -> float:
        return sum(self._seconds(row, case) for case in self._cases(row))

    def _seconds(self, row: Experiment, case: Case) -> float:
        """0 where it cannot run here: then the others may have its time."""
        return 0.0 if self.machine.lacks(row, case) else row.seconds(case)

    def _cases(self, row: Experiment) -> tuple[Case, ...]:
        return row.cases(self.settings.quick) or row.case

    def _experiment(self, row: Experiment, pool: Pool, clock: Clock) -> None:
        share, begin = clock.share(), time.monotonic()
        wanted = self._cases(row)
        groups = [Group(row, cases) for cases in ([wanted] if row.together else [(case,) for case in wanted])]
        # What it stays, whatever Ctrl-C hits.
        one = Underway(row, groups, status=records.INTERRUPTED, reason="interrupted")
        self.underway.append(one)
        try:
            with self.progress.step(f"bench: {row.name}") as step:
                if all(self.machine.lacks(row, case) for case in wanted):
                    for group in one.groups:
                        group.not_begun(self.machine)
                    one.status = ""
                elif share < LEAST_SECONDS:
                    one.status, one.reason = records.SKIPPED, "the budget leaves no time for it"
                else:
                    step.detail = "what it really is"
                    one.seen += self._beforehand(row, pool, share)
                    self._groups(one, pool, BudgetShare(begin + share, clock.end), step)
                    _close_special(pool)
                    one.status = ""
                status = one.result().status
                step.outcome = "done" if status == records.MEASURED else status
        finally:
            for line in wording.lines(list(one.cases())):
                self.progress(line)
            # Also where Ctrl-C ends it: what was measured until then stands.
            one.seconds = time.monotonic() - begin

    def _beforehand(self, row: Experiment, pool: Pool, share: float) -> tuple[Finding, ...]:
        found = evidence.of(row, self._cases(row), pool, self.machine, share)
        # --quick reaches for no network.
        if self.settings.quick or not allocators.wanted(row):
            return found
        files, told = allocators.bring(self.engine, self.machine.image, self.settings.ca, share)
        pool.more = {**pool.more, **files}
        return (*found, told)

    def _groups(self, one: Underway, pool: Pool, share: BudgetShare, step: Step) -> None:
        weights = [sum(self._seconds(one.row, case) for case in group.cases) for group in one.groups]
        clock = Clock(share.end, weights)
        shuffled = random.Random(f"{self.settings.seed} {one.row.name}")
        for turn, group in enumerate(one.groups):
            if turn and time.monotonic() > share.end:
                group.not_begun(self.machine)
            else:
                self._measure(group, pool, self._limits(clock.share(), share.last), shuffled, step)

    def _measure(self, group: Group, pool: Pool, limits: RoundLimits, shuffled: random.Random, step: Step) -> None:
        def tell(text: str) -> None:
            step.detail = text
            self.watch.draw()

        made = group.begin(self.machine, pool, tell)
        self.watch.cases(made)
        try:
            rounds.prepare(made, time.monotonic() + PREPARING * (limits.latest - time.monotonic()))
            rounds.run(made, limits, shuffled)
            pool.forget()
        except KeyboardInterrupt:
            group.keep(made, interrupted=True)
            raise
        group.keep(made)
        if group.row.fresh:
            _close_special(pool)

    def _rest(self, pool: Pool, end: float) -> None:
        """What was cut gets the time until `end` that nothing else needed, for as long as that brings it further.

        What has least comes first: a first interval says more than a narrower one.
        """
        before: list[tuple[int, int]] = []
        while cut := [(one, group) for one in self.underway for group in one.groups if group.cut]:
            gained = [group.gained for _, group in cut]
            if gained == before:
                return
            before = gained
            cut.sort(key=lambda one: one[1].gained)
            clock = Clock(end, [group.missing(self.settings.most_rounds) for _, group in cut])
            for one, group in cut:
                if end - time.monotonic() < LEAST_SECONDS:
                    return
                self._go_on(one, group, pool, BudgetShare(time.monotonic() + clock.share(), end))

    def _go_on(self, one: Underway, group: Group, pool: Pool, share: BudgetShare) -> None:
        begin, gained = time.monotonic(), group.gained
        shuffled = random.Random(f"{self.settings.seed} {one.row.name} {gained}")
        try:
            with self.progress.step(f"bench: {one.row.name}, what was cut") as step:
                self._measure(group, pool, self._limits(share.end - begin, share.last), shuffled, step)
                _close_special(pool)
                step.outcome = records.TRUNCATED if group.cut else "done"
        finally:
            if group.gained > gained:
                for line in wording.lines(group.told):
                    self.progress(line)
            one.seconds += time.monotonic() - begin

    def _limits(self, seconds: float, last: float) -> RoundLimits:
        end = time.monotonic() + max(0.0, seconds)
        latest = min(last, end + max(GRACE_SECONDS, GRACE * max(0.0, seconds)))
        return RoundLimits(rounds=self.settings.most_rounds, end=min(end, latest), latest=latest)


def bench(
    engine: Engine,
    ref: str,
    rows: Sequence[Experiment],
    settings: Settings,
    progress: Progress,
    watch: LiveWatch | None = None,
) -> BenchReport:
    """Measures `rows` in the image `ref`, which any tool may have made; `watch` is told how it goes.

    Raises UnknownImage where it is not there or has no TensorFlow that imports. Ctrl-C ends it early, which the report
    says.
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
        no_gpu=no_gpu,
        sets=frozenset(name for name, _, value in (line.partition("=") for line in image.env) if value),
    )
    # The start is part of the run: what it took is not there for the experiments.
    left = max(0.0, settings.budget - (time.monotonic() - begin))
    session = Session(engine, replace(settings, budget=left), machine, progress, watch or Nobody())
    session.run(rows)
    watched = (
        [profiled.experiment(engine, image.id, settings.command, left, progress, gpus=not no_gpu)]
        if settings.command
        else []
    )
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
            labels=_labels(image.labels),
            against=settings.against,
            env=_labels(recorded(image.env)),
        ),
        host=probe.host(environment, engine),
        software=_software(environment, tensorflow),
        experiments=(*session.done, *watched),
    )


def _start(engine: Engine, ref: str, image: str, *, gpus: bool) -> tuple[Environment, TensorFlow]:
    outcome = probe.ask(engine, image, "start", (Environment, TensorFlow), gpus=gpus)
    environment, tensorflow = outcome.first(Environment), outcome.first(TensorFlow, 1)
    if environment is None or tensorflow is None:
        why = outcome.broken or outcome.ended.why or "it ended without a word"
        raise UnknownImage(
            f"{ref} has no TensorFlow that imports: {why}",
            hint="its `python` must be the one with TensorFlow; invoke verify IMAGE says more of tfbuild's own images",
        )
    return environment, tensorflow


def _close_special(pool: Pool) -> None:
    """Workers that nothing sets apart serve the next experiment too: a started TensorFlow is worth keeping."""
    pool.close(*(key for key in pool.running() if key.env or key.gpus or key.process not in ("", "again")))


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
