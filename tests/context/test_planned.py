"""Labels are read once, and only an image of tfbuild's has them; the isa check compares them with the binary."""

import pytest

from tests.verify.test_judge import ENVIRONMENT
from tfbuild.binary.guard import Guard
from tfbuild.context.labels import PREFIX
from tfbuild.context.planned import Planned
from tfbuild.cpu.isa import closure
from tfbuild.errors import UnknownImage
from tfbuild.facts import defects
from tfbuild.verify.checks import isa

AVX = ("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX")
UNUSED = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "FMA")
STOCK = Guard(compiled=AVX, unused=UNUSED)
MESSAGE = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")
LABELS = {
    PREFIX + name: value
    for name, value in {
        "id": "2.14.0-mkl-py3.11-avx",
        "release": "2.14.0",
        "python": "3.11",
        "target": "mkl",
        "platform": "linux/amd64",
        "features": " ".join(sorted(closure(["avx"]))),
        "allocator": "tcmalloc",
        "threading": "threadpool",
    }.items()
}


def planned(*features: str, release: str = "2.14.0", wheel: str = "official") -> Planned:
    held = " ".join(sorted(closure(features or ["avx"])))
    more = {PREFIX + "features": held, PREFIX + "release": release, PREFIX + "wheel": wheel}
    return Planned.of("x", LABELS | more, "amd64")


def test_the_labels_of_an_image() -> None:
    plan = Planned.of("x", LABELS, "amd64")
    assert (plan.id, plan.arch, plan.target) == ("2.14.0-mkl-py3.11-avx", "x86_64", "mkl")
    assert "avx" in plan.features
    assert plan.smoke().known_defects == ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc")


@pytest.mark.parametrize("name", ["id", "release", "features", "allocator"])
def test_an_image_of_somebody_else_is_refused(name: str) -> None:
    labels = {key: value for key, value in LABELS.items() if key != PREFIX + name}
    with pytest.raises(UnknownImage, match=f"no label {PREFIX}{name}"):
        Planned.of("x", labels, "amd64")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "../../etc/passwd"),
        ("id", ""),
        ("release", "newest"),
        ("python", "3.11/../.."),
        ("id", "a" * 200),
        # Whoever changes these would switch a check off.
        ("platform", "linux/arm64"),
        ("allocator", "none"),
        ("target", "tpu"),
    ],
)
def test_labels_that_cannot_be_meant_are_refused(name: str, value: str) -> None:
    with pytest.raises(UnknownImage, match="unreadable label"):
        Planned.of("x", LABELS | {PREFIX + name: value}, "amd64")


@pytest.mark.parametrize(("release", "count"), [("2.1.4", 0), ("2.2.0", 2), ("2.15.1", 2), ("2.16.1", 0)])
def test_known_defects_belong_to_their_releases(release: str, count: int) -> None:
    assert len(defects.known(release)) == count


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


def test_a_cpu_with_nothing_more_prints_no_message() -> None:
    flags = ("pni", "sse4_1", "sse4_2", "avx")
    assert isa.compare(planned(), STOCK, flags, (), "").status == "pass"


def test_without_a_start_the_binary_alone_is_judged() -> None:
    check = isa.compare(planned(), STOCK, (), None, "TensorFlow does not import")
    assert check.status == "pass"
    assert "not cross-checked with TensorFlow's message, since TensorFlow does not import" in check.detail


def test_amx_is_not_judged_where_the_guard_cannot_tell() -> None:
    assert isa.compare(planned("avx", "amx_tile"), STOCK, (), None, "x").status == "pass"
