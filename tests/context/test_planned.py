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


def test_a_plan_is_read_from_the_labels() -> None:
    more = {
        "wheel": "official", "instruction-set": "avx", "compute-capabilities": "8.0 9.0", "version": "0.9",
        "platform": "linux/arm64", "python": "3.9",
    }  # fmt: skip
    read = Planned.from_labels("x", LABELS | {PREFIX + name: value for name, value in more.items()}, "arm64")
    assert read == Planned(
        id="2.14.0-mkl-py3.11-avx", release="2.14.0", python="3.9", target="mkl", arch="aarch64",
        features=frozenset(LABELS[f"{PREFIX}features"].split()), threading="threadpool", wheel="official",
        instruction_set="avx", compute_capabilities=("8.0", "9.0"), version="0.9",
    )  # fmt: skip
    assert (read.platform, Planned.from_labels("x", LABELS, "amd64").platform) == ("linux/arm64", "linux/amd64")
    least = Planned.from_labels(
        "x", {name: value for name, value in LABELS.items() if "threading" not in name}, "amd64"
    )
    assert (least.threading, least.wheel, least.instruction_set, least.version) == ("", "", "", "")
    smoke = read.smoke()
    assert (smoke.release, smoke.python, smoke.target, smoke.threading) == ("2.14.0", "3.9", "mkl", "threadpool")
    assert smoke.allocator == "tcmalloc"
    assert "onednn" in smoke.checks
    assert smoke.known_defects == ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc")


@pytest.mark.parametrize("name", ["id", "release", "python", "target", "platform", "features", "allocator"])
def test_each_label_that_a_plan_needs_is_asked_for(name: str) -> None:
    less = {key: value for key, value in LABELS.items() if key != PREFIX + name}
    with pytest.raises(UnknownImage, match=rf"x was not made by tfbuild: it has no label io\.tfbuild\.{name}") as error:
        Planned.from_labels("x", less, "amd64")
    assert error.value.hint == "invoke build"
    with pytest.raises(UnknownImage, match=r"x was not made by tfbuild: it has no io\.tfbuild labels"):
        Planned.from_labels("x", {"maintainer": "us"}, "amd64")


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("id", "a" * 128, True),
        ("id", "a" * 129, False),
        ("id", ".x", False),
        ("python", "3.9", True),
        ("python", "3.100", False),
        ("python", "2.7", False),
        ("python", "3.11/../..", False),
        ("id", "../../etc/passwd", False),
        ("id", "", False),
        ("release", "newest", False),
        # Whoever changes these would switch a check off.
        ("platform", "linux/arm64", False),
        ("allocator", "none", False),
        ("target", "tpu", False),
    ],
)
def test_labels_have_a_form(name: str, value: str, good: bool) -> None:
    given = LABELS | {PREFIX + name: value}
    if good:
        assert getattr(Planned.from_labels("x", given, "amd64"), name) == value
    else:
        with pytest.raises(UnknownImage, match=rf"unreadable label io\.tfbuild\.{name}: '{value[:40]}'$"):
            Planned.from_labels("x", given, "amd64")


@pytest.mark.parametrize(("release", "count"), [("2.1.4", 0), ("2.2.0", 2), ("2.15.1", 2), ("2.16.1", 0)])
def test_known_defects_belong_to_their_releases(release: str, count: int) -> None:
    assert len(releases.known_defects(release)) == count
