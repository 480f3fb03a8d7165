"""Where the source comes from: trees and archives are known by their content before anything starts."""

import hashlib
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from packaging.requirements import Requirement

from tests.binary import libraries
from tests.binary.test_scan import zipped
from tests.plan.test_selection import chosen
from tests.rows import each
from tfbuild.errors import BadInput, TfbuildError, Unsupported, UsageError
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.pipeline import build_context
from tfbuild.plan import Build, Request, configuration, select, source
from tfbuild.plan.source import Source

DOUBLE = Path(__file__).parents[1] / "data" / "double"


def planned(**options: Any) -> Source:
    # The double is a tree of 2.20.0.
    build = chosen(**{"release": "2.20.0" if "source" in options else "2.13.1", **options})
    assert build.source is not None
    return build.source


def archive(tmp_path: Path, tree: Path = DOUBLE) -> Path:
    path = tmp_path / "double.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tree, "double")
    return path


def test_what_is_packed_of_a_tree(tmp_path: Path) -> None:
    """Empty folders count, as rules of Bazel list those that they expect; history and Bazel's links stay out."""
    tree = tmp_path / "tree"
    (tree / "tensorflow/tools/pip_package").mkdir(parents=True)
    for name in ("configure.py", ".bazelrc", ".tf_configure.bazelrc", "tensorflow/bazel-notes.md"):
        (tree / name).touch()
    (tree / "configure.py").chmod(0o755)
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").touch()
    os.symlink("/tmp", tree / "bazel-bin")
    os.symlink("configure.py", tree / "link")
    before = source.tree_digest(tree)
    (tree / "tensorflow/empty").mkdir(mode=0o700)
    assert source.tree_digest(tree) != before
    source.pack(tree, tmp_path / "placed")
    with tarfile.open(tmp_path / "placed") as tar:
        rows = {member.name.removeprefix("source/"): member.mode for member in tar if not member.issym()}
        assert tar.getmember("source/link").linkname == "configure.py"
        assert {(row.mtime, row.uid, row.gid, row.uname, row.gname) for row in tar} == {(0, 0, 0, "", "")}
    assert rows == {
        ".bazelrc": 0o644, "configure.py": 0o755, "tensorflow/bazel-notes.md": 0o644, "tensorflow/empty": 0o755,
        "tensorflow/tools/pip_package": 0o755,
    }  # fmt: skip


def test_an_archive_is_known_by_its_digest(tmp_path: Path) -> None:
    path = archive(tmp_path)
    given = planned(source=str(path), source_sha256=source.digest(path).upper())
    assert given == Source(kind="archive", path=path, sha256=source.digest(path))


@each(
    "options, error, message",
    [
        ({"source": "/nowhere"}, BadInput, "no source at"),
        ({"source": "{archive}"}, BadInput, "needs its digest"),
        ({"source": "{archive}", "source_sha256": "0" * 64}, BadInput, "has the sha256"),
        ({"source": "{tmp}"}, BadInput, "has no configure.py"),
        ({"source": str(DOUBLE), "source_sha256": "0" * 64}, BadInput, "is for archives"),
        ({"source_sha256": "0" * 64}, UsageError, "is the digest of an archive"),
        ({"source": str(DOUBLE), "release": "2.12.1"}, BadInput, r"is TensorFlow 2\.20\.0"),
        ({"source": "{archive}", "source_sha256": "{sha256}", "release": ""}, UsageError, "which release"),
    ],
)
def test_a_bad_source_is_refused_before_anything_starts(
    options: dict[str, str], error: type[TfbuildError], message: str, tmp_path: Path
) -> None:
    path = archive(tmp_path)
    words = {"archive": path, "tmp": tmp_path, "sha256": source.digest(path)}
    with pytest.raises(error, match=message) as refusal:
        planned(**{name: value.format(**words) for name, value in options.items()})
    assert refusal.value.hint


