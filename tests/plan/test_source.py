"""Where the source comes from: trees and archives are known by their content before anything starts."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.plan.test_selection import chosen
from tests.rows import each
from tfbuild.context import dockerfile
from tfbuild.errors import BadInput, TfbuildError, UsageError
from tfbuild.facts import releases
from tfbuild.plan import configuration, source
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


def test_a_tree_packs_to_the_same_bytes_whenever_it_is_packed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        source.write_folder(planned(source=str(DOUBLE)), tmp_path / name)
    one, two = (tmp_path / name / source.FILE for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:
        names = tar.getnames()
        script = tar.getmember("source/tensorflow/tools/pip_package/build_pip_package.sh")
    assert "source/configure.py" in names
    assert script.mode & 0o111
    assert (tmp_path / "one" / "SHA256SUMS").read_text() == f"{source.digest(one)}  /mnt/source/source.tar\n"


def test_what_is_packed_of_a_tree(tmp_path: Path) -> None:
    """Empty folders count, as rules of Bazel list those that they expect; history and Bazel's links stay out."""
    tree = tmp_path / "tree"
    (tree / "tensorflow/tools/pip_package").mkdir(parents=True)
    for name in ("configure.py", ".bazelrc", ".tf_configure.bazelrc", "tensorflow/bazel-notes.md"):
        (tree / name).touch()
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").touch()
    os.symlink("/tmp", tree / "bazel-bin")
    os.symlink("configure.py", tree / "link")
    before = source.tree_digest(tree)
    (tree / "tensorflow/empty").mkdir(mode=0o700)
    assert source.tree_digest(tree) != before
    source.write_folder(Source(kind="tree", path=tree), tmp_path / "placed")
    with tarfile.open(tmp_path / "placed" / source.FILE) as tar:
        rows = {member.name.removeprefix("source/"): member.mode for member in tar if not member.issym()}
        assert tar.getmember("source/link").linkname == "configure.py"
    assert rows == {
        ".bazelrc": 0o644, "configure.py": 0o644, "tensorflow/bazel-notes.md": 0o644, "tensorflow/empty": 0o755,
        "tensorflow/tools/pip_package": 0o755,
    }  # fmt: skip


def test_an_archive_is_linked_and_known_by_its_digest(tmp_path: Path) -> None:
    path = archive(tmp_path)
    given = planned(source=str(path), source_sha256=source.digest(path).upper())
    assert given == Source(kind="archive", path=path, sha256=source.digest(path))
    source.write_folder(given, tmp_path / "placed")
    assert (tmp_path / "placed" / source.FILE).stat().st_ino == path.stat().st_ino


@each(
    "options, error, message",
    [
        ({"source": "/nowhere"}, BadInput, "no source at"),
        ({"source": "{archive}"}, BadInput, "needs its digest"),
        ({"source": "{archive}", "source_sha256": "0" * 64}, BadInput, "has the sha256"),
        ({"source": "{tmp}"}, BadInput, "has no configure.py"),
        ({"source": str(DOUBLE), "source_sha256": "0" * 64}, BadInput, "is for archives"),
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


def test_the_sources_content_changes_the_contexts_digest_and_its_place_does_not(tmp_path: Path) -> None:
    build = chosen(release="2.20.0", bazel="7.7.1", source=str(DOUBLE))
    before = dockerfile.write_context(build, tmp_path / "context")
    assert dockerfile.write_context(build, tmp_path / "elsewhere").digest == before.digest
    other = tmp_path / "double"
    with tarfile.open(before.folder / "source" / source.FILE) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "source").rename(other)
    (other / "configure.py").chmod(0o660)  # another umask is no other source
    same = chosen(release="2.20.0", bazel="7.7.1", source=str(other))
    assert dockerfile.write_context(same, tmp_path / "context").digest == before.digest
    (other / "WORKSPACE").write_text("# another\n")
    assert dockerfile.write_context(same, tmp_path / "context").digest != before.digest


# --- the builder ------------------------------------------------------------------------------------------------------


def test_every_release_knows_what_its_builder_installs() -> None:
    for row in releases.releases():
        names = [Requirement(text).name for text in configuration.python_requirements(row.version)]
        assert {"packaging", "setuptools", "wheel"} <= set(names)
        # One name twice is an error for pip before 20.3; where it has markers, only one of them holds.
        named = [text for text in configuration.python_requirements(row.version) if ";" not in text]
        assert len(named) == len({Requirement(text).name for text in named})
        assert ("numpy" in names) == (not releases.hermetic(row.version))


def test_a_bazel_that_may_not_be_the_releases_own_is_doubted_unless_it_is_named() -> None:
    def doubts(**options: Any) -> list[str]:
        return [note for note in chosen(release="2.21.0", **options).notes if "the release's own" in note]

    assert [note.partition(": tensorflow issues")[0] for note in doubts()] == [
        "not certain: whether Bazel 7.4.1 is the release's own"
    ]
    assert doubts(bazel="7.7.0") == []
