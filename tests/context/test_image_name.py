"""An image has the same names for every verb: ID, tfbuild:ID, R:ID."""

import pytest

from tests.pipeline.memory_engine import holding
from tfbuild.context import labels
from tfbuild.errors import UnknownImage

ID = "2.21.0-mkl-py3.11-f16c"
R = "ghcr.io/us/tfbuild"
DIGEST = f"sha256:{64 * '0'}"


@pytest.mark.parametrize(
    ("name", "repository", "reference"),
    [
        (ID, "", ID), (f"tfbuild:{ID}", "tfbuild", ID), (f"{R}:{ID}", R, ID),
        (f"localhost:5000/x:{ID}", "localhost:5000/x", ID),
        (f"{R}@{DIGEST}", R, DIGEST), (f"{R}:{ID}@{DIGEST}", R, DIGEST),
        (f"localhost:5000/x@{DIGEST}", "localhost:5000/x", DIGEST),
        (DIGEST, "", DIGEST), ("localhost:5000/x", "localhost:5000/x", ""),
        ("us/tensorflow:2.20", "us/tensorflow", "2.20"), ("", "", ""),
    ],
)  # fmt: skip
def test_a_name_has_a_repository_and_a_tag_or_a_digest(name: str, repository: str, reference: str) -> None:
    assert labels.parse_name(name) == (repository, reference)


@pytest.mark.parametrize(
    ("here", "name", "found"),
    [
        ({f"tfbuild:{ID}": "A"}, ID, f"tfbuild:{ID}"),
        ({f"tfbuild:{ID}": "A"}, f"tfbuild:{ID}", f"tfbuild:{ID}"),
        # Pulled, and not built here.
        ({f"{R}:{ID}": "A"}, ID, f"{R}:{ID}"),
        ({f"{R}:{ID}": "A"}, f"tfbuild:{ID}", f"{R}:{ID}"),
        ({f"{R}:{ID}": "A"}, f"{R}:{ID}", f"{R}:{ID}"),
        # What was built here comes first; a registry's name is that of its own image alone.
        ({f"tfbuild:{ID}": "A", f"{R}:{ID}": "B"}, ID, f"tfbuild:{ID}"),
        ({f"tfbuild:{ID}": "A", f"{R}:{ID}": "B"}, f"{R}:{ID}", f"{R}:{ID}"),
        # One image, two names.
        ({f"{R}:{ID}": "A", f"quay.io/x:{ID}": "A"}, ID, f"{R}:{ID}"),
        # Names of others are the engine's to judge.
        ({}, "tensorflow/tensorflow:2.20.0", "tensorflow/tensorflow:2.20.0"),
        ({}, "mine", "mine"),
        ({}, DIGEST, DIGEST),
        ({}, "", ""),
    ],
)
def test_an_image_is_found_by_each_of_its_names(here: dict[str, str], name: str, found: str) -> None:
    assert labels.find_image(holding(here), name) == found


def test_a_name_that_may_be_several_images_is_refused_with_all_of_them() -> None:
    engine = holding({f"{R}:{ID}": "A", f"quay.io/x:{ID}": "B"})
    for name in (ID, f"tfbuild:{ID}"):
        with pytest.raises(UnknownImage, match=rf"hint: this engine has {R}:{ID}, quay.io/x:{ID}"):
            labels.find_image(engine, name)


def test_an_image_of_a_registry_that_was_not_pulled_is_not_replaced_by_another_one() -> None:
    with pytest.raises(UnknownImage, match=rf"hint: this engine has tfbuild:{ID}"):
        labels.find_image(holding({f"tfbuild:{ID}": "A"}), f"{R}:{ID}")
    with pytest.raises(UnknownImage, match="hint: docker image ls"):
        labels.find_image(holding({}), ID)
