"""Experiments are rows, whose fields say what is made of their numbers: a new one needs no code."""

import ast
import re
from pathlib import Path

import pytest

from tests import checkout
from tests.measure.test_experiments import ROOT, workloads
from tfbuild import facts
from tfbuild.bench import command, evidence, findings
from tfbuild.bench.session import Settings
from tfbuild.measure import experiments
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.workers import Machine

ROW = """
[[experiment]]
name = "x"
question = "-"
compares = "-"
changes = "-"
source = "-"
finding = "page_faults"
case = [{ name = "c" }]
"""
# Strings in code that are an experiment's name as well, and mean something else there.
OTHERS = {
    ("advise.py", "pipeline"),  # a workload
    ("findings.py", "pipeline"),
    ("findings.py", "int8"),  # a width of numbers
    ("experiments.py", "models"),  # a file of facts
    ("experiments.py", "xla"),  # a parameter of a workload
    ("experiments.py", "tuning"),  # what a case needs
    ("workers.py", "tuning"),
    ("throughput.py", "onednn"),  # a verification check
}


# --- the rows ---------------------------------------------------------------------------------------------------------


def test_each_value_of_a_field_has_its_function() -> None:
    rows = experiments.known_experiments()
    assert {row.finding for row in rows} == {"", *findings.DERIVED}
    assert {row.evidence for row in rows} == {"", *evidence.WATCHED}


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('finding = "page_faults"', 'metric = "speed"', "Invalid enum value 'speed'"),
        ('finding = "page_faults"', "quick = true", "unknown field"),
        ('{ name = "c" }', '{ name = "c", needs = "tpu" }', "Invalid enum value 'tpu'"),
    ],
)
def test_a_slip_in_a_row_is_noticed(before: str, after: str, complaint: str) -> None:
    assert before in ROW
    with pytest.raises(ValueError, match=complaint):
        facts.parse(ROW.replace(before, after), dict[str, tuple[Experiment, ...]], "x.toml")


def test_no_code_names_an_experiment() -> None:
    names = {row.name for row in experiments.known_experiments()}
    package = checkout.ROOT / "tfbuild"
    code = [*(package / "bench").glob("*.py"), *(package / "measure").glob("*.py")]
    seen = {
        (path.name, node.value)
        for path in (*code, package / "verify" / "checks" / "throughput.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert seen == OTHERS


# --- models -----------------------------------------------------------------------------------------------------------


SETTINGS = Settings(mode="budget", budget=300)


def test_the_named_models_take_the_place_of_the_short_ones() -> None:
    (row,) = command.rows_of((), SETTINGS, ["resnet50", "lstm"], "")
    assert row.name == "models"
    assert [case.name for case in row.case] == [
        "resnet50, batch 4, 224x224",
        "resnet50, batch 4, 224x224, its data",
        "lstm, batch 16",
        "lstm, batch 16: XLA",
    ]
    (largest,) = command.rows_of((), SETTINGS, ["lstm"], "4096")
    assert largest.case[0].name == "lstm, batch 4096"
    synthetic, jpegs = row.case[1].arm
    assert (synthetic.params.get("jpegs"), jpegs.params["jpegs"]) == (None, True)
    assert [arm.name for arm in row.arms(row.case[2])] == ["oneDNN off", "oneDNN on"]
    assert [arm.name for arm in row.arms(row.case[3])] == ["without XLA", "XLA"]


def test_xla_is_measured_beside_the_same_onednn() -> None:
    machine = Machine(image="sha256:1", against="", cpus=2, gpus=0)
    (short,) = experiments.select_experiments(["models"], quick=False)
    for row in (short, experiments.model_row(["lstm", "transformer"])):
        xla_cases = [case for case in row.case if any(arm.params.get("xla") for arm in row.arms(case))]
        assert len(xla_cases) == 2
        for each in xla_cases:
            keys = [machine.key(each, arm) for arm in row.arms(each)]
            assert {key.env for key in keys} == {(("TF_ENABLE_ONEDNN_OPTS", "1"),)}
            assert len(set(keys)) == 2, "XLA has a process of its own"


def test_a_folder_is_a_saved_model_of_the_user_s_own(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "3"
    (folder / "assets").mkdir(parents=True)
    (tmp_path / "weights").mkdir()
    (folder / "variables").symlink_to("../../weights")
    (folder / "assets" / "words").write_bytes(b"words")
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "variables.index").write_bytes(b"weights")
    settings = command.with_saved_model(SETTINGS, [str(folder)], ["ids=1,128", "m=1,128"], "8")
    assert settings.more == {
        "/tfbuild-bench/model/assets/words": b"words",
        "/tfbuild-bench/model/saved_model.pb": b"graph",
        "/tfbuild-bench/model/variables/variables.index": b"weights",
    }
    assert settings.model == {"model": "mine", "shapes": "ids=1,128 m=1,128", "least": 1, "batch": 8, "given": 8}
    rows = command.rows_of((), settings, [str(folder)], "8")
    assert rows[0].name == "batchsize", "the others need its batches"
    assert {case.workload for row in rows for case in row.case} == {"saved_model"}
    assert command.with_saved_model(SETTINGS, ["lstm"], (), "8") == SETTINGS


def test_every_model_is_one_that_the_workload_can_make() -> None:
    """A model is an application of Keras, by its class, or built in the workloads' module."""
    takes = {argument.arg for argument in workloads()["model"].args.args}
    tree = ast.parse((ROOT / "tfbuild" / "in_container" / "bench" / "workloads" / "networks.py").read_text())
    (built,) = (
        ast.literal_eval(ast.List([*node.value.keys], ast.Load()))  # type: ignore[list-item]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    )
    for name, model in experiments.known_models().items():
        assert (name in built) != bool(model.application), name
        assert bool(model.application) == bool(model.size), name
        assert re.fullmatch(r"[A-Z]\w+|", model.application), name
        for each in experiments.model_row([name]).case:
            assert {*each.params, "jpegs", "xla"} <= takes, name


def test_an_arm_whose_memory_is_listed_shares_its_process_with_no_other() -> None:
    machine = Machine(image="sha256:this", against="", cpus=2, gpus=0)
    (short,) = experiments.select_experiments(["models"], quick=False)
    for row in (short, experiments.model_row(sorted(experiments.known_models()))):
        assert row.fresh, "what the last case took would be in the next one's memory"
        for each in row.case:
            keys = [machine.key(each, arm) for arm in row.arms(each)]
            shared = any(key.env == keys[0].env for key in keys[1:])
            assert shared or len(set(keys)) == len(keys), each.name


def test_virtual_devices_are_never_taken_for_gpus() -> None:
    (row,) = experiments.select_experiments(["strategy"], quick=False)
    assert [each for each in row.case if (each.params.get("device") == "GPU") != (each.needs == "gpu")] == []
