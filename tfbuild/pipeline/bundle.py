"""A bundle: what builds download, as images in one file of `docker save`, with a list of them at its end.

Each image is a stage of the Dockerfile, which takes it by an argument in the stage's place. The file has shared
layers once.
"""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any

import msgspec

from tfbuild.engine import Engine
from tfbuild.engine.faults import translated
from tfbuild.errors import BadMirror, UnknownImage
from tfbuild.pipeline.build_context import Base, Context, image_digest
from tfbuild.plan import Build
from tfbuild.util.files import Foreign, decode, members
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import cause

SCHEMA = "tfbuild.bundle/2"
LIST = "bundle.json"
# In a file of `docker save`: how Docker lists its images, and since Docker 25 how OCI does.
MANIFEST, INDEX = "manifest.json", "index.json"
MOST_LIST = 1 << 24
REPOSITORY = "tfbuild-bundle"
# The stages that download, by the arguments that replace them: for a compile, and for an image.
SYSTEM, FETCHED, VENV = "SYSTEM", "FETCHED", "VENV"
STAGES = {SYSTEM: "system", FETCHED: "fetch", VENV: "packages"}
BUNDLE_HINT = "invoke bundle with the same options, on a machine with a network"


class BundledBuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A build's images, each by the argument that takes it; `context`: its context's digest; `base`: name, digest."""

    id: str
    context: str
    base: tuple[str, str]
    images: dict[str, str]


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of bundle.json; `layers`: the digests of each image's layers, by its name."""

    builds: list[BundledBuild]
    layers: dict[str, list[str]]
    schema: str = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Bundle:
    path: Path
    listing: Listing

    def find(self, build: Build, context: Context, *, image: bool = False) -> BundledBuild:
        """Return the images of a build; `image`: for its image, not its wheel alone.

        Raises BadMirror if the bundle was made for others, or for another context.
        """
        row = next((row for row in self.listing.builds if row.id == build.id), None)
        if row is None:
            known = ", ".join(row.id for row in self.listing.builds)
            raise BadMirror(f"{self.path} is not for {build.id}, but for {known}", hint=BUNDLE_HINT)
        if row.context != context.digest:
            raise BadMirror(f"{self.path} was made with other options, or by another tfbuild", hint=BUNDLE_HINT)
        if image and VENV not in row.images:
            raise BadMirror(f"{self.path} lacks what an image needs", hint="invoke bundle without --wheel-only")
        return row

    def load(self, engine: Engine, build: Build, context: Context, progress: Progress) -> Base:
        """Load the images of a build, if the engine lacks them, and return its base. Raises BadMirror."""
        row = self.find(build, context)
        name, digest = row.base
        if not all(self._is_on(engine, image) for image in row.images.values()):
            with progress.step(f"load {self.path}"), translated(str(self.path)), self.path.open("rb") as file:
                engine.client.images.load(file)
            if lacking := [image for image in row.images.values() if not self._is_on(engine, image)]:
                raise BadMirror(f"{self.path} has a different {lacking[0]} than it lists", hint=BUNDLE_HINT)
        return Base(reference=row.images[SYSTEM], name=name, digest=digest)

    def _is_on(self, engine: Engine, name: str) -> bool:
        try:
            return list(engine.image(name).layers) == self.listing.layers[name]
        except UnknownImage:
            return False


def image_name(context: Context, base: Base, argument: str) -> str:
    """Return the name of the image that takes the place of a stage."""
    key = image_digest(context.digest, base.digest).partition(":")[2][:12]
    return f"{REPOSITORY}:{key}-{STAGES[argument]}"


def write_bundle(engine: Engine, path: Path, builds: list[BundledBuild]) -> None:
    """Save these builds' images, and their list, to `path`. Raises TransferFailed, and OSError if that is removed."""
    names = list(dict.fromkeys(name for row in builds for name in row.images.values()))
    listing = Listing(builds=builds, layers={name: list(engine.image(name).layers) for name in names})
    engine.save(names, path)
    text = msgspec.json.format(msgspec.json.encode(listing), indent=2)
    member = tarfile.TarInfo(LIST)
    member.size = len(text)
    with path.open("r+b") as file, tarfile.open(fileobj=file, mode="a") as archive:
        archive.addfile(member, io.BytesIO(text))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle's list. Raises BadMirror, also for one with an image that is not listed, or not named by us."""
    texts: dict[str, bytes] = {}
    try:
        with Foreign(path, MOST_LIST) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in members(archive, str(path)):
                name = normpath(member.name)
                if name in (LIST, MANIFEST, INDEX) and (content := archive.extractfile(member)):
                    texts[name] = content.read(MOST_LIST)
        listing = decode(texts[LIST], Listing)
        tags = {str(tag) for row in decode(texts[MANIFEST], list[dict[str, Any]]) for tag in row.get("RepoTags") or ()}
        rows = decode(texts.get(INDEX, b"{}"), dict[str, Any]).get("manifests", ())
        tags |= {str(row["annotations"]["io.containerd.image.name"]).removeprefix("docker.io/library/") for row in rows}
        if strangers := sorted(tags - {name for name in listing.layers if name.startswith(f"{REPOSITORY}:")}):
            raise ValueError(f"it has an image that it does not list: {strangers[0][:200]}")
    except (OSError, tarfile.TarError, KeyError, ValueError, AttributeError, TypeError) as error:
        raise BadMirror(f"{path} is not a bundle, or is damaged: {cause(error)}", hint=BUNDLE_HINT) from error
    if listing.schema != SCHEMA:
        raise BadMirror(f"{path} is {listing.schema}, not {SCHEMA}", hint=BUNDLE_HINT)
    return Bundle(path=path, listing=listing)
