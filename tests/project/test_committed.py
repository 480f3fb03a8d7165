"""dockerfiles/: what is committed is what the facts and templates give, is complete, and says what is true of it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.steps import ROOT
from tests.commandline import tool
from tests.with_engine.registry import Server, serve
from tfbuild.context import dockerfile
from tfbuild.oci import client
from tfbuild.oci.manifests import INDEX, digest_of
from tfbuild.oci.references import Repository
from tfbuild.plan import Build
from tools import committed, verbs

FOLDER = ROOT / "dockerfiles"
BUILDS = committed.builds()
EMPTY_INDEX = b'{"schemaVersion": 2, "manifests": []}'
PIN = f"sha256:{'a' * 64}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "dockerfiles"))


def updated(copy: Path, digests: dict[str, str] | None = None, *, check: bool = False) -> list[str]:
    return verbs.update(copy.parent, committed.pages(copy.parent, digests), check=check)


# --- the files --------------------------------------------------------------------------------------------------------


def test_whatever_changes_is_stale_and_written_again(copy: Path) -> None:
    own = f"{BUILDS[1].id}/bazelrc"
    (copy / own).write_text("build --jobs=4\n")
    (copy / BUILDS[1].id / "plan.json").unlink()
    (copy / "0.1-gone" / "fixes").mkdir(parents=True)
    (copy / "0.1-gone" / "fixes" / "x.patch").write_text("")
    changed = [f"dockerfiles/{name}" for name in ("0.1-gone/fixes/x.patch", own, f"{BUILDS[1].id}/plan.json")]
    assert updated(copy, check=True) == updated(copy) == changed
    assert updated(copy, check=True) == []
    assert not (copy / "0.1-gone").exists()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.id)
def test_the_roots_context_has_every_file_that_a_dockerfile_takes_and_little_else(build: Build) -> None:
    text = (FOLDER / build.id / "Dockerfile").read_text()
    taken = re.findall(r"type=bind,source=([^,]+),", text)
    assert {"templates/network.sh", f"dockerfiles/{build.id}/entrypoint.sh"} <= set(taken)
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert patterns[0] == "*"
    sent = [path for pattern in patterns[1:] for path in ROOT.glob(pattern.removeprefix("!"))]
    for name in taken:
        assert (ROOT / name).exists(), name
        assert any(path.is_relative_to(ROOT / name) or (ROOT / name).is_relative_to(path) for path in sent), name
    assert sum(path.stat().st_size for path in sent if path.is_file()) < 1 << 20


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.id)
def test_it_differs_from_what_invoke_build_writes_by_its_head_and_its_paths(build: Build) -> None:
    """And the scripts at those paths are the same."""
    texts = dockerfile.files(build)
    ours, theirs = ((FOLDER / build.id / "Dockerfile").read_text(), texts.pop("Dockerfile"))
    body = re.compile(r"^FROM \$\{BASE\}.*", re.MULTILINE | re.DOTALL)
    places = (
        ("tfbuild/in_container/smoke", "scripts/smoke"),
        ("templates/", "scripts/"),
        (f"dockerfiles/{build.id}/", ""),
    )
    own = body.findall(ours)[0]
    for ours_at, theirs_at in places:
        own = own.replace(f"source={ours_at}", f"source={theirs_at}")
        texts = {name.replace(theirs_at, ours_at) if theirs_at else name: text for name, text in texts.items()}
    assert own == body.findall(theirs)[0]
    for name, text in texts.items():
        path = ROOT / name if "/" in name and not name.startswith(("fixes/",)) else FOLDER / build.id / name
        assert path.read_text() == text


# --- digests of base images -------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as found:
        yield found


def push(server: Server, path: str, tag: str) -> str:
    """Puts an index that lists nothing into the registry, which any tag may name, and returns its digest."""
    host = f"127.0.0.1:{server.port}"
    client.Registry(Repository.parse(f"{host}/{path}")).put(tag, EMPTY_INDEX, INDEX)
    return digest_of(EMPTY_INDEX)


def test_a_pinned_base_stays_pinned_and_is_named_with_its_tag(copy: Path) -> None:
    base = BUILDS[0].base_image
    assert updated(copy, {base: PIN}) == sorted(
        f"dockerfiles/{build.id}/Dockerfile" for build in BUILDS if build.base_image == base
    )
    text = (copy / BUILDS[0].id / "Dockerfile").read_text()
    assert f"\nARG BASE_NAME={base}\nARG BASE_DIGEST={PIN}\nARG BASE=${{BASE_NAME}}${{BASE_DIGEST:+@" in text
    assert committed.pins(copy) == {base: PIN}
    assert updated(copy, check=True) == []
    done = tool("hadolint", "--config", ROOT / ".hadolint.yaml", copy / BUILDS[0].id / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_registry_is_asked_for_the_digest_of_a_tag(server: Server, tmp_path: Path) -> None:
    """By `invoke dockerfile --pin`, whose command in the head then says so."""
    digest, name = push(server, "library/python", "3.11-slim"), f"127.0.0.1:{server.port}/library/python:3.11-slim"
    folder = tmp_path / "context"
    words = ["dockerfile", "--target", "cpu", "--wheel", "official", "--platform", "linux/amd64", "--base", name]
    done = subprocess.run(
        [sys.executable, "-m", "invoke", *words, "--pin", "--output", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (folder / "Dockerfile").read_text()
    assert f"\nARG BASE_NAME={name}\nARG BASE_DIGEST={digest}\n" in text
    assert text.partition("\n")[0].endswith(f"--wheel official --base {name} --pin")
