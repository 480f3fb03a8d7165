"""The judge of the check `code`: what the libraries hold, against the labels."""

from tests.binary.codes import code_with
from tests.context.test_planned import planned
from tfbuild.binary.scan import ScannedCode
from tfbuild.verify.checks import machine_code


def test_code_as_labelled_passes() -> None:
    check = machine_code.compare(planned("avx"), {"cc": code_with("avx", "popcnt"), "framework": code_with("avx")})
    assert (check.name, check.status) == ("code", "pass")
    assert {measure.name: measure.limit for measure in check.measures} == {
        "avx_share": ">= 0.02",
        "avx512f_share": "< 0.02",
    }


def test_code_beyond_its_labels_fails_in_any_library() -> None:
    check = machine_code.compare(planned("avx"), {"cc": code_with("avx"), "framework": code_with("avx", "bmi2")})
    assert check.status == "fail"
    assert "framework needs bmi2 beyond its labels" in check.detail


def test_code_that_makes_no_use_of_its_labels_fails() -> None:
    check = machine_code.compare(planned("avx2", "bmi2", "aes", "movbe"), {"cc": code_with("avx", "avx2")})
    assert check.status == "fail"
    assert "it makes no use of bmi2, for which it is labelled" in check.detail


def test_code_for_another_processor_fails() -> None:
    arm = ScannedCode(
        arch="aarch64", method="spread", instructions=1, regions=1, coverage=1, families=(), dispatched={}
    )
    assert machine_code.compare(planned("avx"), {"cc": arm}).status == "fail"
