"""An engine whose images are rows in memory, behind the interface of Docker's SDK, with a registry that it pulls from.

Builds are recorded, and make what is given here; tests/with_engine has the real one.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import docker
import pytest

from tfbuild import plan
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.oci.references import split_tag
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request
from tfbuild.util.progress import Progress


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def row(name: str, **more: Any) -> dict[str, Any]:
    """What an engine says of an image."""
    image = {"Id": digest(f"id of {name}"), "Size": 1, "Architecture": "amd64", "RepoTags": [name], "RepoDigests": []}
    return {**image, "Config": {"Labels": {}}, "RootFS": {"Layers": [digest(f"layer of {name}")]}, **more}


class Images:
    """The images, in place of the SDK's: `rows` are here, `registry` has digests by name, None where none answers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.registry: dict[str, str] | None = {}
        self.pulled: dict[str, Any] = {}  # what the engine says of an image that it pulls

    def get(self, ref: str) -> Any:
        for image in self.rows:
            if ref in (image["Id"], *image["RepoTags"], *image["RepoDigests"]):
                return SimpleNamespace(
                    attrs=image,
                    id=image["Id"],
                    tag=lambda repository, tag, image=image: self.named(f"{repository}:{tag}", image),
                )
        raise docker.errors.ImageNotFound(f"no such image: {ref}")

    def named(self, name: str, image: dict[str, Any]) -> None:
        for other in self.rows:
            other["RepoTags"] = [tag for tag in other["RepoTags"] if tag != name]
        image["RepoTags"].append(name)

    def remove(self, ref: str, *, noprune: bool) -> None:
        image = self.get(ref).attrs
        image["RepoTags"] = [tag for tag in image["RepoTags"] if tag != ref]
        image["RepoDigests"] = [name for name in image["RepoDigests"] if name != ref]

    def load(self, file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file) as archive:
            content = archive.extractfile("manifest.json")
            assert content is not None
            self.rows += json.load(content)

    def get_registry_data(self, name: str) -> Any:
        if self.registry is None or name not in self.registry:
            raise docker.errors.APIError("x", explanation="manifest unknown" if self.registry else None)
        return SimpleNamespace(id=self.registry[name])


class Api:
    timeout = 60.0

    def __init__(self, images: Images) -> None:
        self.shown, self.imported = images, list[tuple[bytes, list[str]]]()

    def images(self, filters: dict[str, str]) -> list[dict[str, Any]]:
        return [image for image in self.shown.rows if filters["label"] in image["Config"]["Labels"]]

    def pull(self, ref: str, **_: Any) -> list[dict[str, Any]]:
        name, tagged = (ref.partition("@")[0], []) if "@" in ref else (split_tag(ref)[0], [ref])
        known = {f"{split_tag(tag)[0]}@{value}" for tag, value in (self.shown.registry or {}).items()}
        known |= set(self.shown.registry or {})
        if ref not in known:
            return [{"error": f"{ref} not found"}]
        digests = [ref] if "@" in ref else [f"{name}@{(self.shown.registry or {})[ref]}"]
        self.shown.rows.append(row(ref, RepoTags=tagged, RepoDigests=digests, **self.shown.pulled))
        return []

    def import_image_from_file(self, path: str, *, repository: str, tag: str, changes: tuple[str, ...] = ()) -> None:
        self.imported.append((Path(path).read_bytes(), list(changes)))
        name, _, value = (changes or ("",))[0].removeprefix("LABEL ").partition("=")
        image = row(f"{repository}:{tag}", Config={"Labels": {name: value}}, Created="2026-11-26T00:00:00+00:00")
        self.shown.named(f"{repository}:{tag}", image)
        self.shown.rows.append(image)


