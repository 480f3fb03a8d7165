"""Every row names what exists, and the command line's options are understood or refused."""

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tfbuild.errors import UsageError
from tfbuild.measure import experiments
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.probe import FOLDER, probe_files
from tfbuild.measure.workers import Machine, line_up

ROOT = Path(__file__).parents[2]
WORKLOADS = ROOT / "tfbuild" / "in_container" / "bench" / "workloads"


def workloads() -> dict[str, ast.FunctionDef]:
    """Return the functions marked with @workload, read from their source, as TensorFlow is only inside images."""
    return {
        node.name: node
        for file in WORKLOADS.glob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "workload" for mark in node.decorator_list)
    }


def arms() -> list[tuple[Experiment, Case, Arm]]:
    return [(row, case, arm) for row in experiments.known_experiments() for case in row.case for arm in row.arms(case)]


def test_every_arm_s_parameters_are_its_workload_s() -> None:
    known = workloads()
    for row, case, arm in arms():
        name = arm.workload or case.workload or row.workload
        where = f"{row.name}/{case.name}/{arm.name}: {name}"
        assert name in known, where
        takes = known[name].args
        allowed = {argument.arg for argument in takes.args}
        given = {**case.params, **arm.params}
        assert given.keys() <= allowed, f"{where} takes no {given.keys() - allowed}"
        needed = [argument.arg for argument in takes.args[: len(takes.args) - len(takes.defaults)]]
        assert set(needed) <= given.keys(), f"{where} needs {needed}"


def test_layouts_are_never_compared_in_one_process() -> None:
    """TensorFlow 2.2 to 2.15 give wrong results if one process uses both (tensorflow#61482)."""
    for row in experiments.known_experiments():
        for case in row.case:
            processes: dict[str, set[str]] = {}
            for arm in row.arms(case):
                layout = str({**case.params, **arm.params}.get("layout", "NHWC"))
                processes.setdefault(arm.process, set()).add(layout)
            assert all(len(layouts) == 1 for layouts in processes.values()), (row.name, case.name)


def test_quick_is_a_few_cases_and_only_names_what_it_is_asked_for() -> None:
    quick = experiments.select_experiments((), quick=True)
    alone = [case for row in quick for case in row.cases(True) if not row.together]
    assert 1 <= len(alone) <= 5
    assert [row.name for row in quick if row.together] == ["tuning"]
    assert [row.name for row in experiments.select_experiments(["jpeg", "onednn"], quick=False)] == ["onednn", "jpeg"]
    assert [row.name for row in experiments.select_experiments(["files"], quick=True)] == ["files"]
    with pytest.raises(UsageError, match="unknown experiment 'jpg'"):
        experiments.select_experiments(["jpg"], quick=False)


def test_no_row_contradicts_itself_or_another_one() -> None:
    rows = experiments.known_experiments()
    assert len({row.name for row in rows}) == len(rows)
    assert sorted(row.role for row in rows if row.role) == sorted(filter(None, get_args(experiments.Role)))
    for row in rows:
        assert len({case.name for case in row.case}) == len(row.case), row.name
        for case in row.case:
            names = [arm.name for arm in row.arms(case)]
            assert len(set(names)) == len(names) >= 2, (row.name, case.name)


def test_arms_share_a_process_unless_something_sets_them_apart() -> None:
    machine = Machine(image="sha256:1", against="sha256:2", cpus=3, gpus=0)
    case = Case(name="c", env={"A": "1"})
    plain = machine.key(case, Arm(name="x"))
    assert plain == machine.key(case, Arm(name="y"))
    assert dict(plain.env) == {"A": "1"}
    assert dict(machine.key(case, Arm(name="x", env={"N": "{fourfold}"})).env) == {"A": "1", "N": "12"}
    assert machine.key(case, Arm(name="x", image="against")).image == "sha256:2"
    assert machine.key(case, Arm(name="x", process="NCHW")) != plain


