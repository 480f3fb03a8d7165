"""Labels are read once, and only an image of tfbuild's has them."""

import pytest

from tfbuild.context.labels import PREFIX, Planned
from tfbuild.errors import UnknownImage
from tfbuild.facts import closure, releases

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
    return Planned.from_labels("x", LABELS | more, "amd64")


def test_the_labels_of_an_image() -> None:
    plan = Planned.from_labels("x", LABELS, "amd64")
    assert (plan.id, plan.arch, plan.target) == ("2.14.0-mkl-py3.11-avx", "x86_64", "mkl")
    assert "avx" in plan.features
    assert plan.smoke().known_defects == ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc")


@pytest.mark.parametrize("name", ["id", "release", "features", "allocator"])
def test_an_image_of_somebody_else_is_refused(name: str) -> None:
    labels = {key: value for key, value in LABELS.items() if key != PREFIX + name}
    with pytest.raises(UnknownImage, match=f"no label {PREFIX}{name}"):
        Planned.from_labels("x", labels, "amd64")


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
        Planned.from_labels("x", LABELS | {PREFIX + name: value}, "amd64")


@pytest.mark.parametrize(("release", "count"), [("2.1.4", 0), ("2.2.0", 2), ("2.15.1", 2), ("2.16.1", 0)])
def test_known_defects_belong_to_their_releases(release: str, count: int) -> None:
    assert len(releases.known_defects(release)) == count
