"""The verbs for finished images, on an engine and a registry that answer as real ones do, with what a test put there.

What a registry makes of it is tested in tests/publish/.
"""

import json
import os
import re
import socketserver
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from tests.commandline import invoke
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import INDEXES, gather, labels_of_plan
from tests.publish.fake_images import image as published_image
from tests.rows import each
from tests.servers import Handler, running, serving
from tfbuild.cli.options import registry_of
from tfbuild.cpu import parse
from tfbuild.errors import Stale, Unfinished, UsageError, Yanked
from tfbuild.oci.manifests import digest_of
from tfbuild.pipeline.maker import Maker
from tfbuild.publish import sbom

LABELS = labels_of_plan("2.20.0", "x86-64-v3")
NAME = LABELS["io.tfbuild.id"]


class FakeEngine(Handler):
    """Lists and pulls the images in `images`, by their names."""

    images: dict[str, dict[str, Any]]
    arch = "amd64"

    def answer(self, content: object, code: int = 200) -> None:
        self.say(code, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        name, _, what = self._path().rpartition("/")
        about = {"Version": "28.1", "Os": "linux", "Arch": self.arch, "ApiVersion": "1.43", "MinAPIVersion": "1.24"}
        if name == "/images":
            self.answer([{"Id": row["Id"]} for row in self.images.values()])
        elif rows := [row for ref, row in self.images.items() if name in (f"/images/{ref}", f"/images/{row['Id']}")]:
            self.answer(rows[0])
        elif name.startswith("/images/"):
            self.answer({"message": "no such image"}, 404)
        else:
            self.answer({"version": about, "_ping": "OK", "json": [], "volumes": {}}[what])

    def do_POST(self) -> None:
        """A pull, or another name for an image."""
        if not self._path().endswith("/tag"):
            asked = parse_qs(self.path.partition("?")[2])
            self.images[f"{asked['fromImage'][0]}@{asked['tag'][0]}"] = self.images["arriving"]
        self.answer({"status": "done"})

    def _path(self) -> str:
        return re.sub(r"^/v[\d.]+", "", unquote(self.path.partition("?")[0]))


def here(name: str, labels: dict[str, str] = LABELS, image_id: str = "") -> dict[str, Any]:
    """An image as an engine describes it."""
    return {
        "Id": image_id or digest_of(name.encode()), "Config": {"Labels": labels}, "Size": 10**9, "RepoTags": [name],
        "Architecture": "amd64", "Created": "2026-11-01T00:00:00Z",
    }  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    monkeypatch.delenv("TFBUILD_REGISTRY", raising=False)
    handler = type("Here", (FakeEngine,), {"images": {}})
    with running(socketserver.ThreadingUnixStreamServer(f"{tmp_path}/engine.sock", handler)):
        yield handler


def run(*words: str, code: int = 0) -> tuple[str, str]:
    """What a command prints to stdout and stderr."""
    done = invoke(*words, cwd=Path.cwd(), code=code)
    return done.stdout, done.stderr


def document(*words: str, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code)[0])


# --- push -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(fake: type[FakeRegistry], engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"{fake.host}/us/x"
    monkeypatch.setenv("TFBUILD_REGISTRY", name)
    return name


def test_a_push_is_rehearsed(repository: str, fake: type[FakeRegistry]) -> None:
    published_image(fake, "2.20.0", LABELS)
    tag, digest = f"{repository}:{NAME}", connect(fake).digest(NAME)
    assert document("push", NAME, "--access") == {"image": tag, "there": digest}
    assert run("push", NAME, "--access") == (f"{tag}\n", f"can be pushed; the tag now names {digest}\n")
    del fake.content[f"manifests/{NAME}"]
    assert document("push", NAME, "--access")["there"] is None
    assert run("push", NAME, "--access") == (f"{tag}\n", "can be pushed; the tag does not exist yet\n")


