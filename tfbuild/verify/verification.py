"""An image while it is verified, and what a check of it is made of."""

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
    """What the throughput is compared with: an image, and what to change in its environment (empty: as if not set).

    `ref`: what reports call it; `id`: by what it is run, where its name may go to another one meanwhile.
    """

    ref: str
    env: Mapping[str, str]
    id: str = ""

    @property
    def image(self) -> str:
        return self.id or self.ref


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


NOT_STARTED = Start(outcome=Outcome(found=(), ended=judge.Ended(1, ""), output=""), why=NO_START)
NO_GUARD = Guard(compiled=(), unused=())


@dataclass(kw_only=True)
class Verification:
    """What checks ask of the image `ref`, and what those before them found.

    `baseline`: what to compare with, or why there is nothing; `checks`: those that are done. `start` is set by the
    check import, `guard` by isa, `throughput` by throughput.
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
        """Say whether the check `name` was made and failed."""
        return any(check.name == name and check.status == judge.FAIL for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a check proves, how it is found, and what to do where it fails: for the report's reader."""

    proves: str
    how: str
    fix: str


def always(_: Verification) -> str:
    """Apply to every image, whatever was found before."""
    return ""


def needs_tensorflow(verification: Verification) -> str:
    """Skip where TensorFlow does not import."""
    return verification.start.why


@dataclass(frozen=True, kw_only=True)
class VerificationCheck:
    """A row of `checks.CHECKS`. `skip`: why it cannot or need not run, else empty; then `run` probes and judges."""

    name: str
    claim: Claim
    run: Callable[[Verification], judge.Check]
    skip: Callable[[Verification], str] = always


def unpromised(unasked: judge.Check) -> str:
    """Why the plan promises nothing of it, by what the judge says of no answer at all; else empty."""
    return unasked.detail if unasked.status == judge.SKIP else ""
