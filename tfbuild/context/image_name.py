"""The names by which people give an image. They mean the same to every verb.

ID, tfbuild:ID and HOST/PATH:ID are an identifier, alone or after a repository; sha256:... and HOST/PATH@sha256:... are
a digest. On an engine, every other name that it knows is an image's, too.
"""

import re
from dataclasses import dataclass

from tfbuild.context import labels
from tfbuild.context.labels import REPOSITORY
from tfbuild.engine import Engine
from tfbuild.engine.image import split_tag
from tfbuild.errors import UnknownImage, UsageError

# RELEASE-TARGET-pyPYTHON-SET. A bare word of another form is the name of somebody else's image.
IDENTIFIER = re.compile(r"\d+\.\d+\.\d+[\w.]*-[a-z0-9]+-py\d+\.\d+-[\w.-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """The parts of a name. `repository`: "tfbuild", "HOST/PATH", or ""; `reference`: a tag, a digest, or ""."""

    repository: str
    reference: str

    @property
    def registry(self) -> str:
        """The repository if it is in a registry, else ""."""
        host, slash, _ = self.repository.partition("/")
        return self.repository if slash and ("." in host or ":" in host or host == "localhost") else ""


def parse(name: str) -> ImageName:
    """Split a name into its parts. A word without a repository is a reference; a path without a tag has none."""
    if name.startswith("sha256:"):
        return ImageName(repository="", reference=name)
    before, _, digest = name.partition("@")
    repository, colon, tag = before.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = before, ""
    if tag or digest:
        return ImageName(repository=repository, reference=digest or tag)
    return ImageName(repository=before, reference="") if "/" in before else ImageName(repository="", reference=before)


def find(engine: Engine, name: str) -> str:
    """Return the engine's own name of the image that `name` means.

    An identifier without a repository of a registry may have any repository on the engine, because a pulled image has
    that of its registry. Raises UnknownImage if there is no such image, UsageError if there are several.
    """
    parsed = parse(name)
    identifier = parsed.reference
    if not IDENTIFIER.fullmatch(identifier):
        return name
    own = f"{REPOSITORY}:{identifier}"
    for exact in (name,) if parsed.repository else (own,):
        if engine.exists(exact):
            return exact
    images = {image.id: _tagged(image.tags, identifier) for image in engine.labelled(labels.ID)}
    names = {image: found for image, found in images.items() if found}
    if parsed.repository in ("", REPOSITORY) and len(names) == 1:
        return next(iter(names.values()))
    if parsed.repository in ("", REPOSITORY) and names:
        raise UsageError(
            f"{name} may be any of several images: {', '.join(sorted(names.values()))}", hint="give one of these names"
        )
    here = f"here is {', '.join(sorted(names.values()))}" if names else "invoke images lists all images"
    raise UnknownImage(f"no image {name!r} on this engine", hint=here)


def _tagged(tags: tuple[str, ...], identifier: str) -> str:
    """Return the first name with this tag, or ""."""
    return min((tag for tag in tags if split_tag(tag)[1] == identifier), default="")
