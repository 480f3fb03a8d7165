"""`--model NAME`: whole models by name, instead of the few small ones that the experiment has by default."""

from collections.abc import Sequence

import msgspec

from tfbuild import facts
from tfbuild.errors import UsageError
from tfbuild.facts import Facts
from tfbuild.measure import experiments
from tfbuild.measure.experiments import Arm, Case, Experiment, Value
from tfbuild.util.quantities import COUNT

# For one model with two cases: a ResNet-50 builds its graph four times and takes 1 to 4 s for a step on two cores.
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
    """Return all models by name."""
    return {model.name: model for model in facts.load("models", ModelTable).model}


def row(names: Sequence[str], batch: int = 0) -> Experiment:
    """Return the experiment with these models, with `batch` items in a step (0: each model's default).

    Raises UsageError if a model is unknown.
    """
    models = known()
    if unknown := [name for name in names if name not in models]:
        raise UsageError(f"unknown model {unknown[0]!r}", hint=f"one of: {', '.join(sorted(models))}")
    short = experiments.in_role("model")
    cases = [case for name in dict.fromkeys(names) for case in _cases(models[name], batch, short)]
    experiment = msgspec.structs.replace(short, case=tuple(cases), weight=WEIGHT / 2)
    experiments.check(experiment)
    return experiment


def _cases(model: Model, batch: int, short: Experiment) -> list[Case]:
    """Return the model's cases: oneDNN; XLA if it compiles fast enough; reading pictures if the model takes them."""
    batch = batch or model.batch
    params: dict[str, Value] = {"name": model.name, "batch": batch}
    name = f"{model.name}, batch {batch}"
    if model.application:
        params |= {"application": model.application, "size": model.size, "classes": 1000}
        name += f", {model.size}x{model.size}"
    cases = [Case(name=name, params=params)]
    if model.xla:
        cases.append(Case(name=f"{name}: XLA", params=params, env={SWITCH: "1"}, arm=_xla(short)))
    if model.application:
        data = (Arm(name="synthetic"), Arm(name="JPEGs through tf.data", params={"jpegs": True}))
        cases.append(Case(name=f"{name}, its data", params=params, env={SWITCH: "1"}, metric="wall", arm=data))
    return cases


def _xla(short: Experiment) -> tuple[Arm, ...]:
    """Return the arms of the short run's case about XLA."""
    return next(case.arm for case in short.case if any(arm.params.get("xla") for arm in case.arm))


def batch_size(text: str) -> int:
    """Return the items in a step from --batch-size, or 0 if it is not given; raise UsageError if it is invalid."""
    if not text:
        return 0
    if not COUNT.fullmatch(text) or int(text) > MOST_ITEMS:
        raise UsageError(f"--batch-size {text!r} is invalid", hint=f"give a number from 1 to {MOST_ITEMS}")
    return int(text)
