"""What `prune` takes from a real engine: tfbuild's own images, and nothing that somebody built on one."""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.plan import Request
from tfbuild.publish import inventory
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
BUILD = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)


class Shop:
    """Small images, each known by its id, under names in a repository of this test's own."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.repository = f"tfbuild-test/prune-{secrets.token_hex(4)}"
        self.ids: list[str] = []
        self.labels: dict[str, str] = {}

    def build(self, tag: str, *lines: str) -> str:
        folder = self.folder / secrets.token_hex(4)
        folder.mkdir()
        (folder / "content").write_text(secrets.token_hex(8))
        (folder / "Dockerfile").write_text("\n".join((*lines, "")))
        name = f"{self.repository}:{tag}"
        settings = BuildSettings(log=folder / "log", progress=Progress(), labels=self.labels)
        self.ids.append(self.engine.build(folder, settings, tag=name))
        return self.ids[-1]

    def tfbuilds(self, tag: str) -> str:
        """As tfbuild's template ends: its last instruction gives all labels, some by the Dockerfile's arguments."""
        text = " ".join(f"{name}={dockerfile.quoted(value)}" for name, value in labels_of(BUILD).items())
        arguments = ("ARG BASE_NAME=x", "ARG BASE_DIGEST=y", "ARG CONTEXT_DIGEST=sha256:z")
        return self.build(
            tag, "FROM scratch", "LABEL io.tfbuild.base=bookworm", "COPY content /", *arguments, f"LABEL {text}"
        )

    def unname(self, tag: str) -> None:
        """As a newer build of its name does; nothing removes the image."""
        self.engine.tag(self.build("other", "FROM scratch", "COPY content /"), f"{self.repository}:{tag}")

    def going(self, *keep: str) -> list[inventory.Entry]:
        entries = inventory.local(self.engine, self.folder / "none", None)
        return [one for one in inventory.prunable(entries, keep) if one.digest in self.ids]


@pytest.fixture
def shop(engine: Engine, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(engine, tmp_path)
    yield shop
    for image in reversed(shop.ids):
        if engine.exists(image):
            engine.remove(image)


def test_images_that_somebody_built_on_one_of_tfbuilds_stay_under_any_name_and_without_one(shop: Shop) -> None:
    shop.tfbuilds(BUILD.id)
    base = f"FROM {shop.repository}:{BUILD.id}"
    named = {
        "1.7": (base, "ENV APP=1"),
        "nightly-unverified": (base, "COPY content /app"),
        # Even where the name is one that tfbuild gives, and where the labels are repeated in part.
        f"{BUILD.id}-failed": (base, 'CMD ["app"]'),
        "latest-mkl": (base, "LABEL version=2"),
        f"{BUILD.id}-unverified": (base, f"LABEL io.tfbuild.id={BUILD.id}"),
    }
    for tag, lines in named.items():
        shop.build(tag, *lines)
    shop.build("dangling", base, "ENV APP=2")
    shop.unname("dangling")
    container = subprocess.run(
        ["docker", "create", f"{shop.repository}:{BUILD.id}", "x"], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        committed = ["docker", "commit", container, f"{shop.repository}:{BUILD.id}-committed"]
        shop.ids.append(subprocess.run(committed, check=True, capture_output=True, text=True).stdout.strip())
    finally:
        subprocess.run(["docker", "rm", container], check=True, capture_output=True)
    assert shop.going() == []
    assert shop.going("2.20.0-*") == []
    assert [one.name for one in shop.going("1.7")] == [f"{shop.repository}:{BUILD.id}"]


def test_tfbuilds_own_go_without_a_name_or_a_proof(shop: Shop) -> None:
    ids = {
        tag: shop.tfbuilds(tag) for tag in (BUILD.id, f"{BUILD.id}-failed", f"{BUILD.id}-unverified", "mine", "lost")
    }
    shop.unname("lost")
    going = shop.going()
    assert {one.digest for one in going} == {ids[f"{BUILD.id}-failed"], ids[f"{BUILD.id}-unverified"], ids["lost"]}
    assert shop.going("2.20.0-*") == []
    assert inventory.remove(shop.engine, going) == {}
    left = {tag for tag, image in ids.items() if shop.engine.exists(image)}
    # A name of the user's own stays, though it stands for an image of tfbuild's.
    assert left == {BUILD.id, "mine"}
    assert {one.digest for one in shop.going("mine")} == {ids[BUILD.id]}


def test_the_label_of_the_repository_is_set_and_leaves_the_image_tfbuilds_own(shop: Shop) -> None:
    shop.labels = {"org.opencontainers.image.source": "https://github.com/us/tfbuild"}
    image = shop.engine.image(shop.tfbuilds(f"{BUILD.id}-failed"))
    assert image.labels["org.opencontainers.image.source"] == "https://github.com/us/tfbuild"
    assert image.labels["io.tfbuild.id"] == BUILD.id
    assert [one.name for one in shop.going()] == [f"{shop.repository}:{BUILD.id}-failed"]


def test_the_verb_shows_what_would_go(shop: Shop, invoke: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    shop.tfbuilds(f"{BUILD.id}-failed")
    shop.build("1.7", f"FROM {shop.repository}:{BUILD.id}-failed", "ENV APP=1")
    document = json.loads(invoke("prune", "--dry-run", "--json").stdout)
    assert [name for name in document["going"] if name.startswith(shop.repository)] == [
        f"{shop.repository}:{BUILD.id}-failed"
    ]
    assert document["removed"] == []