@each("own", ["archive", "tree"])
def test_a_context_has_the_source_with_its_digest_beside_it(own: str, tmp_path: Path) -> None:
    """An archive, which may be large, is linked."""
    path = archive(tmp_path)
    given = (str(path), source.digest(path)) if own == "archive" else (str(DOUBLE), "")
    build = chosen(release="2.20.0", bazel="7.7.1", source=given[0], source_sha256=given[1])
    placed = build_context.write_context(build, tmp_path / "context").folder / "source" / source.FILE
    assert (placed.stat().st_ino == path.stat().st_ino) is (own == "archive")
    line = f"{source.digest(placed)}  /mnt/source/{source.FILE}\n"
    assert (placed.parent / "SHA256SUMS").read_text() == line


def test_the_sources_content_changes_the_contexts_digest_and_its_place_does_not(tmp_path: Path) -> None:
    build = chosen(release="2.20.0", bazel="7.7.1", source=str(DOUBLE))
    before = build_context.write_context(build, tmp_path / "context")
    assert build_context.write_context(build, tmp_path / "elsewhere").digest == before.digest
    other = tmp_path / "double"
    with tarfile.open(before.folder / "source" / source.FILE) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "source").rename(other)
    (other / "configure.py").chmod(0o660)  # another umask is no other source
    same = chosen(release="2.20.0", bazel="7.7.1", source=str(other))
    assert build_context.write_context(same, tmp_path / "context").digest == before.digest
    assert same.id == build.id
    (other / "WORKSPACE").write_text("# another\n")
    changed = chosen(release="2.20.0", bazel="7.7.1", source=str(other))
    assert build_context.write_context(changed, tmp_path / "context").digest != before.digest
    assert changed.id != build.id


def test_a_tree_in_which_tfbuild_runs_is_the_same_each_time_unless_it_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DOUBLE, tmp_path / "tree")
    monkeypatch.chdir(tmp_path / "tree")
    (tmp_path / "link").symlink_to("tree")
    for named in (".", str(tmp_path / "link")):
        build = chosen(release="2.20.0", bazel="7.7.1", source=named)
        context = build_context.write_context(build, Path("build") / build.id / "context").folder
    assert build.source
    assert (context / "source/SHA256SUMS").read_text().startswith(build.source.sha256)
    assert source.digest(context / "source" / source.FILE) == build.source.sha256
    (tmp_path / "tree/WORKSPACE").write_text("# edited meanwhile\n")
    with pytest.raises(BadInput, match="was changed after it was planned"):
        build_context.write_context(build, tmp_path / "context")


def test_a_tree_is_read_once_for_all_plans_that_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = shutil.copytree(DOUBLE, tmp_path / "tree")
    os.link(tree / "WORKSPACE", tree / "again")
    first = source.tree_digest(tree)
    assert capsys.readouterr().err == ""
    copy = shutil.copytree(tree, tmp_path / "copy")
    monkeypatch.setattr(source, "MANY_FILES", 0)
    assert source.tree_digest(copy) == first, "with a file of two names as with two files"
    assert capsys.readouterr().err.count(f" files of {copy}") == 2, "its beginning and its end"
    monkeypatch.setattr(source, "pack", lambda *_: pytest.fail("read again"))
    assert source.tree_digest(tree) == first


# --- the builder ------------------------------------------------------------------------------------------------------


def test_every_release_knows_what_its_builder_installs() -> None:
    for row in releases.releases():
        names = [Requirement(text).name for text in configuration.python_requirements(row.version)]
        assert {"packaging", "setuptools", "wheel"} <= set(names)
        # One name twice is an error for pip before 20.3; where it has markers, only one of them holds.
        named = [text for text in configuration.python_requirements(row.version) if ";" not in text]
        assert len(named) == len({Requirement(text).name for text in named})
        assert ("numpy" in names) == (not releases.rows(table().hermetic_python, row.version))


# --- a wheel of one's own ---------------------------------------------------------------------------------------------

