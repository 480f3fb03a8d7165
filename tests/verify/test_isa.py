"""The checks isa and code: what TensorFlow was compiled for by its guard, its own message and its code."""

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.binary.codes import code_with
from tests.binary.test_scan import AVX2, BMI2, everywhere, library
from tests.rows import each
from tests.verify.images import FILES, SITE, verification
from tests.verify.test_judge import ENVIRONMENT
from tests.verify.test_labelled import planned
from tfbuild.binary import LibraryUnreadable
from tfbuild.binary.guard import Guard
from tfbuild.binary.scan import Family, ScannedCode
from tfbuild.cpu.isa import resolve
from tfbuild.in_container.smoke.judge import Ended
from tfbuild.verify import NOT_STARTED
from tfbuild.verify.checks import isa
from tfbuild.verify.report import NO_START

AVX = ("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX")
UNUSED = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "FMA")
STOCK = Guard(compiled=AVX, unused=UNUSED)
MESSAGE = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")
LESSER = ("pni", "sse4_1", "sse4_2", "avx")
ARM = ScannedCode(arch="aarch64", method="spread", instructions=1, regions=1, coverage=1, families=(), dispatched={})


@each(
    "labelled, guard, flags, message, fault",
    [
        ("avx", STOCK, ENVIRONMENT.cpu_flags, MESSAGE, ""),
        ("avx512f avx512_vnni", STOCK, ENVIRONMENT.cpu_flags, MESSAGE, "lacks AVX2 AVX512F AVX512_VNNI FMA"),
        (
            "avx",
            Guard(compiled=(*AVX, "AVX2", "FMA"), unused=UNUSED[1:-1]),
            ENVIRONMENT.cpu_flags,
            MESSAGE[1:-1],
            "exceeds its plan by AVX2 FMA",
        ),
        ("avx", Guard(compiled=(*AVX[:-1], "AVX2"), unused=()), (), None, "lacks AVX and it exceeds its plan by AVX2"),
        # Every build has SSE, though no plan names it.
        ("avx", Guard(compiled=AVX[1:], unused=UNUSED), (), None, "it lacks SSE"),
        ("avx", Guard(compiled=(AVX[0], *AVX[2:]), unused=UNUSED), (), None, "it lacks SSE2"),
        # AMX is judged only where the guard can tell.
        ("avx amx_tile", STOCK, (), None, ""),
        # A CPU that uses everything has no message.
        ("avx", STOCK, LESSER, (), ""),
        ("avx", STOCK, LESSER, ("AVX",), "leaves nothing of this CPU unused, but TensorFlow's own message says AVX"),
        *(
            ("avx", STOCK, ENVIRONMENT.cpu_flags, message, "own message says")
            for message in ((), MESSAGE[:-1], MESSAGE[::-1])
        ),
        # TensorFlow asks the CPU itself, which may have what its kernel does not list.
        ("avx", STOCK, ENVIRONMENT.cpu_flags, (*MESSAGE, "AMX_TILE"), ""),
        ("avx", STOCK, LESSER, ("AVX2",), ""),
        (
            "avx",
            Guard(compiled=AVX, unused=(*UNUSED[:5], "AVX_NE_CONVERT", *UNUSED[5:])),
            ENVIRONMENT.cpu_flags,
            (*MESSAGE[:5], "AVX_NE_CONVERT", "FMA"),
            "",
        ),
    ],
)
def test_the_guard_is_that_of_the_labels_and_of_the_message(
    labelled: str, guard: Guard, flags: tuple[str, ...], message: tuple[str, ...] | None, fault: str
) -> None:
    check = isa.compare(planned(*labelled.split()), guard, flags, message, "it did not start")
    assert check.status == ("fail" if fault else "pass"), check.detail
    assert fault in check.detail


