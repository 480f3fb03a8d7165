"""The results of a verification, as records that report.py writes, shows and reads back (schema tfbuild.report/1)."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from tfbuild.in_container.smoke.judge import Measurement
from tfbuild.measure.records import Host, Interval, Software

SCHEMA = "tfbuild.report/1"
Status = Annotated[str, msgspec.Meta(pattern="^(pass|warn|fail|skip)$")]
Verdict = Annotated[str, msgspec.Meta(pattern="^(pass|warn|fail)$")]


def ratio_text(interval: Interval) -> str:
    """Return a ratio and its interval, such as "1.234 [1.200, 1.270]"."""
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of wall time and of CPU time for a sample's `inner` calls."""

    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Triple:
    """One workload in one round. `foreign`: share of the machine's time that other processes used meanwhile."""

    image: Timing
    baseline: Timing
    again: Timing
    foreign: float


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One workload: `inner` calls per sample, all rounds, and the result of the rounds that were used."""

    name: str
    inner: int
    rounds: tuple[Triple, ...]
    cpu: Interval
    wall: Interval
    band: Interval
    effect: str


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Ratios of the baseline's time to the image's, as geometric means of each round; above 1 the image is faster.

    `metric`: what is judged ("cpu" time); `band`: the image against itself in the same rounds; `clean`: how many of the
    `rounds` were undisturbed; `foreign`: mean share of the machine's time that other processes used; `retuned`: what
    the baseline's environment changed.
    """

    metric: str
    baseline: str
    retuned: dict[str, str]
    cpu: Interval
    wall: Interval
    band: Interval
    effect: str
    rounds: int
    clean: int
    foreign: float
    benchmarks: tuple[Benchmark, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """`status`: pass, warn, fail or skip; `detail`: what was observed.

    `proves`, `how`, `fix`: what a pass means, how it was tested, and what to do about a failure.
    """

    name: str
    status: Status
    detail: str
    seconds: float
    measures: tuple[Measurement, ...]
    proves: str
    how: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """`size` in bytes; `digests`: those in registries."""

    ref: str
    id: str
    digests: tuple[str, ...]
    size: int
    architecture: str
    labels: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """The plan in the labels."""

    release: str
    python: str
    target: str
    platform: str
    instruction_set: str
    features: tuple[str, ...]
    copts: tuple[str, ...]
    compiler: str
    bazel: str
    threading: str
    allocator: str
    onednn: str
    wheel: str
    requirement: str


@dataclass(frozen=True, kw_only=True)
class ImageSoftware(Software):
    """The software in the image. `compiled_for`: the features of TensorFlow's CPU guard, in its names."""

    compiled_for: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """One verification. `source_would_add`: the CPU's features that the build leaves unused, in TensorFlow's names."""

    schema: str
    kind: str
    id: str
    created: str
    tool: str
    seconds: float
    verdict: Verdict
    image: ImageFacts
    plan: PlanFacts
    host: Host | None
    software: ImageSoftware | None
    checks: tuple[Check, ...]
    throughput: Throughput | None
    source_would_add: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether checks passed and none failed. A warning (a known defect of the release) passes.

        The checks count as much as the verdict: a stored report may hold anything.
        """
        statuses = {check.status for check in self.checks}
        return self.verdict in ("pass", "warn") and not statuses.isdisjoint(("pass", "warn")) and "fail" not in statuses
