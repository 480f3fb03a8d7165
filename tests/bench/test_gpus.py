"""How busy the GPUs are, with nvidia-smi's output as in its manual: no GPU was available."""

import os
from pathlib import Path
from typing import cast

import pytest

from tfbuild.bench import evidence
from tfbuild.in_container.bench import validity
from tfbuild.measure import experiments
from tfbuild.measure.sides import Machine
from tfbuild.measure.workers import Pool


@pytest.mark.parametrize(("text", "percent"), [("41\n97\n", 69.0), ("0\n", 0.0), (" 100 \n[N/A]\n", 100.0)])
def test_an_answer_is_the_mean_of_the_gpus_that_can_tell(text: str, percent: float) -> None:
    assert validity.mean_percent(text) == percent


@pytest.mark.parametrize("text", ["", "[N/A]\n", "NVIDIA-SMI has failed because it couldn't communicate\n"])
def test_output_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="reports no utilisation"):
        validity.mean_percent(text)


def test_work_goes_on_while_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/asked; wc -l < {tmp_path}/asked\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(validity, "GPU_SECONDS", 0.01)
    calls: list[int] = []
    assert validity.gpu_percent(lambda: calls.append(1), queries=3) == 2.0
    assert calls


def test_where_there_is_no_nvidia_smi_the_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(validity, "GPU_SECONDS", 0.01)
    with pytest.raises(FileNotFoundError):
        validity.gpu_percent(lambda: None)


def test_without_a_gpu_nothing_is_measured() -> None:
    (row,) = [row for row in experiments.known() if row.evidence == "gpu_use"]
    machine = Machine(image="sha256:1", against="", cpus=2, gpus=0)
    assert evidence.observe(row, row.case, cast(Pool, None), machine, 60) == ()
