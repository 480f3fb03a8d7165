"""The verbs for finished images, on an engine and a registry that answer as real ones do, with what a test put there.

What a registry makes of it is tested in tests/publish/.
"""

import json
import re
import socketserver
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

from tests.commandline import answer, invoke
from tests.cpu.machines import machine
from tests.engine.api import EngineApi
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather
from tests.publish.fake_images import image as published_image
from tests.publish.test_local_images import LABELS, NAME, last_step
from tests.servers import running, serving
from tests.terminal import Terminal
from tests.verify.test_report import report
from tfbuild.errors import EngineMissing, Interrupted, Stale, TfbuildError, Unfinished, UsageError, VerificationFailed
from tfbuild.measure import records
from tfbuild.oci.manifests import digest_of
from tfbuild.pipeline.maker import Maker
from tfbuild.publish import image_contents

FAILED = f"tfbuild:{NAME}-failed"


class FakeEngine(EngineApi, BaseHTTPRequestHandler):
    """Lists, pulls and removes the images in `images`, by their names, but for the one `used` by a container."""

    images: dict[str, dict[str, Any]]
    arch = "amd64"
    used = ""

    def do_GET(self) -> None:
        name, _, what = self._path().rpartition("/")
        about = {"Version": "28.1", "Os": "linux", "Arch": self.arch, "ApiVersion": "1.43", "MinAPIVersion": "1.24"}
        if name == "/images":
            self.answer([{"Id": row["Id"]} for row in self.images.values()])
        elif rows := [row for ref, row in self.images.items() if name in (f"/images/{ref}", f"/images/{row['Id']}")]:
            self.answer([{"CreatedBy": last_step()}] if what == "history" else rows[0])
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

    def do_DELETE(self) -> None:
        name = self._path().removeprefix("/images/")
        if name == self.used:
            self.answer({"message": "a container uses it"}, 409)
        else:
            self.answer([{"Untagged": self.images.pop(name)["Id"]}])

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


# --- prune ------------------------------------------------------------------------------------------------------------


