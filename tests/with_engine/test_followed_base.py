"""A base that the user names: the engine's copy, or what its tag names in its registry now."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, made, place, server
from tfbuild.context.dockerfile import Base
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry
from tfbuild.pipeline import base_image as bases
from tfbuild.util.progress import Progress

__all__ = ["made", "place", "server"]  # fixtures
pytestmark = pytest.mark.engine


def test_a_rebuild_follows_the_tag_of_a_base_and_other_builds_take_the_engines_copy(
    engine: Engine, made: Callable[..., str], place: Registry, server: Server, tmp_path: Path
) -> None:
    old, new = made(build("x86-64-v3")), made(build("x86-64-v4"))
    name = f"{place.repository}:12"

    def resolve(*, follow: bool) -> Base:
        return bases.resolve(engine, "", "", name, progress=Progress(), log=tmp_path / "log", follow=follow)

    try:
        engine.tag(old, name)
        # Of no registry: as it is.
        assert resolve(follow=True).digest == engine.image(old).id
        digests = []
        for image in (old, new):
            engine.tag(image, name)
            engine.push(name, Progress())
            digests.append(place.digest("12"))
        # Another machine pushed the update: here the tag is still the old image.
        engine.tag(old, name)
        assert resolve(follow=False) == Base(reference=name, name=name, digest=digests[0])
        followed = resolve(follow=True)
        assert followed == Base(reference=f"{place.repository}@{digests[1]}", name=name, digest=digests[1])
        assert engine.image(followed.reference).id == engine.image(new).id
        # Where the registry does not answer, the copy that was pulled before.
        server.kill()
        assert resolve(follow=True).digest == digests[0]
    finally:
        server.start()
        engine.untag(name)
