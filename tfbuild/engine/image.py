"""An image as the engine describes it, and the parts of its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
