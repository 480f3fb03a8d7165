"""What a user changes about TensorFlow's tree: read strictly, part of the plan, and in the build context."""

import re
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commandline import executable
from tests.plan.test_selection import chosen
from tests.rows import each
from tests.users import nobody, open_folder
from tfbuild.context import dockerfile
from tfbuild.errors import BadInput, TfbuildError, Unsupported, UsageError
from tfbuild.pipeline import build_context
from tfbuild.plan import source

DIFF = "--- a/configure.py\n+++ b/configure.py\n@@ -1 +1 @@\n-print(1)\n+print(2)\n"
SOURCE: dict[str, Any] = {"release": "2.14.1", "target": "cpu", "cpu": "x86-64-v3"}


@pytest.fixture
def diff(tmp_path: Path) -> Path:
    path = tmp_path / "my fix.patch"
    path.write_text(DIFF)
    return path


@pytest.fixture
def eigen(tmp_path: Path) -> Path:
    folder = tmp_path / "eigen"
    folder.mkdir()
    (folder / "WORKSPACE").write_text("")
    (folder / "BUILD").write_text("# ours\n")
    return folder


def test_they_are_in_the_context_and_in_what_writes_it_again(diff: Path, eigen: Path, tmp_path: Path) -> None:
    second = tmp_path / "another.patch"
    second.write_text(DIFF.replace("print(1)", "print(2)").replace("+print(2)", "+print(3)"))
    build = chosen(
        **SOURCE,
        patch=(str(diff), str(second)),
        override_repository=(f"eigen_archive={eigen}",),
        system_lib=("hwloc", "curl", "zlib=zlib1g-dev"),
        configure=("TF_ENABLE_XLA=0", "TF_NEED_ROCM=1"),
    )
    folder = build_context.write_context(build, tmp_path / "context").folder
    assert [path.name for path in sorted((folder / "patches").iterdir())] == ["01-my-fix.patch", "02-another.patch"]
    assert (folder / "patches/01-my-fix.patch").read_text() == DIFF
    with tarfile.open(folder / "overrides/eigen_archive.tar") as tar:
        assert {member.name.partition("/")[2] for member in tar} >= {"WORKSPACE", "BUILD"}
    bazelrc = (folder / "bazelrc").read_text()
    assert "build --override_repository=eigen_archive=/opt/overrides/eigen_archive\n" in bazelrc
    text = (folder / "Dockerfile").read_text()
    assert {"libcurl4-openssl-dev", "libhwloc-dev", "zlib1g-dev"} <= set(text.split())
    assert build.to_json()["system_libs"] == [
        {"name": "hwloc", "packages": ["libhwloc-dev"]}, {"name": "curl", "packages": ["libcurl4-openssl-dev"]},
        {"name": "zlib", "packages": ["zlib1g-dev"]},
    ]  # fmt: skip
    for answer in ("TF_SYSTEM_LIBS=curl,hwloc,zlib", "TF_ENABLE_XLA=0", "TF_NEED_ROCM=1"):
        assert text.count(f"export {answer} ") == text.count("export PYTHON_BIN_PATH=")
    assert "export TF_NEED_ROCM=0 " not in text
    command = dockerfile.command(build)
    for words in ("patch 'my fix.patch'", "override-repository eigen_archive=eigen", "system-lib zlib=zlib1g-dev"):
        assert f"--{words}" in command


def test_a_hundred_patches_are_applied_in_their_order(diff: Path, tmp_path: Path) -> None:
    folder = build_context.write_context(chosen(**SOURCE, patch=(str(diff),) * 100), tmp_path / "context").folder
    assert [path.name[:4] for path in sorted((folder / "patches").iterdir())][8:10] == ["009-", "010-"]


def test_an_archive_of_python_is_unpacked_where_bazel_is_told_to_take_it(tmp_path: Path) -> None:
    archive = tmp_path / "my-python.tar.gz"
    archive.write_bytes(b"archive")
    sha256 = "0eb3e36bfb24dcd9bb1d1bece1531216b59539a8fde17ee80224af0653c92aa3"
    build = chosen(release="2.20.0", cpu="avx2", hermetic_python=str(archive))
    folder = build_context.write_context(build, tmp_path / "context").folder
    assert {f"build --repo_env=HERMETIC_PYTHON_{setting}" for setting in (
        "URL=file:///opt/overrides/hermetic-python/my-python.tar.gz", f"SHA256={sha256}",
    )} <= set((folder / "bazelrc").read_text().splitlines())  # fmt: skip
    with tarfile.open(folder / "overrides/hermetic-python.tar") as tar:
        assert [member.name.partition("/")[2] for member in tar] == ["my-python.tar.gz"]
    assert "source=overrides,target=/mnt/overrides" in (folder / "Dockerfile").read_text()


