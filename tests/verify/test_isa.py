"""The check isa: what TensorFlow's guard was compiled for, against the labels and TensorFlow's own message."""

from typing import cast

import pytest

from tests.binary import libraries
from tests.context.test_planned import planned
from tests.verify.images import LibraryEngine
from tests.verify.test_checks import SANDBOX
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild.binary.guard import Guard
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.measure.probe import Outcome
from tfbuild.verify.checks import isa
from tfbuild.verify.verification import NO_GUARD, NOT_STARTED, Start, Verification

AVX = ("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX")
UNUSED = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "FMA")
STOCK = Guard(compiled=AVX, unused=UNUSED)
MESSAGE = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")


def test_the_planned_set_passes_and_agrees_with_the_message() -> None:
    check = isa.compare(planned(), STOCK, ENVIRONMENT.cpu_flags, MESSAGE, "")
    assert check.status == "pass"
    assert "message agrees" in check.detail


def test_missing_features_fail() -> None:
    check = isa.compare(planned("avx512f", "avx512_vnni"), STOCK, ENVIRONMENT.cpu_flags, MESSAGE, "")
    assert check.status == "fail"
    assert "lacks AVX2 AVX512F AVX512_VNNI FMA" in check.detail


def test_features_beyond_the_plan_fail() -> None:
    guard = Guard(compiled=(*AVX, "AVX2", "FMA"), unused=UNUSED[1:-1])
    check = isa.compare(planned(), guard, ENVIRONMENT.cpu_flags, MESSAGE[1:-1], "")
    assert check.status == "fail"
    assert "has beyond its plan AVX2 FMA" in check.detail


@pytest.mark.parametrize("message", [(), MESSAGE[:-1], (*MESSAGE, "AMX_TILE"), tuple(reversed(MESSAGE))])
def test_a_message_that_disagrees_fails(message: tuple[str, ...]) -> None:
    check = isa.compare(planned(), STOCK, ENVIRONMENT.cpu_flags, message, "")
    assert check.status == "fail"
    assert "own message says" in check.detail


def test_what_no_kernel_prints_is_not_held_against_the_message() -> None:
    guard = Guard(compiled=AVX, unused=(*UNUSED[:5], "AVX_NE_CONVERT", *UNUSED[5:]))
    message = (*MESSAGE[:5], "AVX_NE_CONVERT", "FMA")
    assert isa.compare(planned(), guard, ENVIRONMENT.cpu_flags, message, "").status == "pass"


def test_amx_is_not_judged_where_the_guard_cannot_tell() -> None:
    assert isa.compare(planned("avx", "amx_tile"), STOCK, (), None, "x").status == "pass"


@pytest.mark.parametrize(
    ("message", "told"),
    [((), "but TensorFlow's own message says nothing"), (("AVX2",), "but TensorFlow's own message says AVX2")],
)
def test_a_disagreement_has_both_sides(message: tuple[str, ...], told: str) -> None:
    check = isa.compare(planned(), STOCK, ENVIRONMENT.cpu_flags, message, "")
    assert check.detail == f"its guard leaves {' '.join(MESSAGE)} of this CPU unused, {told}"
    lesser = isa.compare(planned(), STOCK, ("pni", "sse4_1", "sse4_2", "avx"), ("AVX2",), "")
    assert lesser.detail == "its guard leaves nothing of this CPU unused, but TensorFlow's own message says AVX2"


def test_sse_is_in_every_build_though_no_plan_names_it() -> None:
    for missing in ("SSE", "SSE2"):
        guard = Guard(compiled=tuple(name for name in AVX if name != missing), unused=UNUSED)
        check = isa.compare(planned(), guard, (), None, "x")
        assert check.status == "fail"
        assert check.detail.endswith(f"it lacks {missing}")


def test_what_is_lacking_and_what_is_too_much_are_both_named() -> None:
    guard = Guard(compiled=(*AVX[:-1], "AVX2"), unused=())
    check = isa.compare(planned(), guard, (), None, "x")
    assert check.detail == f"compiled for {' '.join(guard.compiled)}: it lacks AVX and it has beyond its plan AVX2"


def test_a_cpu_that_uses_everything_has_no_message_and_agrees() -> None:
    check = isa.compare(planned(), STOCK, ("pni", "sse4_1", "sse4_2", "avx"), (), "")
    expected = f"compiled for {' '.join(AVX)}, as planned; TensorFlow's own message agrees (none unused)"
    assert (check.status, check.detail) == ("pass", expected)


# --- the library in the image -----------------------------------------------------------------------------------------

PATH = "/opt/tensorflow/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2"
MESSAGE_LINE = (
    "I x.cc:142] This TensorFlow binary is optimized to use available CPU instructions in performance-critical "
    "operations.\nTo enable the following instructions: {}, in other operations, rebuild TensorFlow with the "
    "appropriate compiler flags.\n"
)


def run(engine: LibraryEngine, start: Start = NOT_STARTED, plan: Planned | None = None) -> tuple[str, str, Guard]:
    state = Verification(
        engine=cast(Engine, engine), ref="x", planned=plan or planned(), baseline="none", sandbox=SANDBOX, start=start
    )
    check = isa.CHECK.run(state)
    return check.status, check.detail, state.guard


def stock() -> LibraryEngine:
    return LibraryEngine({PATH: libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"))})


def test_the_guard_in_the_image_is_read_and_kept_for_the_report() -> None:
    status, detail, guard = run(stock())
    assert (status, guard) == ("pass", STOCK)
    assert detail.endswith(
        "not cross-checked with TensorFlow's message, since the image does not start on this host (see guard)"
    )
    status, detail, _ = run(stock(), plan=planned("avx2"))
    assert status == "fail"
    assert "it lacks AVX2" in detail


@pytest.mark.parametrize(("names", "status"), [(MESSAGE, "pass"), (MESSAGE[:-1], "fail")])
def test_what_tensorflow_said_when_it_started_is_the_cross_check(names: tuple[str, ...], status: str) -> None:
    output = MESSAGE_LINE.format(" ".join(names))
    outcome = Outcome(records=(ENVIRONMENT, TENSORFLOW), ended=judge.Ended(0, ""), output=output)
    assert run(stock(), Start(outcome=outcome))[0] == status


def test_python_without_tensorflow_gave_no_message_to_compare_with() -> None:
    outcome = Outcome(records=(ENVIRONMENT,), ended=judge.Ended(1, ""), output="")
    status, detail, _ = run(stock(), Start(outcome=outcome, why="TensorFlow does not import"))
    assert status == "pass"
    assert detail.endswith("not cross-checked with TensorFlow's message, since TensorFlow does not import")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (LibraryEngine({}), f"{PATH} cannot be copied out of the image: No such file or directory"),
        (LibraryEngine({PATH: OSError("it vanished")}), f"{PATH} cannot be copied out of the image: it vanished"),
        (LibraryEngine({PATH: b"text"}), "ELF"),
    ],
    ids=["missing", "unreadable", "no library"],
)
def test_an_image_whose_guard_cannot_be_read_fails(engine: LibraryEngine, told: str) -> None:
    status, detail, guard = run(engine)
    assert (status, guard) == ("fail", NO_GUARD)
    assert told in detail
