"""The state of a verification, and the parts of a check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfbuild.binary.guard import Guard
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Environment, TensorFlow
from tfbuild.measure import probe
from tfbuild.measure.probe import Outcome
from tfbuild.verify.records import Check, Throughput

NO_START = "the image does not start on this host (see guard)"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the throughput is compared with: an image, and changes of its environment (empty values: unset).

    `ref`: its name in reports; `id`: what to run, where its name may move to another image meanwhile.
    """

    ref: str
    env: Mapping[str, str]
    id: str = ""

    @property
    def image(self) -> str:
        return self.id or self.ref


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


NOT_STARTED = Start(outcome=Outcome(records=(), ended=judge.Ended(1, ""), output=""), why=NO_START)
NO_GUARD = Guard(compiled=(), unused=())


@dataclass(kw_only=True)
class Verification:
    """A verification of the image `ref` in progress, with the results of earlier checks.

    `baseline`: what to compare with, or why there is none; `checks`: those that are done. `start` is set by the check
    import, `guard` by isa, `throughput` by throughput.
    """

    engine: Engine
    ref: str
    planned: Planned
    baseline: Baseline | str
    checks: list[Check] = field(default_factory=list)
    start: Start = NOT_STARTED
    guard: Guard = NO_GUARD
    throughput: Throughput | None = None

    def ask(self, name: str, *kinds: type, **env: str) -> Outcome:
        """Run the probe `name` in the image; it sends one record of each of `kinds`, in order."""
        return probe.ask(self.engine, self.ref, name, kinds, env)

    def failed(self, name: str) -> bool:
        """Return whether the check `name` ran and failed."""
        return any(check.name == name and check.status == judge.FAIL for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a check proves, how it tests that, and what to do where it fails, for the reader of a report."""

    proves: str
    how: str
    fix: str


def always(_: Verification) -> str:
    """Never skip: the check applies to every image, whatever the earlier results."""
    return ""


def needs_tensorflow(verification: Verification) -> str:
    """Skip where TensorFlow does not import."""
    return verification.start.why


@dataclass(frozen=True, kw_only=True)
class VerificationCheck:
    """A row of `checks.CHECKS`. `skip`: why it cannot or need not run, else empty; then `run` probes and judges."""

    name: str
    claim: Claim
    run: Callable[[Verification], judge.Judgement]
    skip: Callable[[Verification], str] = always


def unpromised(unprobed: judge.Judgement) -> str:
    """Return why the plan promises nothing here, from the judge's result without a probe; else empty."""
    return unprobed.detail if unprobed.status == judge.SKIP else ""