def test_what_the_scripts_of_a_compile_call_is_mounted_where_they_look(tmp_path: Path) -> None:
    build = chosen(**SOURCE, compiler="clang-16", bolt=True)
    folder = build_context.write_context(build, tmp_path / "context").folder
    stages = re.split(r"^FROM ", (folder / "Dockerfile").read_text(), flags=re.MULTILINE)
    for script in ("compile.sh", "toolchain.sh", "source.sh", "system.sh"):
        called = set(re.findall(r"/mnt/\w+\.(?:py|sh)", (folder / "scripts" / script).read_text()))
        running = [stage for stage in stages if f"sh /mnt/{script}" in stage]
        assert called, script
        assert running, script
        for stage in running:
            assert called <= set(re.findall(r"target=(/mnt/\S+)", stage)), script


def test_each_changes_the_contexts_digest_and_the_identifier(diff: Path, eigen: Path, tmp_path: Path) -> None:
    amended: list[dict[str, Any]] = [
        {"patch": (str(diff),)}, {"override_repository": (f"eigen_archive={eigen}",)},
    ]  # fmt: skip
    requests: list[dict[str, Any]] = [{}, {"system_lib": ("curl",)}, {"configure": ("TF_ENABLE_XLA=0",)}, *amended]
    builds = [chosen(**SOURCE, **options) for options in requests]
    assert [any(build.as_released) for build in builds] == [not build.patches for build in builds]
    # Another file in a repository, and another line in a patch, are another context and another identifier.
    digests = {build_context.write_context(build, tmp_path / build.id).digest for build in builds}
    (eigen / "BUILD").write_text("# changed\n")
    diff.write_text(DIFF.replace("print(2)", "print(3)"))
    changed = [chosen(**SOURCE, **options) for options in amended]
    digests |= {build_context.write_context(build, tmp_path / build.id).digest for build in changed}
    assert len({build.id for build in (*builds, *changed)}) == len(digests) == 7


def test_a_folder_has_the_same_identifier_wherever_and_whenever_it_was_unpacked(eigen: Path, tmp_path: Path) -> None:
    def identifier(folder: Path) -> str:
        return chosen(**SOURCE, override_repository=(f"eigen_archive={folder}",)).id

    (eigen / "Eigen").mkdir()
    (eigen / "Eigen/Core").write_text("")
    (eigen / "latest").symlink_to("Eigen")
    usual = identifier(eigen)
    copy = tmp_path / "mirror/eigen-3.4"
    shutil.copytree(eigen, copy, symlinks=True, copy_function=shutil.copyfile)  # today's times
    (copy / "BUILD").chmod(0o600)
    (copy / ".git").mkdir()
    (copy / ".git/index").write_text("not packed")
    assert identifier(copy) == usual
    seen = {usual}
    kernel, latest = copy / "Eigen/Core", copy / "latest"
    for change in (
        partial(kernel.write_text, "x"),
        partial(kernel.chmod, 0o755),
        partial(kernel.rename, copy / "Eigen/Kern"),
        latest.unlink,
        partial(latest.symlink_to, "WORKSPACE"),
    ):
        change()
        assert identifier(copy) not in seen
        seen.add(identifier(copy))


def test_a_folder_with_a_link_to_nothing_is_taken_and_one_with_a_file_that_cannot_be_read_is_not() -> None:
    with open_folder() as folder:
        for file in ("WORKSPACE", "BUILD"):
            (folder / file).write_text("")
        (folder / "gone").symlink_to("nowhere")
        assert source.override(f"eigen={folder}", "2.14.1").sha256
        (folder / "sub").mkdir(mode=0)
        for unreadable in ("sub", "BUILD"):
            (folder / unreadable).chmod(0)
            with nobody(), pytest.raises(BadInput, match=f"{unreadable} cannot be read: Permission denied"):
                source.override(f"eigen={folder}", "2.14.1")
            (folder / unreadable).chmod(0o755)


@pytest.mark.parametrize("file", ["cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt"])
def test_an_llvm_of_another_major_version_than_the_releases_is_refused(file: str, eigen: Path) -> None:
    (eigen / "llvm").mkdir()
    (eigen / file).parent.mkdir(parents=True, exist_ok=True)
    for major, release in ((16, "2.14.1"), (22, "2.21.0")):
        (eigen / file).write_text(f"  set(LLVM_VERSION_MAJOR {major})\n  set(LLVM_VERSION_MINOR 1)\n")
        request = {**SOURCE, "release": release, "override_repository": (f"llvm-raw={eigen}",)}
        with pytest.raises(BadInput, match=f"is LLVM {major}, and TensorFlow {release} is built with") as refusal:
            chosen(**request)
        assert "LLVM_COMMIT" in refusal.value.hint
    # Of 2.14.1 one was compiled with an older LLVM, and trees of 2.22 name two.
    for major, release in ((17, "2.14.1"), (23, "2.21.0"), (23, "2.22.0rc0"), (24, "2.22.0rc0")):
        (eigen / file).write_text(f"  set(LLVM_VERSION_MAJOR {major})\n")
        assert source.override(f"llvm-raw={eigen}", release).path == eigen
    # Not LLVM's tree, whatever its files say.
    (eigen / "llvm").rename(eigen / "eigen")
    assert chosen(**{**request, "release": "2.14.1"}).overrides


