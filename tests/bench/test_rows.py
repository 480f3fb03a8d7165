"""Experiments are rows, whose fields say what is made of their numbers: a new one needs no code."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests import checkout
from tests.bench.test_report import case, experiment, report
from tests.measure.test_experiments import slips
from tfbuild import facts
from tfbuild.bench import advise, evidence, findings
from tfbuild.bench import report as reporting
from tfbuild.bench.session import CaseGroup, ExperimentRun
from tfbuild.measure import experiments, records
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.records import CaseResult
from tfbuild.measure.workers import Machine, line_up

FILE = Path(facts.__file__).with_name("experiments.toml")
NAME, SWITCH = "denormals", "TF_MADE_UP_SWITCH"
# No claim that such a switch exists.
ROW = f"""
[[experiment]]
name = "{NAME}"
question = "What does a made-up switch gain?"
compares = "the switch off against on"
changes = "{SWITCH} in the environment"
source = "made up"
finding = "page_faults"
workload = "matmul"
arm = [
    {{ name = "baseline", env = {{ {SWITCH} = "0" }} }},
    {{ name = "arm", env = {{ {SWITCH} = "1" }} }},
]
case = [{{ name = "matmul 768x768" }}]
"""
# Strings in code that are an experiment's name as well, and mean something else there.
OTHERS = {
    ("evidence.py", "pipeline"),  # a workload
    ("findings.py", "pipeline"),
    ("findings.py", "int8"),  # a width of numbers
    ("experiments.py", "models"),  # a file of facts
    ("experiments.py", "xla"),  # a parameter of a workload
    ("experiments.py", "tuning"),  # what a case needs
    ("workers.py", "tuning"),
    ("throughput.py", "onednn"),  # a verification check
}


def parsed(text: str) -> tuple[Experiment, ...]:
    return facts.parse(text, dict[str, tuple[Experiment, ...]], FILE.name)["experiment"]


def measured() -> CaseResult:
    """Return a possible result of the row's case: twice as fast, in a tenth more memory."""
    measured_case = case(0.5, name="matmul 768x768", env={SWITCH: "1"})
    base, arm = (replace(one, rss=500.0, faults=20.0) for one in measured_case.arms)
    return replace(measured_case, arms=(base, replace(arm, rss=550.0)))


def test_its_cases_are_lined_up_and_its_finding_follows() -> None:
    (row,) = parsed(ROW)
    machine = Machine(image="sha256:1", against="", cpus=2, gpus=0)
    assert [side.name for side in line_up(row, row.case[0], machine)] == ["baseline", "arm", AGAIN]
    result = ExperimentRun(row, [CaseGroup(row, row.case, results=[measured()])]).result()
    assert result.status == records.MEASURED
    assert [one.text.partition(": ")[2] for one in result.findings] == [
        "baseline 20 faults and 500 MiB, arm 20 faults and 550 MiB"
    ]


def test_its_setting_is_advised() -> None:
    original = report(experiment(NAME, measured()))
    (advice,) = advise.advise(original)
    assert (advice.experiment, advice.line) == (NAME, f"{SWITCH}=1")
    assert reporting.draw_chart(original.experiments[0]) is not None


# --- the rows ---------------------------------------------------------------------------------------------------------


def test_each_value_of_a_field_has_its_function() -> None:
    assert set(findings.DERIVED) == set(get_args(experiments.FindingKind)) - {""}
    assert set(evidence.WATCHED) == set(get_args(experiments.EvidenceKind)) - {""}


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('finding = "page_faults"', 'finding = "speed"', "Invalid enum value 'speed'"),
        ('finding = "page_faults"', 'evidence = "hearsay"', "Invalid enum value 'hearsay'"),
        ('finding = "page_faults"', 'role = "leading"', "Invalid enum value 'leading'"),
        ('finding = "page_faults"', 'metric = "fps"', "Invalid enum value 'fps'"),
        ('finding = "page_faults"', "quick = true", "unknown field"),
        ('{ name = "matmul 768x768" }', '{ name = "c", needs = "tpu" }', "Invalid enum value 'tpu'"),
        ('finding = "page_faults"', 'role = "model"', "exactly one row has the role 'model'"),
        (f'name = "{NAME}"', 'name = "jpeg"', "two rows have the same name"),
        ('case = [{ name = "matmul 768x768" }]', "", f"{NAME} has no case"),
        ('{ name = "arm", ', '{ name = "baseline", ', "needs two arms or more, each with its own name"),
        (f'    {{ name = "arm", env = {{ {SWITCH} = "1" }} }},\n', "", "needs two arms or more"),
        ('workload = "matmul"', "", "an arm has no workload"),
    ],
)
def test_a_slip_in_a_row_is_noticed(before: str, after: str, complaint: str) -> None:
    assert before in ROW
    try:
        noticed = list(slips(parsed(FILE.read_text(encoding="utf-8") + ROW.replace(before, after))))
    except ValueError as error:
        noticed = [str(error)]
    assert any(complaint in text for text in noticed), noticed


def test_no_code_names_an_experiment() -> None:
    names = {row.name for row in experiments.known()}
    package = checkout.ROOT / "tfbuild"
    code = [*(package / "bench").glob("*.py"), *(package / "measure").glob("*.py")]
    seen = {
        (path.name, node.value)
        for path in (*code, package / "verify" / "checks" / "throughput.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert seen == OTHERS
