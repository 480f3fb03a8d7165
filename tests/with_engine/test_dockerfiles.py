"""A committed context, built and run by Docker alone: the command of dockerfiles/README.md in a copy of the repository.

The base image comes from a registry on this machine, under its own name there and by its digest.
"""

import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.project.test_committed import FOLDER
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import serve
from tfbuild.cli.options import certificates
from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine, build
from tfbuild.pipeline import base_image
from tfbuild.plan import Build
from tfbuild.util.progress import Progress
from tools import committed

pytestmark = pytest.mark.engine
SECONDS = 1200
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of a clone that the Dockerfiles take, and a base image by its name and digest in a registry."""

    folder: Path
    base_name: str
    base_digest: str


@pytest.fixture(scope="module")
def official() -> Build:
    return next(build for build in committed.builds() if build.wheel.kind == "official")


@pytest.fixture(scope="module")
def place(engine: Engine, official: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if engine.platform != official.platform:
        pytest.skip(f"the committed official wheel is for {official.platform}")
    work = tmp_path_factory.mktemp("place")
    base = base_image.bootstrap(
        engine, official.base_distribution, progress=Progress(), log=work / "log", ca_cert=certificates("")
    )
    (work / "registry").mkdir()
    with serve(work / "registry") as server:
        name = f"127.0.0.1:{server.port}/library/{official.base_image}"
        engine.tag(base.reference, name)
        try:
            docker("push", "--quiet", name)
            digest = engine.image(name).repo_digests
            (pushed,) = (ref.partition("@")[2] for ref in digest if ref.startswith(f"127.0.0.1:{server.port}/"))
        finally:
            # What is left of it here is another name: FROM has to ask the registry.
            engine.untag(name)
        folder = work / "checkout"
        for part in ("dockerfiles", "templates", "tfbuild/in_container/smoke"):
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy(ROOT / ".dockerignore", folder)
        yield Place(folder=folder, base_name=name, base_digest=pushed)


def docker(*words: str | Path, folder: Path | None = None) -> str:
    """Runs a `docker` that has BuildKit, and gives what it prints."""
    program, env = build.find_program(os.environ)[0], {**os.environ, "DOCKER_BUILDKIT": "1"}
    done = subprocess.run(
        [program, *words], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, f"{shlex.join(map(str, words))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def options_of_this_site(place: Place) -> list[str]:
    """As the README has it for those whose base image and CA are a company's own."""
    ca = certificates("")
    arguments = [f"--build-arg=BASE_NAME={place.base_name}", f"--build-arg=BASE_DIGEST={place.base_digest}"]
    return [*arguments, *([f"--secret=id=ca,src={ca}"] if ca else [])]


@pytest.fixture(scope="module")
def image(engine: Engine, official: Build, place: Place) -> Iterator[str]:
    (shown,) = re.findall(rf"^docker (build .*--file dockerfiles/{official.id}/Dockerfile .+)$", README, re.MULTILINE)
    tag = f"tfbuild-test:plain-{uuid.uuid4().hex[:8]}"
    *words, context = shlex.split(shown.replace(committed.tag(official), tag))
    docker(*words, *options_of_this_site(place), context, folder=place.folder)
    yield tag
    engine.untag(tag)


def test_plain_docker_runs_what_plain_docker_built(engine: Engine, official: Build, image: str, place: Place) -> None:
    code = "import tensorflow as tf; print(tf.__version__, tf.reduce_sum(tf.ones((3, 4))).numpy())"
    assert docker("run", "--rm", image, "python", "-c", code).split() == [official.release, "12.0"]
    labels = read_labels(engine.image(image).labels)
    assert (labels.id, labels.base_name, labels.base_digest) == (official.id, place.base_name, place.base_digest)
