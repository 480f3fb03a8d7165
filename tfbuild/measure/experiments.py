"""The experiments as rows: a question of the guide, what is compared to answer it, and what the answer would change."""

from collections.abc import Sequence
from functools import cache

from msgspec import field

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts

Value = bool | int | float | str | list[int]
METRICS = ("cpu", "wall")
# What a row may need: a GPU, which its workers alone get; --against's image; "tuning": the image sets what an arm takes
# away.
NEEDS = ("", "gpu", "against", "tuning")


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


class Experiment(Facts, frozen=True):
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
    for row in rows:
        check(row)
    return rows


def check(row: Experiment) -> None:
    """ValueError where a row contradicts itself."""
    if not row.case:
        raise ValueError(f"experiment {row.name} has no case")
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
