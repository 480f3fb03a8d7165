"""`push --dry-run` on a real registry answers what `push` does, with the same exit code, and changes nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine import registry as registries
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, made, place, push, server
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry
from tfbuild.plan import Build
from tfbuild.publish import yanking
from tfbuild.util.progress import Progress

__all__ = ["made", "place", "server"]  # fixtures
pytestmark = pytest.mark.engine
ONE = build("avx")
# `invoke` that asks a registry which does not answer again at once.
IMPATIENT = """
import sys
from invoke.main import program
from tfbuild.oci import transport
transport.BACKOFF = 0
program.run(["invoke", *sys.argv[1:]])
"""


class Desk:
    """What a situation is made with. `repository`: what is given as --registry."""

    def __init__(self, engine: Engine, made: Callable[..., str], place: Registry, folder: Path) -> None:
        self.engine, self.made, self.place, self.folder = engine, made, place, folder
        self.repository = str(place.repository)
        self.options: tuple[str, ...] = ()
        self.images: list[str] = []

    def make(self, of: Build, **options: Any) -> str:
        self.images.append(self.made(of, **options))
        return self.images[-1]

    def pushed(self, image: str) -> None:
        push(self.engine, image, self.place, self.folder)

    def state(self) -> tuple[dict[str, str], list[tuple[str, ...]]]:
        """All tags of the repository, and the names of the engine's images that are of this test."""
        tags = {tag: self.place.digest(tag) for tag in self.place.tags()}
        names = [image.tags for image in self.engine.labelled("io.tfbuild.id")]
        # Other tests make and remove images meanwhile.
        repositories = (str(self.place.repository), self.repository, *self.images)
        return tags, sorted(all_of for all_of in names if any(name.startswith(repositories) for name in all_of))

    def invoke(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", IMPATIENT, "--search-root", str(ROOT), *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def desk(engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path) -> Desk:
    return Desk(engine, made, place, tmp_path)


def new(desk: Desk) -> str:
    return desk.make(ONE)


def pushed_already(desk: Desk) -> str:
    image = desk.make(ONE)
    desk.pushed(image)
    return image


def named_as_in_the_registry(desk: Desk) -> str:
    """Only where the image has no other name with its identifier could another run's image be meant."""
    image = f"{desk.repository}:{ONE.id}"
    desk.engine.tag(desk.make(ONE), image)
    return image


def not_here(desk: Desk) -> str:
    return f"{desk.repository}:{ONE.id}-never-built"


def of_somebody_else(desk: Desk) -> str:
    return desk.make(ONE, more={"io.tfbuild.id": ""})


def with_invalid_labels(desk: Desk) -> str:
    return desk.make(ONE, more={"io.tfbuild.platform": "linux/none"})


def unverified(desk: Desk) -> str:
    return desk.make(ONE, verified=False)


def another_one_is_there(desk: Desk) -> str:
    desk.pushed(desk.make(ONE))
    return desk.make(ONE)


def another_one_is_there_and_forced(desk: Desk) -> str:
    desk.options = ("--force",)
    return another_one_is_there(desk)


def yanked(desk: Desk) -> str:
    image = pushed_already(desk)
    yanking.yank(desk.place, ONE.id, "it crashes")
    return image


def yanked_and_replaced(desk: Desk) -> str:
    """The fixed tag is another image now: the engine knows the digest of this one, because it pulled it."""
    image = yanked(desk)
    desk.engine.pull(f"{desk.repository}@{desk.place.digest(ONE.id)}", Progress())
    report = (desk.folder / "reports" / f"{ONE.id}.json").read_bytes()
    push(desk.engine, desk.make(ONE), desk.place, desk.folder, force=True)
    (desk.folder / "reports" / f"{ONE.id}.json").write_bytes(report)
    desk.options = ("--force",)
    return image


def registry_that_is_down(desk: Desk) -> str:
    desk.repository = "127.0.0.1:1/us/x"
    return desk.make(ONE)


def signed_without_cosign(desk: Desk) -> str:
    desk.options = ("--sign-options", "--key cosign.key")
    return desk.make(ONE)


TABLE = [
    (new, 0), (pushed_already, 0), (named_as_in_the_registry, 0), (not_here, 25), (of_somebody_else, 25),
    (with_invalid_labels, 26), (unverified, 24), (another_one_is_there, 26), (another_one_is_there_and_forced, 0),
    (yanked, 32), (yanked_and_replaced, 32), (registry_that_is_down, 26), (signed_without_cosign, 1),
]  # fmt: skip


@pytest.mark.parametrize(("situation", "code"), TABLE)
def test_a_rehearsal_says_what_the_push_says_and_changes_nothing(
    situation: Callable[[Desk], str], code: int, desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # No cosign: nothing here can be signed.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    words = ("push", situation(desk), f"--registry={desk.repository}", *desk.options)
    before = desk.state()
    rehearsed = desk.invoke(*words, "--dry-run")
    assert rehearsed.returncode == code, rehearsed.stderr
    assert desk.state() == before
    pushed = desk.invoke(*words)
    assert pushed.returncode == code, pushed.stderr

    def errors(done: "subprocess.CompletedProcess[str]") -> list[str]:
        return [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]

    assert errors(rehearsed) == errors(pushed)
    assert bool(errors(pushed)) == bool(code)


def test_a_rehearsal_says_whether_the_image_would_be_uploaded(desk: Desk) -> None:
    image = desk.make(ONE)
    words = ("push", image, f"--registry={desk.repository}", "--json")
    before = json.loads(desk.invoke(*words, "--dry-run").stdout)
    assert before == {"image": f"{desk.repository}:{ONE.id}", "there": None, "uploads": True}
    pushed = json.loads(desk.invoke(*words).stdout)
    after = json.loads(desk.invoke(*words, "--dry-run").stdout)
    assert (after["there"], after["uploads"]) == (pushed["digest"], False)


def test_a_registry_that_takes_nothing_refuses_the_rehearsal_as_the_push(
    desk: Desk, server: Server, made: Callable[..., str]
) -> None:
    image = made(ONE)
    for words in (("--dry-run",), ()):
        with registries.between(server, left=0) as (host, _):
            done = desk.invoke("push", image, f"--registry={host}/{desk.place.repository.path}", *words)
        assert done.returncode == 26, done.stderr
        assert "the test ends here" in done.stderr


def test_the_indexes_alone_can_be_rehearsed(desk: Desk) -> None:
    pushed_already(desk)
    desk.place.discard("latest-mkl")
    before = desk.state()
    words: tuple[Any, ...] = ("push", ONE.id, f"--registry={desk.repository}", "--indexes", "--json")
    document = json.loads(desk.invoke(*words, "--dry-run").stdout)
    assert document["indexes"] == ["latest-mkl"]
    assert desk.state() == before
    assert "latest-mkl" in json.loads(desk.invoke(*words).stdout)["indexes"]
    missing = ("push", f"{ONE.id}-x", *words[2:])
    assert desk.invoke(*missing, "--dry-run").returncode == desk.invoke(*missing).returncode == 25
