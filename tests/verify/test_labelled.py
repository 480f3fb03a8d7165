"""The build of an image as far as its labels say it, and what is no image of ours."""

import json

import pytest

from tfbuild import plan
from tfbuild.context import labels
from tfbuild.context.labels import labels_of
from tfbuild.errors import UnknownImage
from tfbuild.facts import closure
from tfbuild.plan import Request
from tfbuild.verify import labelled_build

# More digits than Python reads as a number.
ENDLESS = "2." + 5001 * "1"
BUILD = plan.select(Request(target="cuda", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
# The labels of an official wheel's image, as far as most tests need them.
LABELS = {
    labels.PREFIX + name: value
    for name, value in {
        "id": "2.14.0-mkl-py3.11-avx",
        "release": "2.14.0",
        "python": "3.11",
        "target": "mkl",
        "platform": "linux/amd64",
        "features": " ".join(sorted(closure(["avx"]))),
        "plan": '{"threading":"threadpool"}',
    }.items()
}


def planned(*features: str, release: str = "2.14.0", wheel: str = "official") -> plan.Build:
    held = " ".join(sorted(closure(features or ["avx"])))
    own = json.dumps({"threading": "threadpool", "wheel": {"kind": wheel}})
    more = {
        f"{labels.PREFIX}{name}": value for name, value in (("features", held), ("release", release), ("plan", own))
    }
    return labelled_build("x", LABELS | more, "amd64")


@pytest.mark.parametrize("name", ["id", "release", "python", "target", "platform", "features"])
def test_each_label_that_a_plan_needs_is_asked_for(name: str) -> None:
    less = {key: value for key, value in labels_of(BUILD).items() if key != labels.PREFIX + name}
    with pytest.raises(UnknownImage, match=rf"x was not made by tfbuild: it has no label io\.tfbuild\.{name}"):
        labelled_build("x", less, "amd64")


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("id", "a" * 129, False),
        ("id", ".x", False),
        ("id", "../../etc/passwd", False),
        ("id", "", False),
        ("python", "3.12", True),
        ("python", "3.100", False),
        ("python", "2.7", False),
        ("python", "3.11/../..", False),
        ("release", "newest", False),
        ("release", ENDLESS, False),
        # Whoever changes these would switch a check off.
        ("platform", "linux/arm64", False),
        ("target", "tpu", False),
        ("instruction-set", "a b", False),
    ],
)
def test_labels_have_a_form(name: str, value: str, good: bool) -> None:
    given = labels_of(BUILD) | {labels.PREFIX + name: value}
    if good:
        assert getattr(labelled_build("x", given, "amd64"), name) == value
    else:
        with pytest.raises(UnknownImage, match=rf"unreadable label io\.tfbuild\.{name}: '{value[:40]}'$"):
            labelled_build("x", given, "amd64")
