"""A tree that is newer than the facts is planned with what it says itself."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from tests.facts import newest
from tests.rows import each
from tfbuild import plan
from tfbuild.errors import BadInput, Unsupported
from tfbuild.facts import release_table, releases
from tfbuild.plan import Request, cuda, decision
from tools import propose

NEXT = "2.99.0"
BAZELRC = """\
build:mkl_threadpool -c opt
common:cuda --config=cuda_version
common:cuda_version --config=cuda12_version
common:cuda12_version --repo_env=HERMETIC_CUDA_VERSION="12.5.1" --repo_env=HERMETIC_CUDNN_VERSION="9.3.0"
common:cuda13_version --repo_env=HERMETIC_CUDA_VERSION="13.0.0" --repo_env=HERMETIC_CUDNN_VERSION="9.12.0"
common:release_cpu_linux_clang_local --repo_env=BAZEL_COMPILER="/usr/lib/llvm-19/bin/clang"
"""
CONFIGURE = """\
def get_var(environ_cp, var_name):
  return environ_cp.get(var_name)
def main():
  get_var(environ_cp, 'TF_NEED_CLANG')
"""

CUDA_13_FIRST = release_table.Cuda(
    since="1.15", version="13.1.1", cudnn="9.19.1", others=("12.5.1",), others_cudnn=("9.9.0",), capabilities="9.0",
    hermetic=True, source="made up",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "tensorflow" / "tools" / "pip_package"
    package.mkdir(parents=True)
    (package / "BUILD").write_text('py_wheel(\n    name = "wheel",\n)\n')
    (tmp_path / "tensorflow" / "tf_version.bzl").write_text(f'TF_VERSION = "{NEXT}"\n')
    files = {".bazelversion": "8.1.0\n", ".bazelrc": BAZELRC, "configure.py": CONFIGURE}
    files |= dict.fromkeys(("requirements_lock_3_12.txt", "requirements_lock_3_13.txt"), "")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def planned(folder: Path, **options: str) -> plan.Build:
    request = Request(source=str(folder), cpu="x86-64-v3", platform="linux/amd64", **options)  # type: ignore[arg-type]
    return plan.select(request, None)


def test_a_newer_tree_is_planned_with_what_it_says(folder: Path) -> None:
    build = planned(folder)
    assert (build.release, build.bazel, build.python, build.compiler) == (NEXT, "8.1.0", "3.13", "clang-19")
    assert build.configs == ("mkl_threadpool",)
    assert [name for name, _ in build.configure_env] == ["TF_NEED_CLANG"]
    notes = [note for note in build.notes if "read from the tree" in note]
    assert [note for note in notes if "Bazel 8.1.0 (.bazelversion)" in note]
    assert [note for note in notes if "Python 3.12, 3.13 (requirements_lock_3_*.txt)" in note]
    assert f"not certain: TensorFlow {NEXT} is newer than this tfbuild; what its tree does not say is taken from " in (
        "\n".join(build.notes)
    )


@each("ending", [".post1", "+rocm"])
def test_a_fork_is_planned_as_the_release_that_it_is_a_fork_of(ending: str, folder: Path) -> None:
    (folder / "tensorflow" / "tf_version.bzl").write_text(f'TF_VERSION = "{NEXT}{ending}"\n')
    assert planned(folder).release == NEXT


def test_the_facts_are_as_before_once_the_tree_is_planned_and_another_has_its_own(folder: Path) -> None:
    before = releases.bazel(newest.RELEASE), releases.pythons(NEXT)
    assert planned(folder).compiler == "clang-19"
    assert (releases.bazel(newest.RELEASE), releases.pythons(NEXT)) == before
    (folder / ".bazelrc").write_text(BAZELRC.replace("llvm-19", "llvm-17"))
    assert planned(folder).compiler == "clang-17"


def test_a_tree_without_the_config_of_onednn_is_built_with_the_onednn_that_every_build_has(folder: Path) -> None:
    build = planned(folder)
    assert (build.configs, decision.ONEDNN_IN_ALL in build.notes) == (("mkl_threadpool",), False)
    (folder / ".bazelrc").write_text(BAZELRC.replace("build:mkl_threadpool -c opt\n", ""))
    build = planned(folder)
    assert (build.configs, decision.ONEDNN_IN_ALL in build.notes) == ((), True)
    assert decision.ONEDNN_IN_ALL not in planned(folder, target="cpu").notes


def test_a_cuda_of_another_major_version_gets_the_cudnn_that_the_tree_names_with_it(folder: Path) -> None:
    build = planned(folder, target="cuda", cuda="13.0", compute_capabilities="9.0")
    assert (build.cuda, build.cudnn) == ("13.0.0", "9.12.0")
    assert [note for note in build.notes if "CUDA 12.5.1 with cuDNN 9.3.0, or 13.0.0 with 9.12.0, for sm_60" in note]
    assert f"not certain: that TensorFlow {NEXT} builds with CUDA 13.0.0; its .bazelrc names that CUDA" in build.notes
    assert planned(folder, target="cuda", compute_capabilities="9.0").cudnn == "9.3.0"
    assert planned(folder, target="cuda", cuda="13.0", compute_capabilities="9.0", cudnn="9.11").cudnn == "9.11.0"


def test_a_cuda_for_which_no_cudnn_is_known_is_refused_with_those_of_the_release() -> None:
    # No --cuda: an older one is taken for the GPUs that the release's own does not compile for.
    gpus = cuda.parse_capabilities("sm_60,sm_70,compute_90")
    with release_table.using(msgspec.structs.replace(release_table.table(), cuda=(CUDA_13_FIRST,))):
        nearest = cuda.cuda_version(newest.RELEASE, gpus)
        with pytest.raises(Unsupported, match=r"no cuDNN is known to work with CUDA 12\.5\.1") as refusal:
            cuda.cudnn_version(newest.RELEASE, nearest)
    assert refusal.value.hint.startswith("--cudnn VERSION, one of: 9.9.0; or choose other GPUs")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (".bazelrc", b"build --copt='x\n", ".bazelrc: No closing quotation: build --copt='x"),
        (".bazelrc", b"\xff\xfe", ".bazelrc cannot be read: it is not text"),
        (".bazelversion", b"9" * 5000, f"cannot be planned: .bazelversion: '{'9' * 50}' is not a version of Bazel"),
    ],
)
def test_a_tree_that_cannot_be_read_is_one_error_with_its_hint(
    name: str, content: bytes, reason: str, folder: Path
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(reason)) as refusal:
        planned(folder)
    assert "restore that file" in refusal.value.hint


@each(
    "old, new",
    [
        (' --repo_env=HERMETIC_CUDNN_VERSION="9.12.0"', ""),
        ("13.0.0", "latest"),
        ('--repo_env=HERMETIC_CUDA_VERSION="13.0.0"', "--config=cuda13_version"),  # configs that stand for each other
    ],
)
def test_a_config_that_does_not_name_a_cuda_and_its_cudnn_says_nothing_about_them(
    old: str, new: str, folder: Path
) -> None:
    (folder / ".bazelrc").write_text(BAZELRC.replace(old, new))
    build = planned(folder, target="cuda", compute_capabilities="9.0")
    assert (build.cuda, build.cudnn) == ("12.5.1", "9.3.0")


def test_a_tree_whose_compiler_or_python_no_base_has_says_what_to_name(folder: Path) -> None:
    (folder / ".bazelrc").write_text(BAZELRC.replace("llvm-19", "llvm-99"))
    with pytest.raises(Unsupported, match=f"a compiler that is known to build TensorFlow {NEXT} is not in") as refusal:
        planned(folder)
    assert refusal.value.hint.startswith("--compiler with one of: gcc-")
    for path in folder.glob("requirements_lock_*"):
        path.unlink()
    (folder / "requirements_lock_3_99.txt").touch()
    with pytest.raises(Unsupported, match=r"no base image with Python 3\.99 is known") as refusal:
        planned(folder)
    assert refusal.value.hint == "--base NAME, with an image that has it"


def test_a_candidate_s_tree_may_be_named_as_it_names_itself(folder: Path) -> None:
    (folder / "tensorflow" / "tf_version.bzl").write_text('TF_VERSION = "2.99.0-rc0"\n')
    assert {planned(folder, release=text).release for text in ("", "2.99.0-rc0", "2.99.0rc0")} == {"2.99.0rc0"}


def test_a_known_release_keeps_its_facts_and_says_what_its_tree_says_otherwise(folder: Path) -> None:
    (folder / "tensorflow" / "tf_version.bzl").write_text(f'TF_VERSION = "{newest.RELEASE}"\n')
    build = planned(folder)
    assert build.bazel == releases.bazel(newest.RELEASE)
    assert [note for note in build.notes if note.startswith("the tree says ")] == [
        f"the tree says {what}, unlike TensorFlow {newest.RELEASE}"
        for what in ("Bazel 8.1.0 (.bazelversion)", "Python 3.12, 3.13 (requirements_lock_3_*.txt)")
    ]


def test_the_rows_for_a_new_release_are_proposed_from_its_tree(folder: Path) -> None:
    text = propose.proposed(folder)
    rows = tomllib.loads(text)
    assert rows["bazel"] == [{"from": NEXT, "version": "8.1.0", "source": ".bazelversion"}]
    assert rows["python"][0]["versions"] == ["3.12", "3.13"]
    assert {"from": NEXT, "name": "cuda13_version"} in rows["config"]
    assert "# .bazelrc has no --config=mkl_aarch64: end the row config mkl_aarch64\n" in text