def test_prune_removes_what_it_named_and_only_on_a_yes(
    engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.images = {name: here(name) for name in (f"tfbuild:{NAME}", FAILED)}
    named, would = run("prune", "--dry-run")[1].splitlines()
    assert (named.split()[0], would) == (FAILED, "would remove 1 image")
    assert document("prune", "--dry-run") == {"removed": [], "going": [FAILED]}
    assert "cannot prompt" in run("prune", code=UsageError.exit_code)[1]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert "error: nothing was removed" in run("prune", code=Interrupted.exit_code)[1]
    assert len(engine.images) == 2
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("prune")[1].splitlines()[1:] == ["remove 1 image? [y/N]", "removed 1 image"]
    assert [*engine.images] == [f"tfbuild:{NAME}"]


def test_prune_names_what_the_engine_keeps(engine: type[FakeEngine]) -> None:
    assert run("prune") == ("", "removed 0 images\n")
    engine.images, engine.used = {FAILED: here(FAILED)}, FAILED
    assert document("prune", "--yes", code=TfbuildError.exit_code) == {"removed": [], "going": [FAILED]}
    errors = run("prune", "--yes", code=TfbuildError.exit_code)[1]
    assert re.search(rf"error: 1 image could not be removed: {FAILED}: .*a container uses it\n", errors)
    engine.used = ""
    assert document("prune", "--yes") == {"removed": [FAILED], "going": [FAILED]}


# --- push -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(fake: type[FakeRegistry], engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"{fake.host}/us/x"
    monkeypatch.setenv("TFBUILD_REGISTRY", name)
    return name


def test_a_push_is_rehearsed(repository: str, fake: type[FakeRegistry], engine: type[FakeEngine]) -> None:
    published_image(fake, "2.20.0", LABELS)
    manifest = connect(fake).manifest(NAME)
    assert manifest is not None
    row = engine.images[f"tfbuild:{NAME}"] = here(f"tfbuild:{NAME}", image_id=manifest.config)
    Path("reports").mkdir()
    passed = replace(report(), id=NAME, image=replace(report().image, id=row["Id"]))
    Path("reports", f"{NAME}.json").write_text(records.to_json(passed))
    tag = f"{repository}:{NAME}"
    there = {"image": tag, "there": manifest.digest, "uploads": False}
    assert document("push", f"tfbuild:{NAME}", "--dry-run") == there
    assert document("push", NAME, "--access") == {**there, "uploads": None}
    assert run("push", NAME, "--access") == (f"{tag}\n", f"can be pushed; the tag is {manifest.digest} now\n")
    del fake.content[f"manifests/{NAME}"]
    assert document("push", f"tfbuild:{NAME}", "--dry-run") == {"image": tag, "there": None, "uploads": True}
    assert run("push", NAME, "--access") == (f"{tag}\n", "can be pushed; the tag does not exist yet\n")


def test_an_image_is_added_to_its_indexes(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    ref = f"{repository}:{name}@{connect(fake).digest(name)}\n"
    indexes = ["2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl"]
    assert run("push", name, "--indexes", "--dry-run") == (ref, f"would be added to {', '.join(indexes)}\n")
    output, errors = run("push", name, "--indexes")
    assert (output, errors.startswith("already in the registry; in ")) == (ref, True)
    assert run("push", name, "--indexes", "--dry-run") == (ref, "in all of its indexes already\n")
    assert sorted(document("push", name, "--indexes")["indexes"]) == indexes


# --- pull and images --------------------------------------------------------------------------------------------------


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
    row = document(*words)
    assert (row["reference"], row["image"], row["signed"], row["second_choice"]) == (reference, image, None, None)
    assert document(*words, "--dry-run")["image"] is None
    refusals: dict[str, tuple[str, ...]] = {
        "wrote x.lock: TensorFlow 2.20.0 in 2 images\n": (),
        "error: x.lock already decides what to pull\nhint: leave out --release and --skip, ": (
            "--release=2.20",
            "--skip=x",
        ),
        "error: x.lock locks images for mkl\nhint: --target mkl, ": ("--target=cpu",),
    }
    for said, more in refusals.items():
        done = answer("pull", "--cpuinfo=cpuinfo", "--dry-run", "--lock=x.lock", *more, cwd=Path.cwd())
        assert (said in done.stderr, done.returncode) == (True, UsageError.exit_code if more else 0)
    other = published_image(fake, "2.21.0")
    gather(fake, other)
    refusals = {
        f"{names['x86-64-v3']} is not the image that x.lock locks": (reference,),
        f"x.lock does not lock {other}": (other, "--registry", repository),
    }
    for said, more in refusals.items():
        assert said in run("verify", *more, "--lock=x.lock", code=VerificationFailed.exit_code)[1]
    assert run("verify", names["avx"], "--registry", repository, "--lock=x.lock")[0]


def test_images_here_and_there_are_listed(
    repository: str, fake: type[FakeRegistry], engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.images = {f"tfbuild:{NAME}": here(f"tfbuild:{NAME}")}
    newer = published_image(fake, "2.21.0", cpu="x86-64-v3")
    gather(fake, newer)
    places = [f"tfbuild:{NAME}", f"{repository}:{newer}"]
    assert [entry["name"] for entry in document("images")] == places
    assert all(place in run("images")[0] for place in (NAME, newer))
    (entry,) = document("images", "--outdated")
    assert (entry["name"], entry["outdated"]) == (places[0], f"{newer} is published")
    monkeypatch.delenv("TFBUILD_REGISTRY")
    assert [entry["name"] for entry in document("images")] == places[:1]
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    assert [entry["name"] for entry in document("images", "--registry", repository)] == places[1:]
    run("images", "--registry", repository, "--outdated", code=EngineMissing.exit_code)


def test_a_yank_and_its_end_are_said(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    gather(fake, name)
    assert run("yank", name, "--reason", "crashes")[1] == "yanked from its indexes\n"
    assert run("yank", name, "--undo")[1] == "offered again\n"
    assert document("yank", name, "--reason", "crashes")["image"] == f"{repository}:{name}"


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_published_image_is_compared_with_its_papers(repository: str, fake: type[FakeRegistry]) -> None:
    name = published_image(fake, "2.20.0")
    words = ("verify", name, "--registry", repository)
    assert "its push did not finish" in run(*words, code=Unfinished.exit_code)[1]
    # It is old, too: a push that only finished would offer an old image that somebody put back.
    run(*words, "--max-age", "1d", code=Stale.exit_code)
    gather(fake, name)
    reference = f"{repository}@{connect(fake).digest(name)}"
    output, errors = run(*words)
    assert output == f"{reference}\n"
    assert errors.endswith(f"{name} is the image that its provenance and its SBOM describe\n")
    printed = document(*words)
    assert (printed["reference"], printed["signed"]) == (reference, None)
    output, errors = run(*words, "--max-age", "1d", code=33)
    assert (output, "days ago" in errors) == ("", True)
    run(*words, "--context", f"sha256:{64 * '1'}", code=33)


def test_verify_prints_the_report(engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """This engine runs no containers: the report is given."""
    monkeypatch.setattr(Maker, "verify", lambda *_: report())
    engine.images = {f"tfbuild:{NAME}": here(f"tfbuild:{NAME}")}
    assert run("verify", NAME, "--json") == (records.to_json(report()), "")


def test_an_sbom_is_printed_or_written(engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an image without files, which this engine cannot send."""
    nothing = image_contents.Contents(python=(), debian=(), system={}, built={}, notices=())
    monkeypatch.setattr(image_contents, "read_contents", lambda *_: nothing)
    name = f"ghcr.io/us/x:{NAME}"
    engine.images = {name: here(name)}
    output, errors = run("sbom", NAME)
    assert (json.loads(output)["bomFormat"], errors) == ("CycloneDX", f"note: {NAME} is {name} on this engine\n")
    assert json.loads(run("sbom", name, "--format", "spdx")[0])["spdxVersion"] == "SPDX-2.3"
    assert run("sbom", name, "--output", "x.json") == ("x.json\n", "")
    assert Path("x.json").read_text() == output
    assert document("sbom", name, "--output", "x.json") == {"image": name, "sbom": "x.json", "components": 0}
    assert document("sbom", name) == json.loads(output)


def test_an_engine_elsewhere_is_planned_for(engine: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine.arch = "arm64"
    with serving(engine) as host:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{host}")
        (planned,) = document("build", "--dry-run", "--cpu", "armv8.2-a")
        (official,) = document("build", "--dry-run", "--wheel", "official")
    assert (planned["platform"], planned["instruction_set"]) == ("linux/arm64", "armv8.2-a")
    assert official["platform"] == "linux/arm64"
