"""Which images may be pruned, and their age."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.publish import inventory
from tfbuild.publish.inventory import Entry


def entry(name: str, place: str = inventory.HERE, *, ours: bool = True) -> Entry:
    tag = name.rpartition(":")[2].removesuffix("-failed").removesuffix("-unverified")
    return Entry(
        place=place, name=name, id=tag if "-" in tag else "2.14.1-mkl-py3.11-avx", digest=f"sha256:{name}",
        instruction_set="avx", platform="linux/amd64", size=1, created="2026-11-01T00:00:00Z", verified=True, lacks=(),
        ours=ours,
    )  # fmt: skip


HERE = [
    entry(name)
    for name in (
        "tfbuild:2.20.0-mkl-py3.13-x86-64-v3",
        "tfbuild:2.20.0-cpu-py3.13-x86-64-v3",
        "tfbuild:2.20.0-mkl-py3.13-x86-64-v3-failed",
        "tfbuild:2.20.0-mkl-py3.13-x86-64-v3-unverified",
        "127.0.0.1:5000/us/tfbuild:2.20.0-mkl-py3.13-avx",
        inventory.UNNAMED,
    )
]


def going(*keep: str) -> list[str]:
    return [image.name for image in inventory.prunable([*HERE, entry("r/x:2.20.0-failed", place="r/x")], keep)]


def test_scripts_tell_local_images_by_their_place() -> None:
    """As the reference of the JSON says."""
    assert HERE[0].to_json()["place"] == "here"
    assert entry("r/x:2.20.0", place="r/x").to_json()["place"] == "r/x"


def test_failed_unverified_and_unnamed_local_images_are_prunable() -> None:
    assert going() == [HERE[2].name, HERE[3].name, inventory.UNNAMED]


def test_an_image_pulled_by_digest_is_prunable_once_a_later_one_has_its_name() -> None:
    pulled = replace(entry("ghcr.io/us/tfbuild@sha256:a"), id="2.20.0-mkl-py3.13-avx")
    other = replace(entry("ghcr.io/us/tfbuild:2.20.0-mkl-py3.13-x86-64-v3"), id="2.20.0-mkl-py3.13-x86-64-v3")
    later = replace(entry("ghcr.io/us/tfbuild:2.20.0-mkl-py3.13-avx"), id=pulled.id)
    assert inventory.prunable([pulled, other], ()) == []
    assert inventory.prunable([pulled, later], ()) == [pulled]
    assert inventory.prunable([pulled, other], ("*-avx",)) == [other]


def test_keep_names_the_remaining_images_by_identifier() -> None:
    assert going("2.20.0-mkl-*-x86-64-v3", "2.20.0-mkl-*-avx") == [HERE[1].name, inventory.UNNAMED]
    assert going("*-mkl-*") == [HERE[1].name]
    # Whole names keep an image in one repository, and identifiers wherever it is.
    assert going("tfbuild:*") == [HERE[4].name, inventory.UNNAMED]
    assert going("127.0.0.1:5000/us/tfbuild:2.20.0-mkl-py3.13-avx") == [*(one.name for one in HERE[:4]), HERE[5].name]
    moving = replace(entry("ghcr.io/us/tfbuild:latest-mkl"), id="2.20.0-mkl-py3.13-avx")
    assert inventory.prunable([moving], ("2.20.0-*",)) == []
    other = entry("tfbuild:2.21.0-mkl-py3.13-avx")
    assert inventory.prunable([moving, other], ("2.21.0-*",)) == [moving]


@pytest.mark.parametrize("keep", [("2.20.0-mkl-*", "2.20-*"), ("nothing",)])
def test_a_glob_that_keeps_nothing_is_refused_while_images_would_go(keep: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError, match=rf"--keep '{re.escape(keep[-1])}' matches no image here, and \d images would be removed"
    ):
        going(*keep)
    # A nightly clean-up of an engine without images goes on.
    assert inventory.prunable([entry("r/x:2.20.0-failed", place="r/x")], keep) == []


@pytest.mark.parametrize("keep", [(), ("2.20.0-*",), ("nothing",)])
@pytest.mark.parametrize("name", ["mycompany/prod-app:1.7", "mycompany/prod-app:nightly-unverified", inventory.UNNAMED])
def test_images_not_built_by_tfbuild_are_never_prunable(name: str, keep: tuple[str, ...]) -> None:
    assert inventory.prunable([entry(name, ours=False)], keep) == []


class Busy(Engine):
    """An engine with a container that runs the image `used`."""

    def __init__(self, used: str) -> None:
        self.used, self.removed = used, list[str]()

    def untag(self, ref: str) -> None:
        if ref == self.used:
            raise TfbuildError("the container engine refused: conflict")
        self.removed.append(ref)


def test_an_image_in_use_is_kept_and_the_others_are_removed() -> None:
    engine = Busy(HERE[2].name)
    assert inventory.remove(engine, HERE) == {HERE[2]: "the container engine refused: conflict"}
    assert engine.removed == [*(image.name for image in HERE[:2]), *(image.name for image in HERE[3:5]), HERE[5].digest]


@pytest.mark.parametrize(
    ("created", "shown"),
    [
        ("2026-11-21T09:00:00.123456789Z", "3 h"),
        ("2026-11-09T12:00:00Z", "12 d"),
        ("2026-11-19T12:00:01Z", "48 h"),
        ("2026-11-19T12:00:00Z", "2 d"),
        ("2026-11-09T12:00:00", "12 d"),
        ("", "?"),
        ("yesterday", "?"),
    ],
)
def test_an_age_is_short(created: str, shown: str) -> None:
    assert inventory.age(created, datetime(2026, 11, 21, 12, tzinfo=UTC)) == shown
