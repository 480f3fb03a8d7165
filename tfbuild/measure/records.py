"""Plain records of what was measured, and reports of them as JSON documents (schema tfbuild.bench/1 and others)."""

from dataclasses import dataclass

import msgspec

SCHEMA = "tfbuild.bench/1"

# The status of an arm, a case or an experiment. "failed": the method's checks refused it, or its process died.
MEASURED, TRUNCATED, SKIPPED, FAILED, INTERRUPTED = "measured", "truncated", "skipped", "failed", "interrupted"
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no difference shown"
Value = bool | int | float | str | list[int]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The median of ratios and an interval that holds the true one with a probability of `coverage`."""

    median: float
    low: float
    high: float
    coverage: float


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the containers ran. `quota`: CPUs' worth of time that the cgroup grants (None: all); `memory` in MiB."""

    cpu: str
    flags: tuple[str, ...]
    machine: str
    kernel: str
    cpus: int
    quota: float | None
    memory: int
    engine: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Raw: seconds by the clock and of CPU time for `inner` calls; page `faults` meanwhile, `rss` in MiB after it.

    `throttled`: periods in which the cgroup's quota stopped the container.
    """

    inner: int
    wall: float
    cpu: float
    faults: int
    rss: float
    throttled: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """A sample of each arm, by name, and of the baseline again; `foreign`: share of the machine that others used."""

    samples: dict[str, Sample]
    foreign: float


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One side. `cpu`, `wall`: the baseline's time over its own, per item, above 1: it is faster (None: not measured).

    `seconds`, `cpu_seconds`: medians per item, for reading only, since no absolute time is judged; `build`, `first`:
    seconds until it could be called, and of the first call; `nodes` of its graph; `faults`: page faults a call; `rss`:
    MiB; `error`: against a reference; `same`: it computes what the baseline does (None: no one claims so);
    `code`: the line that takes its gain into a program.
    """

    name: str
    workload: str
    params: dict[str, Value]
    env: dict[str, str]
    image: str
    status: str
    reason: str = ""
    items: int = 1
    build: float = 0.0
    first: float = 0.0
    nodes: int = 0
    seconds: float | None = None
    cpu_seconds: float | None = None
    faults: float | None = None
    rss: float | None = None
    error: float | None = None
    same: bool | None = None
    cpu: Interval | None = None
    wall: Interval | None = None
    effect: str = ""
    note: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """All arms on the same work. `band`: the baseline against itself in the same rounds, in `metric`.

    `clean` of the rounds were undisturbed; `noisy`: too few of them, so that all were used; `throttled`: periods.
    """

    name: str
    metric: str
    status: str
    reason: str
    baseline: str
    arms: tuple[ArmResult, ...]
    rounds: tuple[Round, ...] = ()
    band: Interval | None = None
    clean: int = 0
    noisy: bool = False
    foreign: float = 0.0
    throttled: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence that states what the numbers show; `values`: the numbers in it, by name."""

    text: str
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """An experiment's cases and findings, with the words of its row; `seconds`: how long it took."""

    name: str
    question: str
    compares: str
    changes: str
    source: str
    status: str
    reason: str
    seconds: float
    cases: tuple[CaseResult, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Other:
    """The image of `--against`, whose name may mean another one later. `tensorflow`: version; `env`: as Subject's."""

    id: str
    tensorflow: str
    env: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The image. `against`: the one that it is compared with in `isa`, else empty; `other`: what that one is.

    `env`: what it sets of the variables that the experiments set (None: a report of before they were recorded, as for
    `other`).
    """

    ref: str
    id: str
    labels: dict[str, str]
    against: str
    env: dict[str, str] | None = None
    other: Other | None = None


@dataclass(frozen=True, kw_only=True)
class Software:
    """What the image has; `git`: TensorFlow's commit, `malloc`: the library that provides malloc."""

    tensorflow: str
    git: str
    compiler: str
    python: str
    numpy: str
    malloc: str


def surroundings(host: Host, software: Software) -> dict[str, str]:
    """Return what a page says of the machine and of the software."""
    return {
        "CPU": f"{host.cpu}, {host.cpus} CPUs, {host.machine}",
        "cgroup quota": f"{host.quota:g} CPUs" if host.quota else "none",
        "memory": f"{host.memory} MiB",
        "kernel": host.kernel,
        "engine": host.engine,
        "TensorFlow": f"{software.tensorflow} ({software.git}), compiled by {software.compiler}",
        "Python": software.python,
        "NumPy": software.numpy,
        "malloc of": software.malloc,
    }


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """One run. `mode`: quick, full or budget; `budget`: its seconds; `interrupted`: the rest was not measured."""

    schema: str
    created: str
    tool: str
    mode: str
    budget: float
    seconds: float
    interrupted: bool
    image: Subject
    host: Host
    software: Software
    experiments: tuple[ExperimentResult, ...]


# --- JSON documents --------------------------------------------------------------------------------------------------


def to_json(content: object) -> str:
    """Return a report, or another record or list of them, as one JSON document that ends in a newline."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
