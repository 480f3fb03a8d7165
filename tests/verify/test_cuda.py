"""The cuda check runs with the GPU if there is one; a host without one is a reason to skip, never to pass."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.context.test_planned import planned
from tests.verify.test_checks import SANDBOX, verification
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Ended, ProbeCheck
from tfbuild.in_container.smoke.records import Challenge, GpuConvolution
from tfbuild.measure.probe import Outcome
from tfbuild.verify.checks.probes import CUDA
from tfbuild.verify.verification import NO_START, NOT_STARTED, Answered, Verification

NO_GPU = "the engine hands out no GPU"
ON_GPU = GpuConvolution(1, "/device:GPU:0", 1e-6)


class FakeEngine:
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def lacks_gpus(self, ref: str, sandbox: object) -> str:
        assert (ref, sandbox) == ("x", SANDBOX)
        return self.reason


class Probed(Verification):
    """A verification whose probe gives `answer`."""

    answer: Answered
    gpus: bool

    def ask(self, check: ProbeCheck, *, gpus: bool = False, **_: Any) -> Answered:
        assert check == judge.CUDA
        self.gpus = gpus
        return self.answer


def run(
    record: GpuConvolution | None, *, reason: str = "", code: int = 0, broken: str = "", wrong: str = ""
) -> tuple[str, str, bool]:
    plan = replace(planned(), target="cuda")
    state = Probed(engine=cast(Engine, FakeEngine(reason)), ref="x", planned=plan, baseline="none", sandbox=SANDBOX)
    records = () if record is None else (record,)
    outcome = Outcome(records=records, ended=Ended(code, ""), output="", broken=broken)
    state.answer = Answered(outcome=outcome, challenge=Challenge(0, ()), wrong=wrong)
    check = CUDA.run(state)
    return check.status, check.detail, state.gpus


def test_a_gpu_that_agrees_passes() -> None:
    assert run(ON_GPU) == ("pass", "/device:GPU:0 agrees with the CPU", True)


def test_a_host_without_a_gpu_is_asked_without_one_and_skipped_with_the_reason() -> None:
    assert run(GpuConvolution(0, "", None), reason=NO_GPU) == ("skip", NO_GPU, False)
    status, detail, gpus = run(GpuConvolution(0, "", None))
    assert (status, gpus) == ("skip", True)
    assert detail == "no GPU is visible in the container"


@pytest.mark.parametrize("reason", ["", NO_GPU])
def test_a_failure_is_one_on_a_host_without_a_gpu_too(reason: str) -> None:
    assert run(None, reason=reason, code=1)[0] == "fail"
    assert run(None, reason=reason)[0] == "fail"
    assert run(replace_error(0.5), reason=reason)[0] == "fail"
    assert run(None, reason=reason, broken="it flooded")[:2] == ("fail", "it flooded")
    assert run(ON_GPU, reason=reason, broken="it flooded")[:2] == ("fail", "it flooded")


def replace_error(error: float) -> GpuConvolution:
    return GpuConvolution(1, "/device:GPU:0", error)


def test_a_wrong_answer_to_the_challenge_fails() -> None:
    assert run(ON_GPU, wrong="off by 1")[:2] == ("fail", "off by 1")


def test_only_a_build_for_cuda_that_starts_is_asked() -> None:
    plan = replace(planned(), target="cuda")
    assert CUDA.skip(verification(plan)) == ""
    assert CUDA.skip(verification(plan, start=NOT_STARTED)) == NO_START
    assert CUDA.skip(verification(planned())) == "not a check of target mkl"
