"""The experiments as rows: a question of the guide, what is compared to answer it, and what the answer would change."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Literal

from msgspec import field

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts

Value = bool | int | float | str | list[int]
METRICS = ("cpu", "wall")
# What a row may need: a GPU, which its workers alone get; --against's image; "tuning": the image sets what an arm takes
# away.
NEEDS = ("", "gpu", "against", "tuning")
# The values of a row's purpose; reading the facts refuses any other. Each has its function in a table of tfbuild/bench,
# to which a new value is added too: a test compares the two.
FindingKind = Literal[  # findings.py: DERIVED
    "",
    "against_default",
    "bandwidth",
    "batch_size",
    "disk",
    "first_call",
    "fused",
    "input_bound",
    "items_per_second",
    "map_and_batch",
    "page_faults",
]
AdviceKind = Literal["code", "setting", "image", "batch_size"]  # advise.py: LINES and ENVIRONMENT
ChartKind = Literal["ratios", "rates", "memory"]  # charts.py: DRAWN
EvidenceKind = Literal["", "primitives", "batch_memory", "pipeline_peaks", "gpu_use"]  # evidence.py: WATCHED
# What asks for one row by what it does: --model, --command, and verification's throughput check.
Role = Literal["", "model", "command", "verification"]
ROLES: tuple[Role, ...] = ("model", "command", "verification")


class Arm(Facts, frozen=True):
    """One side of a comparison; the first of an experiment is its baseline.

    `env`: what differs in its environment ("": as if not set); arms that differ in it, in `process` or in `image` get a
    process of their own. `malloc`: whose allocator it must be, in the file's name. `code`: the line that takes the
    arm's gain into a program. In their texts {cpus} is the number of processors here, {half} half of it, {fourfold}
    four times that; an arm is left out where such a number makes its environment another arm's.
    """

    name: str
    workload: str = ""
    params: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    process: str = ""
    image: str = ""
    malloc: str = ""
    code: str = ""


class Case(Facts, frozen=True):
    """All arms on the same work; `params` go to each of them. `quick`: part of --quick. `arm`: in place of the
    experiment's own; `metric` likewise."""

    name: str
    workload: str = ""
    params: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    needs: str = ""
    metric: str = ""
    arm: tuple[Arm, ...] = ()


class Purpose(Facts, frozen=True, kw_only=True):
    """What is made of an experiment's numbers; experiments.toml says what each field and value means.

    The defaults are those of a plain comparison, and of an experiment in a report that no row here knows.
    """

    finding: FindingKind = ""
    advises: tuple[AdviceKind, ...] = ("code",)
    setting_order: int = 0
    charts: tuple[ChartKind, ...] = ("ratios",)
    evidence: EvidenceKind = ""
    answer_only: bool = False
    role: Role = ""


class Experiment(Purpose, frozen=True):
    """`question`: the guide's, in its words; `compares`: how it is answered; `changes`: what the answer is good for.

    `metric`: "cpu" where neighbours would disturb the clock, "wall" where waiting is the point; `same`: the arms claim
    to compute the same; `fresh`: each case gets new processes, for the memory of one would show in the
    next; `together`: its cases take turns in each round, so that they have one mean; `weight`: seconds that one arm
    took in the rounds of --full on two quiet cores, its start included, by which the time is shared out.
    """

    name: str
    question: str
    compares: str
    changes: str
    source: str
    metric: str = "cpu"
    same: bool = False
    fresh: bool = False
    together: bool = False
    weight: float = 8.0
    workload: str = ""
    arm: tuple[Arm, ...] = ()
    case: tuple[Case, ...] = ()

    def arms(self, case: Case) -> tuple[Arm, ...]:
        return case.arm or self.arm

    def work(self, case: Case, arm: Arm | None = None) -> str:
        """The workload of an arm, or the one that a case's arms share: the nearest row that names one."""
        return (arm.workload if arm else "") or case.workload or self.workload

    def seconds(self, case: Case) -> float:
        """What a case takes for all of its rounds; the baseline is timed twice in each."""
        return self.weight * (len(self.arms(case)) + 1)

    def cases(self, quick: bool) -> tuple[Case, ...]:
        return tuple(case for case in self.case if case.quick or not quick)


class Table(Facts, frozen=True):
    experiment: tuple[Experiment, ...]


@cache
def known() -> tuple[Experiment, ...]:
    """All experiments, in the order in which they run."""
    rows = facts.load("experiments", Table).experiment
    check_all(rows)
    return rows


def purpose(name: str) -> Purpose:
    """Look up what is made of a report's experiment; the usual where it has no row, as in reports of other versions."""
    return next((row for row in known() if row.name == name), Purpose())


def in_role(role: Role) -> Experiment:
    """Return the one row that has this role."""
    return next(row for row in known() if row.role == role)


def check_all(rows: Sequence[Experiment]) -> None:
    """Raise ValueError where a row contradicts itself or another one."""
    for row in rows:
        check(row)
    if len({row.name for row in rows}) != len(rows):
        raise ValueError("experiments: two rows have the same name")
    roles = Counter(row.role for row in rows)
    if wrong := [role for role in ROLES if roles[role] != 1]:
        raise ValueError(f"experiments: exactly one row has the role {wrong[0]!r}")
    turns = [row.setting_order for row in rows if row.setting_order]
    if len(set(turns)) != len(turns):
        raise ValueError("experiments: two rows have the same setting_order")


def check(row: Experiment) -> None:
    """ValueError where a row contradicts itself."""
    if not row.case:
        raise ValueError(f"experiment {row.name} has no case")
    if ("setting" in row.advises) != (row.setting_order > 0):
        raise ValueError(f'experiment {row.name}: a setting_order from 1 on goes with advises = ["setting"]')
    metrics = {row.metric, *(case.metric or row.metric for case in row.case)}
    if not metrics <= set(METRICS) or any(case.needs not in NEEDS for case in row.case):
        raise ValueError(f"experiment {row.name}: a metric or a need that nobody knows")
    for case in row.case:
        names = [arm.name for arm in row.arms(case)]
        if len(set(names)) != len(names) or len(names) < 2:
            raise ValueError(f"experiment {row.name}, {case.name}: needs two arms or more, each with its own name")
        if any(not row.work(case, arm) for arm in row.arms(case)):
            raise ValueError(f"experiment {row.name}, {case.name}: an arm has no workload")


def select(only: Sequence[str], *, quick: bool) -> tuple[Experiment, ...]:
    """Those that `only` names, or all; for --quick those that have a quick case, unless named. UsageError."""
    rows = {row.name: row for row in known()}
    if unknown := [name for name in only if name not in rows]:
        raise UsageError(f"no experiment is called {unknown[0]!r}", hint=f"one of: {', '.join(rows)}")
    wanted = [rows[name] for name in rows if not only or name in only]
    return tuple(row for row in wanted if only or row.cases(quick))
