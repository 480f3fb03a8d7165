"""Verify that an image is what its labels claim: image -> Report. This module has its state, and a check.

checks/       the checks: what each proves, when it applies, its probe and its judge
libraries.py  TensorFlow's libraries, copied out of an image
session.py    runs the checks, and makes the report of their results
report.py     the report, its files, and how people see it: as a page, as Markdown and in the terminal
"""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tfbuild.binary.guard import Guard
from tfbuild.context.labels import PREFIX, read_labels, smoke_plan
from tfbuild.cpu.isa import InstructionSet
from tfbuild.engine import Engine, Sandbox
from tfbuild.errors import UnknownImage
from tfbuild.facts import targets
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement, ProbeCheck, Results
from tfbuild.in_container.smoke.probes import Environment, TensorFlow
from tfbuild.measure import probe
from tfbuild.plan import PLATFORMS, Build, is_version
from tfbuild.plan.build import Wheel
from tfbuild.verify.report import Check, Throughput

# The labels without which an image is none of ours, and the forms of some. The identifier names the report's files.
NEEDED_LABELS = ("id", "release", "python", "target", "platform", "features")
IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the throughput is compared with: an image, and changes of its environment (empty values: unset).

    `ref`: its name in reports; `id`: what to run, because its name may move to another image meanwhile.
    """

    ref: str
    id: str
    env: Mapping[str, str]


NOT_STARTED = Results((), judge.Ended(1, ""))
NO_GUARD = Guard(compiled=(), unused=())


@dataclass(kw_only=True)
class Verification:
    """A verification of the image `ref` in progress, with the results of earlier checks.

    `planned`: the build, by the image's labels; `version`: of the tfbuild that made it, by the labels too.
    `baseline`: what to compare with, or why there is none; `sandbox`: confines all containers; `checks`: those that are
    done. `why` (nothing that needs TensorFlow can run, else empty) is set by the checks guard and import, `start` (the
    first probe's result) by import, `guard` by isa, `throughput` by throughput; `over` when the last check has ended,
    or one has raised.
    """

    engine: Engine
    ref: str
    planned: Build
    version: str
    baseline: Baseline | str
    sandbox: Sandbox
    checks: list[Check] = field(default_factory=list)
    start: Results = NOT_STARTED
    why: str = ""
    guard: Guard = NO_GUARD
    throughput: Throughput | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> Environment | None:
        return next(iter(self.start.records), None)

    @property
    def tensorflow(self) -> TensorFlow | None:
        return next(iter(self.start.records[1:]), None)

    def require_wanted(self, _: str) -> None:
        """Raise KeyboardInterrupt if the verification ended before this check, by an error or by its user."""
        if self.over.is_set():
            raise KeyboardInterrupt

    def ask(self, check: ProbeCheck, *, gpus: bool = False) -> Results:
        """Run the probe of `check` in the image."""
        return probe.ask(self.engine, self.ref, check.probe, check.kinds, check.env, gpus=gpus, sandbox=self.sandbox)

    def judge(self, check: ProbeCheck, results: Results) -> Judgement:
        """Judge a probe's results."""
        seen = replace(results, environment=self.environment, printed=self.start.ended.stderr)
        return check.judge(seen, smoke_plan(self.planned))


def labelled_build(ref: str, labels: Mapping[str, str], architecture: str) -> Build:
    """Return the build of an image as far as its labels say it.

    Raises UnknownImage if tfbuild made no such image for that architecture ("amd64").
    """
    image, platform = read_labels(labels), f"linux/{architecture}"
    own = image.get
    if missing := [PREFIX + name for name in NEEDED_LABELS if name not in image.own]:
        lacks = f"label {missing[0]}" if image.own else "io.tfbuild labels"
        raise UnknownImage(f"{ref} was not made by tfbuild: it has no {lacks}", hint="invoke build")
    readable = {
        "id": IDENTIFIER.fullmatch(image.id),
        "python": PYTHON.fullmatch(own("python")),
        "release": is_version(own("release")),
        "target": targets.find_target(own("target")),
        "platform": own("platform") == platform and platform in PLATFORMS,
        "instruction-set": not own("instruction-set") or IDENTIFIER.fullmatch(own("instruction-set")),
    }
    if bad := [name for name, good in readable.items() if not good]:
        raise UnknownImage(f"{ref} has an unreadable label {PREFIX}{bad[0]}: {own(bad[0])[:40]!r}")
    name, held = own("instruction-set"), tuple(sorted(own("features").split()))
    usual = f"{own('release')}-{own('target')}-py{own('python')}-{name}"
    variant = image.id.removeprefix(usual).removeprefix("-")
    return Build(
        release=own("release"),
        python=own("python"),
        target=own("target"),
        platform=platform,
        instruction_set=InstructionSet(name=name, arch=PLATFORMS[platform], level="", features=held, option=""),
        wheel=Wheel(kind=own("wheel"), requirement=own("requirement"), constraints=()),
        compiler=own("compiler"),
        threading=own("threading"),
        compute_capabilities=tuple(own("compute-capabilities").split()),
        variant=(variant,) if variant else (),
    )


@dataclass(frozen=True, kw_only=True)
class VerificationCheck:
    """A row of `checks.CHECKS`. `skip`: why it cannot or need not run; where that is empty, `run` looks and judges.

    What `run` raises because a file or library of the image cannot be read (OSError, BadInput) fails the check.
    For the reader of a report, `proves`: what a pass means, `how` it is tested, `fix`: what to do about a failure.
    `beside`: it starts at once, runs beside the others, and uses none of their results.
    """

    name: str
    proves: str
    how: str
    fix: str
    run: Callable[[Verification], Judgement]
    skip: Callable[[Verification], str] = lambda _: ""
    beside: bool = False


def probe_check(check: ProbeCheck, run: Callable[[Verification], Judgement] | None = None) -> VerificationCheck:
    """Return the row of a check that judges a probe. `run`: for one that does more than that."""

    def ask_and_judge(verification: Verification) -> Judgement:
        return verification.judge(check, verification.ask(check))

    return VerificationCheck(
        name=check.name,
        proves=check.proves,
        how=check.how,
        fix=check.fix,
        run=run or ask_and_judge,
        skip=lambda verification: verification.why or check.skip(smoke_plan(verification.planned)),
    )