def program(path: Path) -> Path:
    return executable(path, "echo Build label: 7.7.1")


def test_a_bazel_of_ones_own_is_packed_and_brings_the_edits_that_it_needs(tmp_path: Path) -> None:
    file = program(tmp_path / "bazel-7.7.1-linux-x86_64")
    installed = program(tmp_path / "bazel7/bin/bazel")
    (tmp_path / "bazel7/share").mkdir()
    (tmp_path / "bazel7/share/tools").write_text("ours\n")
    for path, names in ((file, {"bin/bazel"}), (tmp_path / "bazel7", {"bin/bazel", "share/tools"})):
        build = chosen(**SOURCE, bazel=f"7.7.1={path}")
        assert (build.bazel, build.own_bazel) == ("7.7.1", path)
        assert "not certain: whether Bazel 7.7.1 builds TensorFlow 2.14.1, whose own is 6.1.0" in build.notes
        folder = build_context.write_context(build, tmp_path / f"context-{path.name}").folder
        with tarfile.open(folder / "bazel/bazel.tar") as tar:
            members = {member.name.partition("/")[2]: member.mode for member in tar}
        assert members.keys() == names
        assert members["bin/bazel"] == 0o755
        text = (folder / "Dockerfile").read_text()
        assert "--mount=type=bind,source=bazel,target=/mnt/bazel \\\n    sh /mnt/toolchain.sh bazel" in text
        assert f"--bazel 7.7.1={path.name}" in text
    assert installed.is_file()
    # What it is called where does not matter, that it is not the release's own does.
    ids = {chosen(**SOURCE, bazel=bazel).id for bazel in (f"7.7.1={file}", f"7.7.1={tmp_path / 'bazel7'}")}
    assert len(ids) == 1
    assert not ids & {chosen(**SOURCE).id, chosen(**SOURCE, bazel="7.7.1").id}


def test_what_bazel_7_needs_changed_is_changed_up_to_the_release_that_has_it_itself(tmp_path: Path) -> None:
    own = f"7.7.1={program(tmp_path / 'bazel')}"
    for release, fixes in (("2.12.1", 11), ("2.14.1", 8), ("2.17.1", 7), ("2.19.1", 8), ("2.20.0", 0)):
        build = chosen(**{**SOURCE, "release": release}, bazel=own)
        assert len([row for row in build.fixes if "bazel" in row.when]) == fixes, release
        flags = {"--noenable_bzlmod", "--host_features=-force_no_whole_archive"}
        assert flags <= set(build.bazel_flags) or not fixes
        assert not [flag for flag in build.bazel_flags if "distinct_host" in flag]
    assert not [row for row in chosen(**SOURCE, bazel="6.5.0").fixes if "bazel" in row.when]


@each(
    "options, error, says",
    [
        ({"bazel": "7.7.1=none/bazel"}, BadInput, "no Bazel at none/bazel: "),
        ({"bazel": "7.7.1=tests"}, BadInput, "no Bazel at tests: "),
        ({"bazel": "7.7.1=README.md"}, BadInput, "not an executable"),
        ({"bazel": "=tests"}, UsageError, "not a Bazel version"),
        ({"configure": ("tf_enable_xla=0",)}, UsageError, "NAME=VALUE"),
        ({"patch": ("none.patch",)}, BadInput, "--patch none.patch: No such file or directory"),
        ({"patch": ("README.md",)}, BadInput, "not a unified diff"),
        ({"hermetic_python": "none.tar.gz"}, Unsupported, "2.14.1 takes no archive"),
        ({"hermetic_python": "none.tar.gz", "release": "2.20.0"}, BadInput, "none.tar.gz: No such file or directory"),
        ({"override_repository": ("eigen=",)}, UsageError, "'eigen=' is not NAME=FOLDER"),
        ({"override_repository": ("eigen=none",)}, BadInput, "no folder at none: No such file or directory"),
        ({"override_repository": ("eigen=README.md",)}, BadInput, "no folder at README.md: not a folder"),
        ({"override_repository": ("eigen=tests",)}, BadInput, "tests has no WORKSPACE file, so Bazel does not take it"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], error: type[TfbuildError], says: str) -> None:
    with pytest.raises(error, match=says) as refusal:
        chosen(**(SOURCE | options))
    assert refusal.value.hint


def test_a_repository_without_any_build_file_is_refused(eigen: Path) -> None:
    (eigen / "BUILD").rename(eigen / "BUILD.old")
    with pytest.raises(BadInput, match="has no BUILD file") as refusal:
        source.override(f"eigen_archive={eigen}", "2.14.1")
    assert refusal.value.hint.endswith(f"{eigen}/BUILD.bazel")
    (eigen / "WORKSPACE").rename(eigen / "REPO.bazel")
    (eigen / "Eigen").mkdir()
    (eigen / "Eigen/BUILD.bazel").write_text("")
    assert source.override(f"eigen_archive={eigen}", "2.14.1").path == eigen
