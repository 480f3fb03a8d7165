"""`--model NAME`: whole models in place of the few and small ones that the experiment has for a short run."""

from collections.abc import Sequence

import msgspec

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts
from tfbuild.measure import experiments
from tfbuild.measure.experiments import Arm, Case, Experiment, Value

# Of one model, both of its cases: a ResNet-50 needs its graph four times, and 1 to 4 s a step on two cores.
WEIGHT = 120.0
MOST_ITEMS = 4096
SWITCH = "TF_ENABLE_ONEDNN_OPTS"


class Model(Facts, frozen=True):
    """A model by the name that people use; see facts/models.toml."""

    name: str
    batch: int
    application: str = ""
    size: int = 0
    xla: bool = False


class ModelTable(Facts, frozen=True):
    model: tuple[Model, ...]


def known() -> dict[str, Model]:
    return {model.name: model for model in facts.load("models", ModelTable).model}


def row(names: Sequence[str], batch: int = 0) -> Experiment:
    """The experiment of whole models on these, `batch` items a step (0: each model's own). UsageError."""
    models = known()
    if unknown := [name for name in names if name not in models]:
        raise UsageError(f"no model is called {unknown[0]!r}", hint=f"one of: {', '.join(sorted(models))}")
    usual = experiments.in_role("model")
    cases = [case for name in dict.fromkeys(names) for case in _cases(models[name], batch, usual)]
    made = msgspec.structs.replace(usual, case=tuple(cases), weight=WEIGHT / 2)
    experiments.check(made)
    return made


def _cases(model: Model, batch: int, usual: Experiment) -> list[Case]:
    """What oneDNN makes of it, and XLA where it compiles in time; of one for pictures, what reading them costs."""
    batch = batch or model.batch
    params: dict[str, Value] = {"name": model.name, "batch": batch}
    name = f"{model.name}, batch {batch}"
    if model.application:
        params |= {"application": model.application, "size": model.size, "classes": 1000}
        name += f", {model.size}x{model.size}"
    cases = [Case(name=name, params=params)]
    if model.xla:
        cases.append(Case(name=f"{name}: XLA", params=params, env={SWITCH: "1"}, arm=_xla(usual)))
    if model.application:
        data = (Arm(name="synthetic"), Arm(name="JPEGs through tf.data", params={"jpegs": True}))
        cases.append(Case(name=f"{name}, its data", params=params, env={SWITCH: "1"}, metric="wall", arm=data))
    return cases


def _xla(usual: Experiment) -> tuple[Arm, ...]:
    """The sides of the short row's cases that ask for XLA."""
    return next(case.arm for case in usual.case if any(arm.params.get("xla") for arm in case.arm))


def batch_size(text: str) -> int:
    """Items a step out of --batch-size; 0 where it is not given. UsageError."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_ITEMS:
        raise UsageError(f"--batch-size {text!r} cannot be read", hint=f"a number from 1 to {MOST_ITEMS}")
    return int(text)