class MemoryEngine(Engine):
    """`works`: what the builder does for each stage ("" for the last one), after the files that it `made`."""

    cpus, memory = 4, 16 << 30

    def __init__(self, root: Path) -> None:
        self.images = Images()
        self.api = Api(self.images)
        info = {"DockerRootDir": str(root)}
        client = SimpleNamespace(images=self.images, api=self.api, info=lambda: info)
        client.version = lambda: {"Version": "29", "Os": "linux", "Arch": "amd64"}
        super().__init__(client)
        self.jobs: list[tuple[str, str, BuildSettings, dict[str, str]]] = []
        self.labels: dict[str, str] = {}
        self.made: dict[str, dict[str, bytes]] = {}
        self.works: Callable[[BuildSettings], object] = lambda _: None

    @property
    def names(self) -> dict[str, str]:
        """The id of the image that each name stands for."""
        return {name: image["Id"] for image in self.images.rows for name in image["RepoTags"]}

    def require_buildkit(self) -> None:
        self.asked = True

    @contextmanager
    def watched(self, use: str) -> Iterator[Callable[[], None]]:
        yield lambda: None

    def build(self, context: Path, settings: BuildSettings) -> None:
        secrets = {name: path.read_text() for name, path in settings.secrets.items()}
        tag, args, output = settings.tag, settings.build_args, settings.output
        self.jobs.append((settings.stage, "" if output else tag, settings, secrets))
        if settings.stage != "kept":
            self.works(settings)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            for name, content in self.made.get(settings.stage, {}).items():
                (output / name).write_bytes(content)
            return
        own = {"id": split_tag(tag)[1].removesuffix("-unverified"), "context": args.get("CONTEXT_DIGEST", "")}
        labels = {**self.labels, **{f"io.tfbuild.{name}": value for name, value in own.items()}}
        labels["org.opencontainers.image.base.digest"] = args.get("BASE_DIGEST", "")
        image = row(tag, Id=digest(f"{tag} {len(self.jobs)}"), Config={"Labels": labels})
        self.images.named(tag, image)
        image["RepoTags"] = [tag]
        self.images.rows.append(image)

    def save(self, names: Sequence[str], path: Path) -> None:
        rows = [{**self.images.get(name).attrs, "RepoTags": [name]} for name in names]
        path.with_name("images").write_text(json.dumps(rows))
        with tarfile.open(path, "w") as archive:
            archive.add(path.with_name("images"), "manifest.json")


BASE = digest("base")


def chosen(**options: Any) -> Build:
    request = Request(release="2.20.0", target="mkl", cpu="avx", platform="linux/amd64")
    return plan.select(replace(request, **options), None)


OFFICIAL, COMPILED = chosen(wheel="official"), chosen()


def engine_at(folder: Path) -> MemoryEngine:
    """An engine whose files are in this folder, and a registry with the bases of both builds."""
    made = MemoryEngine(folder)
    made.images.registry = {OFFICIAL.base_image: BASE, COMPILED.base_image: BASE}
    return made


def holding(names: Mapping[str, str]) -> MemoryEngine:
    """An engine that only has images of tfbuild's, by their names."""
    made = MemoryEngine(Path("/"))
    for image in dict.fromkeys(names.values()):
        tags = [name for name, other in names.items() if other == image]
        made.images.rows.append(row(tags[0], Id=image, RepoTags=tags, Config={"Labels": {labels.ID_LABEL: tags[0]}}))
    return made


@pytest.fixture
def engine(tmp_path: Path) -> MemoryEngine:
    return engine_at(tmp_path)


@dataclass(frozen=True, kw_only=True)
class MemoryMaker(Maker):
    engine: MemoryEngine


def maker(engine: MemoryEngine, folder: Path, **run: Any) -> tuple[Maker, io.StringIO]:
    """Return a maker on that engine, and what it says."""
    said = io.StringIO()
    run = {"work": folder / "build", "reports": folder / "reports", "disk": 0, "throughput": False, **run}
    return MemoryMaker(run=Run(**run), progress=Progress(said), engine=engine), said