def test_an_arm_on_one_numa_node_is_for_machines_with_several() -> None:
    own = Arm(name="node", place="node"), Arm(name="pages", place="huge")
    case = Case(name="c", arm=(Arm(name="baseline"), *own))
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", case=(case,))
    machines = {count: replace(machine(2), nodes=count) for count in (0, 1, 2)}
    names = {count: [arm.name for arm in one.arms(row, case)] for count, one in machines.items()}
    assert names == {count: ["baseline", *["node"] * (count > 1), "pages"] for count in machines}
    assert len({machine(2).key(case, arm) for arm in case.arm}) == 3, "each has a process of its own"


def test_what_runs_inside_an_image_needs_nothing_of_the_host() -> None:
    """It imports the standard library, NumPy, TensorFlow and its own modules."""
    assert f"{FOLDER}/bench/worker.py" in probe_files()
    assert f"{FOLDER}/smoke/probes.py" in probe_files()
    # setuptools' distutils, for Pythons without one.
    allowed = {*sys.stdlib_module_names, "numpy", "tensorflow", "_distutils_hack"}
    for path, content in probe_files().items():
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = {str(node.module).partition(".")[0]}
            else:
                continue
            assert imported <= allowed | {"in_container", "smoke"}, (path, imported)


def test_a_worker_starts_out_of_its_files_alone(tmp_path: Path) -> None:
    """Without any installed package (-S) it gets as far as importing NumPy."""
    for path, content in probe_files().items():
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    command = [sys.executable, "-I", "-S", str(tmp_path / FOLDER.lstrip("/") / "bench"), ""]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    raised_in = re.findall(r'File "(.+)", line \d+', done.stderr)[-1]
    assert raised_in == str(tmp_path / FOLDER.lstrip("/") / "bench" / "workloads" / "__init__.py"), done.stderr
    assert done.stderr.endswith("\nModuleNotFoundError: No module named 'numpy'\n")


def machine(cpus: int) -> Machine:
    return Machine(image="sha256:1", against="sha256:2", cpus=cpus, gpus=1)


def test_rows_speak_of_this_machine_s_processors() -> None:
    """All texts of all rows can be filled in, and workloads get numbers."""
    every = [
        side for row in experiments.known_experiments() for case in row.case for side in line_up(row, case, machine(6))
    ]
    texts = [str((side.name, side.key.env, *side.params.values(), side.arm.code)) for side in every]
    assert [text for text in texts if re.search(r"\{\w", text)] == []
    (pipeline,) = experiments.select_experiments(["pipeline"], quick=False)
    sides = [side for case in pipeline.case for side in line_up(pipeline, case, machine(6))]
    assert {side.params["calls"] for side in sides if side.workload == "pipeline" and "calls" in side.params} == {-1, 6}
    assert any("num_parallel_calls=6" in side.arm.code for side in sides)


@pytest.mark.parametrize(
    ("cpus", "intra"), [(1, ["1", "4"]), (2, ["1", "2", "8"]), (3, ["1", "3", "12"]), (8, ["1", "4", "8", "32"])]
)
def test_no_number_of_threads_is_tried_twice(cpus: int, intra: list[str]) -> None:
    (threads,) = experiments.select_experiments(["threads"], quick=False)
    sides = line_up(threads, threads.case[0], machine(cpus))
    tried = [value for side in sides for name, value in side.key.env if name == "TF_NUM_INTRAOP_THREADS"]
    assert tried == intra
    assert [side.name for side in sides][:: len(sides) - 1] == ["the default", BASE_AGAIN]
    assert any(dict(side.key.env) == {"TF_NUM_INTEROP_THREADS": "1"} for side in sides)


def test_only_what_asks_for_a_gpu_gets_one_and_is_timed_by_the_clock() -> None:
    """CPU time does not include a GPU's work."""
    for row, case, arm in arms():
        asks = case.needs == "gpu"
        assert machine(2).key(case, arm).gpus is asks
        assert not asks or (case.metric or row.metric) == "wall", (row.name, case.name)
