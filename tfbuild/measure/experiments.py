"""The experiments as rows: a question from the performance guide, how it is answered, and what the answer changes.

`--model` makes a row of whole models by name.
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

from msgspec import field, structs

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts
from tfbuild.measure.records import Value
from tfbuild.util.quantities import COUNT

Metric = Literal["cpu", "wall"]
# What a case may need: a GPU, which only its workers get; the image of --against; "tuning": variables set by the image
# that an arm unsets.
Need = Literal["", "gpu", "against", "tuning"]
# The uses that need a certain row: --model, and verification's throughput check.
Role = Literal["", "model", "verification"]
# Where an arm's memory is: on one of several NUMA nodes, with its CPUs, or on huge pages that are reserved.
Place = Literal["", "node", "huge"]


class Arm(Facts, frozen=True):
    """One side of a comparison; the first of an experiment is its baseline.

    `env`: variables to set ("": to unset); arms with different `env`, `process` or `image` run in separate processes.
    `malloc`: part of the file name of the allocator that it must have; `place`: where its memory is. `code`: the line
    that brings the arm's gain to a program. In texts, {cpus} is the number of CPUs here, {half} half of it and
    {fourfold} four times it, {model} the user's own model, {least} and {batch} the batches that a sweep found; an arm
    is left out if such a number makes its environment equal to another arm's, or if it needs several NUMA nodes.
    """

    name: str
    workload: str = ""
    params: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    process: str = ""
    image: str = ""
    malloc: str = ""
    place: Place = ""
    code: str = ""


class Case(Facts, frozen=True):
    """The arms on the same work. `params`: given to each arm; `quick`: part of --quick; `arm` and `metric`: replace the
    experiment's."""

    name: str
    workload: str = ""
    params: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    needs: Need = ""
    metric: Metric | Literal[""] = ""
    arm: tuple[Arm, ...] = ()


class Experiment(Facts, frozen=True):
    """`question`: from the guide, in its words; `compares`: how it is answered; `changes`: what the answer changes.

    `metric`: "cpu" if neighbours would disturb the clock, "wall" if waiting is the point; `same`: the arms claim to
    compute the same; `fresh`: each case gets new processes, because one case's memory would show in the next;
    `together`: the cases take turns in each round and have one mean; `weight`: seconds that one arm took for all rounds
    of --full on two quiet cores, including its start, by which the budget is divided. For `finding`, `evidence` and
    `role` see experiments.toml; the first two are keys of tables in tfbuild/bench.
    """

    name: str
    question: str
    compares: str
    changes: str
    source: str
    finding: str = ""
    evidence: str = ""
    role: Role = ""
    metric: Metric = "cpu"
    same: bool = False
    fresh: bool = False
    together: bool = False
    weight: float = 8.0
    workload: str = ""
    arm: tuple[Arm, ...] = ()
    case: tuple[Case, ...] = ()

    def arms(self, case: Case) -> tuple[Arm, ...]:
        """Return the case's own arms, or else the experiment's."""
        return case.arm or self.arm

    def work(self, case: Case, arm: Arm | None = None) -> str:
        """Return the workload of the arm, the case or the experiment, whichever names one first."""
        return (arm.workload if arm else "") or case.workload or self.workload

    def seconds(self, case: Case) -> float:
        """Return the seconds that all rounds of a case take; each round times the baseline twice."""
        return self.weight * (len(self.arms(case)) + 1)

    def cases(self, quick: bool) -> tuple[Case, ...]:
        """Return the cases to measure; with `quick` only those of --quick, if it has any."""
        return tuple(case for case in self.case if case.quick and quick) or self.case


SAVED = "saved_model"


