"""By what CI decides whether an image is published: its tag, context, base, SBOM, provenance, indexes and yanks."""

from typing import Any

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import INDEXES, attach, digest, gather, image
from tfbuild.errors import RegistryRefused, Stale, TfbuildError, Unfinished, UnknownImage, UsageError, Yanked
from tfbuild.oci import client, manifests
from tfbuild.oci.manifests import digest_of
from tfbuild.pipeline.build_context import image_digest
from tfbuild.publish import indexes, pushing

CONTEXT = f"sha256:{64 * 'c'}"


@pytest.fixture
def name(fake: type[FakeRegistry]) -> str:
    """An image of CONTEXT, on a base in the same registry which has not changed since."""
    fake.content["manifests/slim"] = (manifests.INDEX, b"{}")
    base = digest_of(b"{}")
    labels = {
        "io.tfbuild.context": image_digest(CONTEXT, base),
        "org.opencontainers.image.base.name": f"{fake.host}/us/x:slim",
        "org.opencontainers.image.base.digest": base,
    }
    pushed = image(fake, "2.20.0", labels)
    gather(fake, pushed)
    return pushed


def state(fake: type[FakeRegistry], name: str, context: str = CONTEXT) -> None:
    """Decide as `verify --registry --context` does."""
    registry = connect(fake)
    found = pushing.find_published(registry, name)
    base = pushing.base_of(found)
    pushing.refuse_outdated(found, context)
    pushing.refuse_unfinished(registry, found, base)


def test_a_published_image_is_left_alone(fake: type[FakeRegistry], name: str) -> None:
    before = dict(fake.content)
    for named in (name, f"{connect(fake).repository}:{name}"):
        state(fake, named)
    assert fake.content == before
    asked: list[str] = []
    found = pushing.find_published(connect(fake), name, asked.append)
    assert asked == [found.reference]
    assert found.to_json() == {
        "id": name,
        "reference": f"{connect(fake).repository}@{digest(fake, name)}",
        "digest": digest(fake, name),
        "config": found.manifest.config,
    }


CHANGES: list[tuple[Any, type[TfbuildError], str]] = [
    (lambda fake, name: fake.content.pop(f"manifests/{name}"), UnknownImage, "has no 2.20.0-mkl"),
    (lambda fake, _: [fake.content.pop(f"manifests/{tag}") for tag in INDEXES], Unfinished,
     "2.20-mkl, 2.20.0-mkl, latest-mkl in .* do not match the fixed tags"),
    (lambda fake, name: attach(fake, digest(fake, name), client.SBOM), Unfinished, "has no SBOM or no provenance"),
    (
        lambda fake, name: fake.content.update({"manifests/slim": (manifests.INDEX, b'{"new": 1}')}),
        Stale, "its base .*:slim was sha256:.* and is now sha256:",
    ),
    (lambda fake, name: indexes.record_yank(connect(fake), name, "crashes"), Yanked, "was yanked: crashes"),
    (
        lambda fake, name: fake.content.update(
            {f"manifests/{name}": fake.content[f"manifests/{image(fake, '2.14.1')}"]}
        ),
        RegistryRefused, "its tag was moved",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "reason"), CHANGES)
def test_what_is_missing_or_old_has_a_code_of_its_own(
    change: Any, error: type[TfbuildError], reason: str, fake: type[FakeRegistry], name: str
) -> None:
    change(fake, name)
    with pytest.raises(error, match=reason):
        state(fake, name)


def test_an_image_of_another_context_is_built_again(fake: type[FakeRegistry], name: str) -> None:
    with pytest.raises(Stale, match="was made from another context"):
        state(fake, name, f"sha256:{64 * '0'}")
    with pytest.raises(UsageError, match="is not the digest of a context"):
        state(fake, name, "latest")


@pytest.mark.parametrize(
    ("base", "note"),
    [
        ("x:gone", "has no tag gone"),
        ("tfbuild-base:bookworm", "it was made from Debian's packages"),
        ("no name", "is not an image with a tag"),
    ],
)
def test_a_base_that_cannot_be_compared_is_said_and_no_reason_to_build(
    base: str, note: str, fake: type[FakeRegistry]
) -> None:
    base = f"{fake.host}/us/{base}" if base.startswith("x:") else base
    found = pushing.find_published(connect(fake), image(fake, "2.20.0", {"org.opencontainers.image.base.name": base}))
    compared = pushing.base_of(found)
    assert note in compared.note
    assert not compared.updated


def test_a_compiled_image_is_rebuilt_without_compiling(fake: type[FakeRegistry], name: str) -> None:
    found = pushing.find_published(connect(fake), name)
    assert pushing.rebuild_options(found) == f"--no-cache --reuse {found.reference}"
    official = image(fake, "2.20.0", {"io.tfbuild.wheel": "official"})
    assert pushing.rebuild_options(pushing.find_published(connect(fake), official)) == "--no-cache"