NAME = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
CODE = "tensorflow/libtensorflow_cc.so.2"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with the guard of a real one, which says AVX, and with no other code."""
    return zipped(tmp_path / NAME, {FRAMEWORK: libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"))})


def wheel_planned(wheel: Path, **options: str) -> Build:
    return select(replace(Request(wheel=str(wheel), target="cpu", platform="linux/amd64"), **cast(Any, options)), None)


def test_a_wheel_is_planned_by_its_name_and_its_guard(wheel: Path) -> None:
    build = wheel_planned(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (build.release, build.python, build.platform) == ("2.14.0", "3.11", "linux/amd64")
    assert build.instruction_set.name == "avx"
    assert (build.wheel.kind, build.wheel.path, build.wheel.sha256) == ("file", wheel, digest)
    assert build.wheel.requirement == NAME
    assert build.id.endswith(digest[:8])
    assert (build.base_image, build.base_distribution) == ("python:3.11-slim-bookworm", "bookworm")
    assert wheel_planned(wheel, base="ours:1").base_image == "ours:1"
    for base, told in (("debian:trixie", "has Python 3.13, and not 3.11"), ("alpine:3.20", "is not based on Debian")):
        with pytest.raises(Unsupported, match=f"{base} {told}"):
            wheel_planned(wheel, base=base)
    shown = cast(Any, build.to_json()["wheel"])
    assert (shown["kind"], shown["requirement"], shown["sha256"]) == ("file", NAME, digest)


def test_code_that_cannot_be_read_is_for_verification_to_report(wheel: Path) -> None:
    content = libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"))
    assert wheel_planned(zipped(wheel, {FRAMEWORK: content, CODE: b"text"})).instruction_set.name == "avx"


def test_a_cpu_that_agrees_with_the_guard_names_the_set(wheel: Path) -> None:
    assert wheel_planned(wheel, cpu="avx").instruction_set.name == "avx"
    for other in ("x86-64-v3", "x86-64-v2"):
        with pytest.raises(BadInput, match=f"was compiled for .*avx.*, not for {other}") as caught:
            wheel_planned(wheel, cpu=other)
        assert "leave --cpu out" in str(caught.value.hint)


@each(
    "options, told",
    [
        ({"release": "2.15.0"}, f"{NAME} is for release 2.14.0, the plan for 2.15.0"),
        ({"python": "3.10"}, f"{NAME} is for Python 3.11, the plan for 3.10"),
        ({"platform": "linux/arm64"}, f"{NAME} is for architecture x86_64, the plan for aarch64"),
    ],
)
def test_a_request_that_contradicts_the_name_is_refused(options: dict[str, str], told: str, wheel: Path) -> None:
    with pytest.raises(BadInput) as caught:
        wheel_planned(wheel, **options)
    assert caught.value.reason == told
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "target", "told", "hint"),
    [
        (NAME, "cuda", "is tensorflow-cpu, which is not for cuda", "--target"),
        ("numpy-2.0-cp311-cp311-manylinux_2_17_x86_64.whl", "cpu", "is numpy, not a TensorFlow wheel", "one of: "),
        ("tensorflow_cpu-2.14.0-cp311-cp311-macosx_12_0_x86_64.whl", "cpu", "is not for CPython on Linux", "manylinux"),
        ("tensorflow_cpu-2.14.0-py3-none-any.whl", "cpu", "is not for CPython on Linux", "cp3X"),
        ("my wheel.whl", "cpu", "my wheel.whl is not a wheel's name", "do not rename"),
        ("tensorflow_cpu-2.14.0-cp311-cp311-linux_x86_64$(id).whl", "cpu", "is not a wheel's name", "do not rename"),
    ],
)
def test_a_name_that_fits_nothing_is_refused(name: str, target: str, told: str, hint: str, wheel: Path) -> None:
    other = wheel.rename(wheel.with_name(name))
    with pytest.raises(BadInput) as caught:
        wheel_planned(other, target=target)
    assert told in caught.value.reason
    assert hint in str(caught.value.hint)