@cache
def known_experiments(*, own: bool = False) -> tuple[Experiment, ...]:
    """Return all experiments in the order in which they run; with `own`, those on a SavedModel of the user's own."""
    rows = facts.rows("experiments", Experiment)
    parts = ((row, tuple(case for case in row.case if (case.workload == SAVED) is own)) for row in rows)
    # A sweep of batches gets more time, because the rows after it need what it finds.
    weights = {row.name: row.weight * (1 if row.arm or not own else 4) for row in rows}
    return tuple(structs.replace(row, case=cases, weight=weights[row.name]) for row, cases in parts if cases)


def in_role(role: Role) -> Experiment:
    """Return the row with this role."""
    return next(row for row in known_experiments() if row.role == role)


def select_experiments(only: Sequence[str], *, quick: bool, own: bool = False) -> tuple[Experiment, ...]:
    """Return the experiments that `only` names, or all; with `quick`, of all only those with a quick case.

    Raises UsageError if a name is unknown.
    """
    rows = {row.name: row for row in known_experiments(own=own)}
    if unknown := [name for name in only if name not in rows]:
        raise UsageError(f"unknown experiment {unknown[0]!r}", hint=f"one of: {', '.join(rows)}")
    selected = [rows[name] for name in rows if not only or name in only]
    return tuple(row for row in selected if only or any(case.quick or not quick for case in row.case))


# --- whole models by name (`--model`) --------------------------------------------------------------------------------

# For one model with two cases: a ResNet-50 builds its graph four times and takes 1 to 4 s for a step on two cores.
WEIGHT = 120.0
MOST_ITEMS = 4096
ONEDNN_SWITCH = "TF_ENABLE_ONEDNN_OPTS"


class Model(Facts, frozen=True):
    """A model by the name that people use; see facts/models.toml."""

    name: str
    batch: int
    application: str = ""
    size: int = 0
    xla: bool = False


def known_models() -> dict[str, Model]:
    """Return all models by name."""
    return {model.name: model for model in facts.rows("models", Model)}


def model_row(names: Sequence[str], batch: int = 0) -> Experiment:
    """Return the experiment with these models, with `batch` items in a step (0: each model's default).

    Raises UsageError if a model is unknown.
    """
    models = known_models()
    if unknown := [name for name in names if name not in models]:
        raise UsageError(f"unknown model {unknown[0]!r}", hint=f"a folder, or one of: {', '.join(sorted(models))}")
    short = in_role("model")
    xla = next(case.arm for case in short.case if any(arm.params.get("xla") for arm in case.arm))
    cases = [case for name in dict.fromkeys(names) for case in _cases(models[name], batch, xla)]
    return structs.replace(short, case=tuple(cases), weight=WEIGHT / 2)


def _cases(model: Model, batch: int, xla: tuple[Arm, ...]) -> list[Case]:
    """Return the model's cases: oneDNN; XLA if it compiles fast enough; reading pictures if the model takes them."""
    batch = batch or model.batch
    params: dict[str, Value] = {"name": model.name, "batch": batch}
    name = f"{model.name}, batch {batch}"
    if model.application:
        params |= {"application": model.application, "size": model.size, "classes": 1000}
        name += f", {model.size}x{model.size}"
    cases = [Case(name=name, params=params)]
    if model.xla:
        cases.append(Case(name=f"{name}: XLA", params=params, env={ONEDNN_SWITCH: "1"}, arm=xla))
    if model.application:
        data = (Arm(name="synthetic"), Arm(name="JPEGs through tf.data", params={"jpegs": True}))
        cases.append(Case(name=f"{name}, its data", params=params, env={ONEDNN_SWITCH: "1"}, metric="wall", arm=data))
    return cases


def parse_batch_size(text: str) -> int:
    """Return the items in a step from --batch-size, or 0 if it is not given; raise UsageError if it is invalid."""
    if not text:
        return 0
    if not COUNT.fullmatch(text) or int(text) > MOST_ITEMS:
        raise UsageError(f"--batch-size {text!r} is invalid", hint=f"give a number from 1 to {MOST_ITEMS}")
    return int(text)