def test_the_guard_in_the_image_is_kept_for_the_report_and_compared_with_tensorflow_s_message() -> None:
    state = verification()
    check = isa.CHECK.run(state)
    assert (check.status, state.guard.compiled) == ("pass", AVX)
    assert "TensorFlow's own message agrees (AVX2 AVX512F" in check.detail
    check = isa.CHECK.run(verification(start=NOT_STARTED, why=NO_START))
    assert check.status == "pass"
    assert check.detail.endswith(f"not cross-checked with TensorFlow's message, since {NO_START}")
    silent = replace(state.start, ended=Ended(0, ""))
    assert isa.CHECK.run(verification(start=silent)).status == "fail"
    only = replace(state.start, records=(ENVIRONMENT,))
    assert isa.CHECK.run(verification(start=only, why="it does not import")).status == "pass", "nothing to compare with"


# --- code -------------------------------------------------------------------------------------------------------------


@each(
    "labels, main, framework, faults",
    [
        ("avx", "avx popcnt", "avx", ""),
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
    check = isa.compare_code(planned(*labels.split()).instruction_set, libraries)
    assert check.status == ("fail" if faults else "pass")
    assert check.detail.startswith(f"{faults}; compiled for " if faults else "as labelled: compiled for ")


@each(
    "share, features, fault",
    [
        (0.087, "avx2 avx512f", ""),
        (0.5, "avx2 xsave", ""),
        (0.5, "bmi2 avx512vl", "wrapper.so needs avx512vl bmi2 beyond its labels"),
        (0.2, "avx512f", "wrapper.so needs avx512f beyond its labels"),
    ],
)
def test_a_small_library_is_judged_by_what_compilers_write_all_over_it(share: float, features: str, fault: str) -> None:
    rows = tuple(Family(feature=name, rate=1.0, share=share, compiled=True) for name in features.split())
    other = replace(code_with(), families=rows)
    check = isa.compare_code(planned("avx2").instruction_set, {"cc": code_with("avx", "avx2")}, {"wrapper.so": other})
    assert (check.status, check.detail.startswith(f"{fault}; compiled for ")) == (
        ("fail", True) if fault else ("pass", False)
    )


def test_every_library_in_the_image_is_read() -> None:
    """A wrong flag on one target, whose code runs when it is imported."""
    state = verification()
    assert isa.CODE.run(state).status == "pass"
    wrapper = f"{SITE}/tensorflow/lite/python/_pywrap_tensorflow_interpreter_wrapper.so"
    cast(Any, state.engine).files = {**FILES, wrapper: library(everywhere(AVX2, BMI2), count=64)}
    check = isa.CODE.run(state)
    assert check.status == "fail"
    assert "lite/python/_pywrap_tensorflow_interpreter_wrapper.so needs avx2 bmi2 beyond" in check.detail
    cast(Any, state.engine).files = {**FILES, wrapper: b"no library"}
    with pytest.raises(LibraryUnreadable):
        isa.CODE.run(state)


def test_code_for_another_processor_fails() -> None:
    check = isa.compare_code(planned("avx").instruction_set, {"cc": ARM})
    assert (check.status, check.detail) == ("fail", "it is code for aarch64, not for x86_64")


def test_a_build_for_armv8_0_is_not_one_for_a_later_level() -> None:
    check = isa.compare_code(resolve("armv8.2-a", arch="aarch64"), {"cc": ARM})
    assert check.status == "fail"
    assert check.detail.startswith("it does not use atomics, for which it is labelled")
    assert isa.compare_code(resolve("armv8-a", arch="aarch64"), {"cc": ARM}).status == "pass"


def test_the_shares_are_in_the_report_with_the_least_that_counts() -> None:
    rows = (Family(feature="avx", rate=1.0, share=0.123456, compiled=True), *code_with("bmi2").families)
    check = isa.compare_code(planned("avx").instruction_set, {"cc": replace(code_with(), families=rows)})
    assert [(measure.name, measure.value, measure.limit) for measure in check.measures] == [
        ("avx_share", 0.1235, ">= 0.02"), ("bmi2_share", 0.1, "< 0.02"), ("avx512f_share", 0.001, "< 0.02"),
    ]  # fmt: skip