def test_the_indexes_of_an_image_are_computed(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    ref = f"{repository}:{name}@{connect(fake).digest(name)}\n"
    assert run("push", name, "--indexes") == (ref, f"already in the registry; in {', '.join(INDEXES)}\n")
    assert document("push", name, "--indexes")["indexes"] == INDEXES
    for more in ("--access", "--force", "--yank=x"):
        assert "pushes no image" in run("push", name, "--indexes", more, code=UsageError.exit_code)[1]


# --- pull and yank ----------------------------------------------------------------------------------------------------


def test_a_pull_says_what_it_took_and_how_to_run_it(
    repository: str, fake: type[FakeRegistry], engine: type[FakeEngine]
) -> None:
    names = {cpu: published_image(fake, "2.20.0", cpu=cpu) for cpu in ("x86-64-v3", "avx")}
    for name in names.values():
        gather(fake, name)
    manifest = connect(fake).manifest(names["x86-64-v3"])
    assert manifest is not None
    labels = json.loads(fake.content[f"blobs/{manifest.config}"][1])["config"]["Labels"]
    engine.images["arriving"] = here("x", labels, manifest.config)
    Path("cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    words = ("pull", "--cpuinfo=cpuinfo")
    reference, image = f"{repository}@{manifest.digest}", f"{repository}:{names['x86-64-v3']}"
    output, errors = run(*words, "--dry-run")
    assert output == f"{reference}\n"
    assert f"not {names['avx']}: " in errors
    assert "docker run" not in errors
    output, errors = run(*words)
    assert (output, errors.splitlines()[-1]) == (f"{image}\n", f"docker run --rm -it {image} python")
    assert f"not {names['avx']}: " not in errors
    socket = os.environ["DOCKER_HOST"]
    assert f"docker --host {socket} run --rm -it {image} python" in run(*words, f"--engine={socket}")[1]
    row = document(*words)
    assert (row["reference"], row["image"], row["signed"]) == (reference, image, None)
    assert document(*words, "--dry-run")["image"] is None


@each(
    "registry, image, variable, told",
    [
        ("one.site/a", "two.site/b:x", "three.site/c", "one.site/a"),
        ("", "two.site/b:x", "three.site/c", "two.site/b"),
        ("", "us/tfbuild:x", "three.site/c", "three.site/c"),
        ("", "x", "three.site/c", "three.site/c"),
    ],
)
def test_a_registry_is_named_by_the_option_else_the_image_else_the_variable(
    registry: str, image: str, variable: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFBUILD_REGISTRY", variable)
    assert str(registry_of(registry, "", image).repository) == told
    monkeypatch.delenv("TFBUILD_REGISTRY")
    if told == variable:
        with pytest.raises(UsageError, match="no registry is named"):
            registry_of(registry, "", image)


def test_a_yanked_image_is_named(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    gather(fake, name)
    assert run("push", name, "--yank", "crashes") == (f"{repository}:{name}\n", "")
    assert document("push", name, "--yank", "crashes") == {"image": f"{repository}:{name}", "reason": "crashes"}
    # Whatever it was made of: no push of it would be accepted.
    for context in ((), ("--context", f"sha256:{64 * '1'}")):
        assert "was yanked: crashes" in run("verify", name, "--registry", repository, *context, code=32)[1]
    run("push", name, "--registry", repository, "--access", code=Yanked.exit_code)


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_whether_an_image_is_published(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    words = ("verify", name, "--registry", repository)
    assert f"invoke push {repository}:{name} --indexes" in run(*words, code=Unfinished.exit_code)[1]
    gather(fake, name)
    reference = f"{repository}@{connect(fake).digest(name)}"
    assert run(*words) == (f"{reference}\n", f"{name} is published\n")
    printed = document(*words)
    assert (printed["reference"], printed["signed"]) == (reference, None)
    assert printed["rebuild_options"] == f"--no-cache --reuse {reference}"
    run(*words, "--context", f"sha256:{64 * '1'}", code=Stale.exit_code)
    assert "for an IMAGE in a registry" in run("verify", name, "--context", "x", code=UsageError.exit_code)[1]


def test_an_sbom_is_printed(engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an image without files, which this engine cannot send."""
    nothing = sbom.Contents(python=(), debian=(), system={}, built={})
    monkeypatch.setattr(sbom, "read_contents", lambda *_: nothing)
    name = f"ghcr.io/us/x:{NAME}"
    engine.images = {name: here(name)}
    output, errors = run("inspect", NAME, "--sbom")
    assert (json.loads(output)["bomFormat"], errors) == ("CycloneDX", f"note: {NAME} is {name} on this engine\n")


def test_an_engine_elsewhere_is_planned_for(engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine.arch = "arm64"
    with serving(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{host}")
        (planned,) = document("build", "--dry-run", "--cpu", "armv8.2-a")
        document("build", "--dry-run", "--wheel", "official")  # which asks no container for its CPU
        monkeypatch.setattr(Maker, "cpu", lambda _: parse(machine("rhel8-neoverse_v1").cpuinfo()))
        (official,) = document("build", "--dry-run", "--wheel", "official", "--cpu", "host")
    assert (planned["platform"], planned["instruction_set"]) == ("linux/arm64", "armv8.2-a")
    assert official["platform"] == "linux/arm64"
