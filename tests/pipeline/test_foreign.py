"""Files that others made: those that would fill the memory, hang a command or reach further are refused."""

import io
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.binary.test_wheel_limits import little_memory
from tests.commandline import invoke
from tests.plan.test_selection import chosen
from tests.rows import each
from tfbuild.binary import inspector
from tfbuild.errors import BadInput, BadMirror, TfbuildError
from tfbuild.pipeline import build_context, bundle
from tfbuild.plan import source, tree
from tfbuild.util.files import temporary_folder

MOST_MEMORY = 80 << 20
OURS = "tfbuild-bundle:1-system"
LISTING = json.dumps({"builds": [], "layers": {OURS: []}, "schema": bundle.SCHEMA})


def file(path: Path, content: str = "", size: int = 0) -> Path:
    """Write a file, with a hole up to its size, and return its folder."""
    path.parent.mkdir()
    path.write_text(content)
    if size:
        os.truncate(path, size)
    return path.parent


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def saved(path: Path, *, tags: tuple[str, ...] = (OURS,), annotated: str = OURS, listing: str = LISTING) -> Path:
    """What `docker save` writes, and the list of a bundle."""
    index = {"manifests": [{"annotations": {"io.containerd.image.name": f"docker.io/library/{annotated}"}}]}
    texts = {"manifest.json": json.dumps([{"RepoTags": tags}]), "./index.json": json.dumps(index), bundle.LIST: listing}
    with tarfile.open(path, "w") as archive:
        for name, content in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


@pytest.mark.parametrize("option", ["--no-container", "--libtensorflow"])
def test_a_bundle_is_refused_where_it_lacks_what_is_asked_for(option: str, tmp_path: Path) -> None:
    refused = invoke("wheel", option, "--mirror", str(saved(tmp_path / "bundle.tar")), code=2).stderr
    assert option in refused
    assert "--mirror URL" in refused


def headed(path: Path, kind: bytes, size: int) -> Path:
    """A tar whose first member has this type, and says that it has this size."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + saved(path).read_bytes())
    return path


@each(
    "made, read, refusal",
    [
        (saved, bundle.read_bundle, None),
        (lambda path: saved(path, tags=(OURS, "debian:12")), bundle.read_bundle, BadMirror),
        (lambda path: saved(path, annotated="debian:12"), bundle.read_bundle, BadMirror),
        (lambda path: saved(path, tags=("debian:12",), listing=LISTING.replace(OURS, "debian:12")),
         bundle.read_bundle, BadMirror),
        (lambda path: saved(path, listing="[" * 100_000), bundle.read_bundle, BadMirror),
        (lambda path: saved(path, listing="{}"), bundle.read_bundle, BadMirror),
        (lambda path: saved(path, listing=LISTING.replace("bundle/2", "bundle/1")), bundle.read_bundle, BadMirror),
        (lambda path: file(path / "x", "no archive"), lambda path: bundle.read_bundle(path / "x"), BadMirror),
        (lambda path: headed(path, tarfile.REGTYPE, -512), bundle.read_bundle, BadMirror),
        (lambda path: headed(path, tarfile.GNUTYPE_LONGNAME, 2 << 30), bundle.read_bundle, BadMirror),
        (lambda path: headed(path, tarfile.XHDTYPE, -1024), bundle.read_bundle, BadMirror),
        (pipe, bundle.read_bundle, BadMirror),
        (pipe, inspector.wheel, BadInput),
        (lambda path: file(path / "a.patch", size=3 << 30), lambda path: source.patch(f"{path}/a.patch"), BadInput),
        (lambda path: file(path / ".bazelrc", size=3 << 30), tree.read_folder, BadInput),
        (lambda path: file(path / ".bazelrc", "build --x\n" * 300_000), tree.read_folder, BadInput),
        (lambda path: file(path / ".bazelrc", "build --copt=" + "x" * 900_000), tree.read_folder, BadInput),
        (lambda path: file(path / ".bazelrc", "build --x\n" * 20_000), tree.read_folder, None),
        (lambda path: file(path / "configure.py", "x = " + "-" * 20_000 + "1"), tree.read_folder, None),
        (lambda path: file(path / "configure.py", "(" + "env" * 300_000), tree.read_folder, None),
        (lambda path: file(path / "BUILD", size=8 << 40), source.tree_digest, BadInput),
    ],
)  # fmt: skip
def test_a_file_by_others_is_read_with_little_memory_or_refused(
    made: Callable[[Path], Path], read: Callable[[Path], object], refusal: type[TfbuildError] | None, tmp_path: Path
) -> None:
    with temporary_folder(parent=tmp_path) as folder:
        path = made(folder / "tensorflow-2.14.0-cp311-cp311-linux_x86_64.whl")
        with little_memory(MOST_MEMORY), pytest.raises(refusal) if refusal else nullcontext():
            read(path)


def test_a_source_that_is_no_archive_is_refused_before_its_context_is_there(tmp_path: Path) -> None:
    archive = tmp_path / "tensorflow.zip"
    archive.write_bytes(b"PK no tar archive")
    given: dict[str, Any] = {"source": str(archive), "source_sha256": source.digest(archive), "bazel": "7.7.1"}
    with pytest.raises(BadInput, match=r"/tensorflow\.zip is not a tar archive"):
        build_context.write_context(chosen(release="2.20.0", **given), tmp_path / "context")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]
