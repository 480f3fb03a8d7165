"""Labels as they are written, and as anybody may have written them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbuild import plan
from tfbuild.context import labels
from tfbuild.context.labels import Planned, labels_of, read_labels
from tfbuild.engine import Engine, Image
from tfbuild.engine.image import parse_image
from tfbuild.errors import UnknownImage, UsageError
from tfbuild.plan import Request
from tfbuild.publish import indexes

DIGEST = f"sha256:{64 * 'a'}"
# More digits than Python reads as a number.
ENDLESS = "2." + 5001 * "1"


def build() -> plan.Build:
    return plan.select(Request(target="cuda", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)


def test_what_is_written_is_read() -> None:
    planned_build = build()
    image_labels = read_labels(labels_of(planned_build))
    assert image_labels.id == planned_build.id
    assert labels.identifier("x", labels_of(planned_build)) == planned_build.id
    assert image_labels.get("features").split() == list(planned_build.instruction_set.features)
    assert (image_labels.get("target"), image_labels.get("cuda")) == ("cuda", planned_build.cuda)
    # The Dockerfile's arguments, which the builder fills in.
    assert (image_labels.context, image_labels.base_name, image_labels.base_digest) == (
        "${CONTEXT_DIGEST}", "${BASE_NAME}", "${BASE_DIGEST}"
    )  # fmt: skip
    assert image_labels.get("none of tfbuild's") == ""
    assert set(labels.prefixed(image_labels.own)) <= set(labels_of(planned_build))


@pytest.mark.parametrize(
    "given", [None, "x", ["io.tfbuild.id"], 1, {}, {"id": "x"}, {1: {2: 3}}, {"io.tfbuild.": None}]
)
def test_labels_of_any_shape_are_read(given: object) -> None:
    image_labels = read_labels(given)
    assert (image_labels.id, image_labels.context, image_labels.base_digest) == ("", "", "")
    with pytest.raises(UnknownImage, match=r"x was not made by tfbuild: it has no io\.tfbuild labels"):
        labels.identifier("x", given)


@given(st.dictionaries(st.text(), st.text(st.characters() | st.just("\ud800"))))
def test_labels_of_any_letters_can_be_written(given_labels: dict[str, str]) -> None:
    foreign = {f"{labels.PREFIX}{name}": value for name, value in given_labels.items()}
    attributes = {"Id": DIGEST, "Size": 1, "Architecture": "amd64", "Config": {"Labels": foreign}}
    for name, value in parse_image(attributes).labels.items():
        assert (name + value).encode()
    with suppress(UnknownImage):
        Planned.from_labels("x", labels_of(build()) | foreign, "amd64")


@pytest.mark.parametrize("text", ["", "newest", ENDLESS, 5001 * "9", "1" * 65, "2.20.0\n\x1b", "²"])
def test_what_is_no_release_is_told_from_one(text: str) -> None:
    assert not plan.is_version(text)
    assert plan.is_version("2.20.0rc1")
    assert plan.is_version("1" * 64)


class Holding(Engine):
    """An engine that has these images."""

    def __init__(self, *images: Image) -> None:
        self.images = images

    def labelled(self, label: str) -> list[Image]:
        return [image for image in self.images if label in image.labels]

    def history(self, ref: str) -> tuple[str, ...]:
        return ()


def image(given: dict[str, str], *tags: str) -> Image:
    return Image(
        id=DIGEST, labels=given, size=1, env=(), architecture="amd64", repo_digests=(), tags=tags,
        created="2026-11-01T00:00:00Z",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["release", "python", "id", "platform", "features", "instruction-set", "target"])
@pytest.mark.parametrize("value", [ENDLESS, 5001 * "1", "\x1b[2J", ""])
def test_labels_of_any_content_can_be_read(name: str, value: str) -> None:
    read = indexes.of_labels(labels_of(build()) | {labels.PREFIX + name: value}, "", DIGEST)
    assert read is None or name in ("features", "instruction-set")


@pytest.mark.parametrize("release", [ENDLESS, 5001 * "1"])
def test_a_release_that_cannot_be_read_is_an_unreadable_label(release: str) -> None:
    with pytest.raises(UnknownImage, match=r"unreadable label io\.tfbuild\.release"):
        Planned.from_labels("x", labels_of(build()) | {"io.tfbuild.release": release}, "amd64")


GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "fork/tfbuild"
}  # fmt: skip
GITLAB = {"GITLAB_CI": "true", "CI_PROJECT_URL": "https://gitlab.example/us/tfbuild"}


@pytest.mark.parametrize(
    ("env", "source"),
    [
        ({}, ""),
        (GITHUB, "https://github.com/fork/tfbuild"),
        (GITLAB, "https://gitlab.example/us/tfbuild"),
        (GITHUB | {"TFBUILD_IMAGE_SOURCE": "https://github.com/us/other"}, "https://github.com/us/other"),
        (GITHUB | {"TFBUILD_IMAGE_SOURCE": ""}, "https://github.com/fork/tfbuild"),
        ({"GITHUB_ACTIONS": "true"}, ""),
        ({"GITHUB_REPOSITORY": "fork/tfbuild"}, ""),
    ],
)
def test_an_image_names_the_repository_that_builds_it(env: dict[str, str], source: str) -> None:
    expected = {"org.opencontainers.image.source": source} if source else {}
    assert labels.given_at_build(env) == expected


@pytest.mark.parametrize("source", ["github.com/us/tfbuild", "https://x y", "https://x/$HOME", "file:///etc"])
def test_an_address_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"TFBUILD_IMAGE_SOURCE is .* not a URL"):
        labels.given_at_build({"TFBUILD_IMAGE_SOURCE": source})
