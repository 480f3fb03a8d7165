"""The judge of the check `code`: what the libraries hold, against the labels."""

from dataclasses import replace

from tests.binary.codes import code_with
from tests.context.test_planned import planned
from tfbuild.binary.scan import Family, ScannedCode
from tfbuild.verify.checks import machine_code


def test_code_as_labelled_passes() -> None:
    check = machine_code.compare(planned("avx"), {"cc": code_with("avx", "popcnt"), "framework": code_with("avx")})
    assert check.status == "pass"
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
    check = machine_code.compare(planned("avx"), {"cc": arm})
    assert (check.status, check.detail) == ("fail", "it is code for aarch64, not for x86_64")


def test_the_shares_are_in_the_report_with_the_least_that_counts() -> None:
    rows = (Family(feature="avx", rate=1.0, share=0.123456, compiled=True), *code_with("bmi2").families)
    check = machine_code.compare(planned("avx"), {"cc": replace(code_with(), families=rows)})
    assert [(measure.name, measure.value, measure.limit) for measure in check.measures] == [
        ("avx_share", 0.1235, ">= 0.02"), ("bmi2_share", 0.1, "< 0.02"), ("avx512f_share", 0.001, "< 0.02"),
    ]  # fmt: skip


def test_every_fault_is_named() -> None:
    check = machine_code.compare(planned("avx2"), {"cc": code_with("avx", "fma"), "framework": code_with("bmi2")})
    assert check.detail.startswith(
        "cc needs fma beyond its labels; framework needs bmi2 beyond its labels; "
        "it makes no use of avx2, for which it is labelled; compiled for "
    )
