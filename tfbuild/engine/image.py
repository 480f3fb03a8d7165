"""An image as the engine describes it, the parts of its name, and the error for one that was removed meanwhile."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from tfbuild.errors import UnknownImage
from tfbuild.util.terminal import as_text


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on the engine: `size` in bytes, `architecture` as the engine spells it ("amd64").

    `created`: RFC 3339.
    """

    id: str
    labels: Mapping[str, str]
    size: int
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    architecture: str
    repo_digests: tuple[str, ...]
    tags: tuple[str, ...] = ()
    created: str = ""
    # All of its configuration, by the engine's names: User, Cmd, Volumes and so on.
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digests(self) -> frozenset[str]:
        """By which the engine and registries know it."""
        return frozenset({self.id, *(name.rpartition("@")[2] for name in self.repo_digests)})


def parse_image(attrs: Mapping[str, Any]) -> Image:
    """Read what the engine's API returns for an image."""
    config = attrs.get("Config") or {}
    return Image(
        id=attrs["Id"],
        labels=as_text(config.get("Labels")),
        size=attrs["Size"],
        env=tuple(config.get("Env") or ()),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        architecture=attrs["Architecture"],
        repo_digests=tuple(attrs.get("RepoDigests") or ()),
        tags=tuple(attrs.get("RepoTags") or ()),
        created=attrs.get("Created", ""),
        config=config,
    )


def split_tag(ref: str) -> tuple[str, str]:
    """Split "localhost:5000/tfbuild:x" into its repository and its tag; without a tag, that is "latest".

    A colon before the last slash belongs to a port.
    """
    repository, colon, tag = ref.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (ref, "latest")


class Holder(Protocol):
    """An engine, as far as its images are concerned."""

    def exists(self, ref: str) -> bool: ...


@contextmanager
def named_if_removed(engine: Holder, image_id: str, ref: str, use: str) -> Iterator[None]:
    """Raise UnknownImage with the name `ref` if the image is removed during the block: the engine only knows its id.

    `use`: what was done with it, such as "verified". Other missing images stay the errors that they are.
    """
    try:
        yield
    except UnknownImage as error:
        if engine.exists(image_id):
            raise
        raise UnknownImage(f"{ref} was removed while it was {use}", hint="invoke build makes it again") from error
