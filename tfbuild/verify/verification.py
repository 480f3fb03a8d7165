"""The state of a verification, and the parts of a check."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfbuild.binary.guard import Guard
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine, Process, Sandbox
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement, ProbeCheck
from tfbuild.in_container.smoke.records import Challenge, Environment, OperationAnswer, TensorFlow
from tfbuild.measure import probe
from tfbuild.measure.probe import Outcome, Untrusted
from tfbuild.verify import challenges
from tfbuild.verify.records import Check, Throughput

NO_START = "the image does not start on this host (see guard)"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the throughput is compared with: an image, and changes of its environment (empty values: unset).

    `ref`: its name in reports; `id`: what to run, because its name may move to another image meanwhile.
    """

    ref: str
    id: str
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The result of a probe: its records without the answers, and what is `wrong` with the answers, else "".

    `absent`: the operations that the build says it lacks.
    """

    outcome: Outcome
    challenge: Challenge
    wrong: str
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Start:
    """The result of the first probe; `why`: why nothing that needs TensorFlow can run, else empty."""

    outcome: Outcome
    why: str = ""

    @property
    def environment(self) -> Environment | None:
        return self.outcome.first(Environment)

    @property
    def tensorflow(self) -> TensorFlow | None:
        return self.outcome.first(TensorFlow, 1)


# No container can be made with it.
NO_SANDBOX = Sandbox(processes=0, volume="", source="", path="")
NOT_STARTED = Start(outcome=Outcome(records=(), ended=judge.Ended(1, ""), output=""), why=NO_START)
NO_GUARD = Guard(compiled=(), unused=())


@dataclass(kw_only=True)
class Verification:
    """A verification of the image `ref` in progress, with the results of earlier checks.

    `baseline`: what to compare with, or why there is none; `sandbox`: confines all containers but the trials of the
    check guard; `checks`: those that are done. `unstartable` is set by guard, `program` (the digest of Python's) by
    interpreter, `start` and `process` by import, `guard` by isa, `throughput` by throughput; `over` when the last check
    has ended, or one has raised.
    """

    engine: Engine
    ref: str
    planned: Planned
    baseline: Baseline | str
    sandbox: Sandbox = NO_SANDBOX
    checks: list[Check] = field(default_factory=list)
    unstartable: bool = False
    program: str = ""
    process: Process | None = None
    start: Start = NOT_STARTED
    guard: Guard = NO_GUARD
    throughput: Throughput | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def require_wanted(self, _: str) -> None:
        """Raise KeyboardInterrupt if the verification ended before this check, by an error or by its user."""
        if self.over.is_set():
            raise KeyboardInterrupt

    def ask(
        self,
        check: ProbeCheck,
        *,
        gpus: bool = False,
        look: Callable[[Process | None], None] | None = None,
        options: Sequence[str] = (),
    ) -> Answered:
        """Run the probe of `check` in the image with a challenge; it sends its records, then its answers.

        `look` gets the process when all is sent; `options`: of Python.
        """
        challenge = challenges.draw(check.probe)
        wanted = (*check.kinds, *(OperationAnswer for _ in challenges.OPERATIONS[check.probe]))
        untrusted = Untrusted(sandbox=self.sandbox, challenge=challenge, look=look, options=options)
        outcome = probe.ask(self.engine, self.ref, check.probe, wanted, check.env, gpus=gpus, untrusted=untrusted)
        sent, answers = outcome.records[: len(check.kinds)], outcome.records[len(check.kinds) :]
        wrong = challenges.error_in(check.probe, challenge, answers)
        absent = tuple(answer.name for answer in answers if challenges.is_absent(check.probe, answer))
        return Answered(outcome=replace(outcome, records=sent), challenge=challenge, wrong=wrong, absent=absent)

    def judge(self, check: ProbeCheck, result: Answered) -> Judgement:
        """Judge a probe's results: a failure if they cannot be trusted, or would pass without the right answers."""
        outcome, start = result.outcome, self.start
        if outcome.broken:
            return Judgement(judge.FAIL, outcome.broken)
        results = judge.Results(outcome.records, outcome.ended, start.environment, start.outcome.output)
        return fail_if(result.wrong, check.judge(results, self.planned.smoke()))


def fail_if(wrong: str, judged: Judgement) -> Judgement:
    """Return the judgement, or a failure in place of a pass or a warning if something is `wrong`."""
    if wrong and judged.status in (judge.PASS, judge.WARN):
        return Judgement(judge.FAIL, wrong, judged.measures)
    return judged


def needs_start(verification: Verification) -> str:
    """Skip if the image does not start."""
    return NO_START if verification.unstartable else ""


def needs_tensorflow(verification: Verification) -> str:
    """Skip if TensorFlow does not import."""
    return verification.start.why


@dataclass(frozen=True, kw_only=True)
class VerificationCheck:
    """A row of `checks.CHECKS`. `skip`: why it cannot or need not run; where that is empty, `run` probes and judges.

    For the reader of a report, `proves`: what a pass means, `how` it is tested, `fix`: what to do about a failure.
    `first`: it runs before any container is made. `beside`: it starts at once, runs beside the others, and uses none of
    their results.
    """

    name: str
    proves: str
    how: str
    fix: str
    run: Callable[[Verification], Judgement]
    skip: Callable[[Verification], str] = lambda _: ""
    first: bool = False
    beside: bool = False
