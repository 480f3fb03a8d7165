"""The judge of the check `code`: what the libraries hold, against the labels."""

from dataclasses import replace

from tests.binary.codes import code_with
from tests.context.test_planned import planned
from tests.rows import each
from tfbuild.binary.scan import Family, ScannedCode
from tfbuild.verify.checks import machine_code


def test_code_as_labelled_passes() -> None:
    check = machine_code.compare(planned("avx"), {"cc": code_with("avx", "popcnt"), "framework": code_with("avx")})
    assert check.status == "pass"
    assert {measure.name: measure.limit for measure in check.measures} == {
        "avx_share": ">= 0.02",
        "avx512f_share": "< 0.02",
    }


@each(
    "labels, main, framework, faults",
    [
        ("avx", "avx", "avx bmi2", "framework needs bmi2 beyond its labels"),
        # Of these, compilers use bmi2 alone by themselves.
        ("avx2 bmi2 aes movbe", "avx avx2", "", "it does not use bmi2, for which it is labelled"),
        (
            "avx2", "avx fma", "bmi2",
            "cc needs fma beyond its labels; framework needs bmi2 beyond its labels; "
            "it does not use avx2, for which it is labelled",
        ),
    ],
)  # fmt: skip
def test_every_fault_of_any_library_is_named(labels: str, main: str, framework: str, faults: str) -> None:
    libraries = {"cc": code_with(*main.split()), "framework": code_with(*framework.split())}
    check = machine_code.compare(planned(*labels.split()), libraries)
    assert check.status == "fail"
    assert check.detail.startswith(f"{faults}; compiled for ")


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
