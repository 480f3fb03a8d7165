"""Known failures: every row, the lines by which they are known again, which builds they concern, and their fixes."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.facts import trees
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.errors import BuildFailed, UsageError
from tfbuild.facts import releases, toolchains
from tfbuild.pipeline import compiling
from tfbuild.plan import Build, Request, explain, failures
from tfbuild.plan.failures import Circumstances, Failure
from tfbuild.util.progress import Progress

ROWS = failures.table().failure
DATA = Path(__file__).parents[1] / "data"
ALL = tuple(row.version for row in releases.releases())
# Lines of real logs, from the reports that the rows name.
LINES = {
    "grpc-gettid": "external/grpc/src/core/lib/gpr/log_linux.cc:43:13: error: ambiguating new declaration of "
    "‘long int gettid()’",
    "gcc11-limits": "external/ruy/ruy/block_map.cc:395:25: error: 'numeric_limits' is not a member of 'std'",
    "gcc13-cstdint": "tensorflow/lite/kernels/internal/spectrogram.cc:46:22: error: ‘uint32_t’ was not declared in "
    "this scope",
    "gcc15-cstdint": "external/tf_runtime/include/tfrt/support/forward_decls.h:110:15: error: 'int64_t' does not name "
    "a type",
    "clang-offsetof": "external/upb/upb/upb.c:192:10: error: defining a type within 'offsetof' is a Clang extension "
    "[-Werror,-Wgnu-offsetof-extensions]",
    "clang19-offsetof": "external/upb/upb/upb.c:192:10: error: defining a type within 'offsetof' is a C23 extension "
    "[-Werror,-Wc23-extensions]",
    "clang-lld": "ld.lld: error: version script assignment of 'global' to symbol 'init_pywrap_tf2' failed: symbol not "
    "defined",
    "gcc12-avxvnniint8": "gcc: error: unrecognized command-line option '-mavxvnniint8'; did you mean '-mavxvnni’?",
    "gcc-quant-params": "/usr/include/c++/13/bits/unique_ptr.h:1070:30: error: call of overloaded "
    "'DefaultQuantParamsPass(const mlir::TFL::DefaultQuantParamsPassOptions&)' is ambiguous",
    "ruy-avx512-gcc": "tensorflow/lite/experimental/ruy/kernel_avx512.cc:161:32: error: '_mm512_loadu_epi32' was not "
    "declared in this scope; did you mean '_mm512_load_epi32'?",
    "opt-undefined": "ERROR: Config value 'opt' is not defined in any .rc file",
    "numpy119-bfloat16": "tensorflow/python/lib/core/bfloat16.cc:608:60: error: no match for call to "
    "'(tensorflow::{anonymous}::Initialize()::<lambda(const char*, PyUFuncGenericFunction, const std::array<int, 3>&)'",
    "xnnpack-si32": "external/XNNPACK/src/xnnpack/intrinsics-polyfill.h:27:6: error: conflicting types for "
    "‘_mm_storeu_si32’; have ‘void(const void *, __m128i)’",
    "gcc8-211": "tensorflow/compiler/mlir/quantization/tensorflow/python/quantize_model.cc:140:10: error: could not "
    "convert 'dump_file' from 'std::unique_ptr<llvm::raw_fd_ostream>' to 'absl::lts_20220623::StatusOr<",
    "python-symlink": "/usr/bin/env: 'python': No such file or directory",
    "python-numpy-abi": "RuntimeError: module compiled against API version 0xe but this version of numpy is 0xd",
    "protobuf-python-4": "TypeError: Descriptors cannot not be created directly.",
    "numpy2-runtime": "AttributeError: _ARRAY_API not found",
    "distutils-312": "ModuleNotFoundError: No module named 'distutils'",
    "gcc12-needed-217": "gcc: error: unrecognized command-line option '-mavx512fp16'; did you mean '-mavx512bf16'?",
    "gcc-cuda-218": "gcc: error: unrecognized command-line option '--cuda-gpu-arch=sm_80'",
    "patchelf": "build_pip_package.sh: line 270: patchelf: command not found",
    "patchelf-218": "FileNotFoundError: [Errno 2] No such file or directory: 'patchelf'",
    "rsync": "build_pip_package.sh: line 150: rsync: command not found",
    "zlib-404": "Error downloading [https://zlib.net/zlib-1.2.12.tar.gz] to /x/temp/zlib-1.2.12.tar.gz: GET returned "
    "404 Not Found",
    "env-python3": "env: 'python3': No such file or directory",
    "avx512-eigen-215": "MathFunctions.h:429:12: error: invalid ‘static_cast’ from type ‘const "
    "Eigen::internal::eigen_packet_wrapper<__vector(4) long long int, 1>’ to type ‘__vector(16) float’",
    "avx512fp16-gcc13": "PacketMathFP16.h:115:26: error: invalid ‘static_cast’ from type ‘const Eigen::half’ to type "
    "‘_Float16’",
    "oom": "gcc: fatal error: Killed signal terminated program cc1plus",
    "local_ram_resources-unknown": "ERROR: Unrecognized option: --local_ram_resources=2048",
    "python-default": "TF_PYTHON_VERSION variable was not set correctly, using default version",
    "lock-file-python": "Could not find requirements_lock.txt file matching specified Python version",
    "cuda-wheel": "ERROR: TF wheel shouldn't be built with CUDA dependencies",
}
MORE = (
    ("gcc13-cstdint", "tensorflow/tsl/lib/io/cache.h:99:13: error: ‘uint64_t’ in namespace ‘std’ does not name a type"),
    ("gcc13-cstdint", "./tensorflow/tsl/lib/io/cache.h:99:8: error: no type named 'uint64_t' in namespace 'std'"),
    ("gcc13-cstdint", "tensorflow/lite/kernels/rng_util.h:26:12: error: use of undeclared identifier 'uint32_t'"),
    ("gcc13-cstdint", "a.cc:1:1: error: unknown type name 'uint8_t'"),
    ("grpc-gettid", "log_posix.cc:34:17: error: ambiguating new declaration of 'intptr_t gettid()'"),
    ("opt-undefined", "ERROR: Config value opt is not defined in any .rc file"),
)


def ids(rows: tuple[Failure, ...]) -> list[str]:
    return [row.id for row in rows]


def concerned(release: str, compiler: str, *features: str, system: str = "", target: str = "cpu") -> list[str]:
    base = toolchains.distribution(system)
    circumstances = Circumstances(release=release, target=target, compiler=compiler, features=features, base=base)
    return [row.id for row in failures.concerning(circumstances) if row.fixed or row.compiler]


def chosen(**options: Any) -> Build:
    return plan.select(replace(Request(platform="linux/amd64", cpu="x86-64-v3", target="cpu"), **options), None)


# --- every row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id} {row.since}")
def test_every_row_has_a_source_and_conditions_that_can_be_met(row: Failure) -> None:
    assert len(row.source) > 3
    assert re.fullmatch(r"[\w.+-]+", row.id)
    assert row.id == "local_ram_resources-unknown" or any(row.covers(release) for release in ALL)
    assert not row.compiler_before or row.compiler_from < row.compiler_before
    assert row.compiler or not (row.compiler_from or row.compiler_before)
    assert all(flag.startswith("--") and " " not in flag for flag in row.flags)
    assert all(edit.find != edit.replace and edit.find not in edit.replace for edit in row.edits)


def test_every_patch_has_its_row_and_every_row_its_patch() -> None:
    there = {path.stem for path in (dockerfile.TEMPLATES / "patches").glob("*.patch")}
    assert there == {row.id for row in ROWS if row.patch}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.patch or row.edits], ids=lambda row: f"{row.id} {row.since}"
)
def test_a_fix_applies_to_every_tree_of_its_range(row: Failure) -> None:
    names = [row.id] if row.patch else [f"{row.id} {edit.files}" for edit in row.edits]
    for release in (release for release in ALL if row.covers(release)):
        counts = [[tree.fixes.get(name, 0) for name in names] for tree in trees.around(release)]
        assert any(all(count) for count in counts), release
        assert not trees.of(release) or all(map(all, counts)), release


def test_a_config_that_a_fix_asks_for_stands_in_every_tree_of_its_range() -> None:
    names = [
        (row, flag.removeprefix("--config=")) for row in ROWS for flag in row.flags if flag.startswith("--config=")
    ]
    assert names
    for row, name in names:
        for release in (release for release in ALL if row.covers(release)):
            assert all(name in tree.facts.config_names for tree in trees.around(release))


# --- the log ---------------------------------------------------------------------------------------------------------


def test_every_row_that_can_be_known_again_has_a_line_here() -> None:
    assert set(LINES) == {row.id for row in ROWS if row.match}


@pytest.mark.parametrize(("name", "line"), [*LINES.items(), *MORE])
def test_a_line_is_known_again_and_taken_for_no_other_failure(name: str, line: str) -> None:
    log = f"#12 3.4 INFO: Analyzed target\n#12 5.678 {line}\n#12 9.0 Target failed to build\n"
    for release in {row.since for row in ROWS if row.id == name}:
        first = next((one for one in ALL if Version(release) <= Version(one)), "")
        assert ids(failures.matching(failures.known(first), log)) == [name] or name == "local_ram_resources-unknown"


@pytest.mark.parametrize("log", [*DATA.glob("buildkit/*.log"), *DATA.glob("bazel/*.log")], ids=lambda path: path.name)
def test_no_failure_is_seen_in_a_log_without_one(log: Path) -> None:
    assert not [row.id for row in ROWS if row.match and re.search(row.match, log.read_text(), re.M)]


def compiled(release: str) -> Build:
    return plan.select(Request(target="cpu", release=release, cpu="avx", platform="linux/amd64"), None)


def test_a_compile_that_dies_of_a_known_failure_says_so(tmp_path: Path) -> None:
    messages: list[str] = []

    class Told(Progress):
        def __call__(self, line: str) -> None:
            messages.append(line)

    log = tmp_path / "build.log"
    log.write_text(f"#7 1.0 {LINES['grpc-gettid']}\n")
    died = BuildFailed("the image could not be built", hint="the full log: x.log")
    error = compiling._known(compiled("2.1.0"), died, log, Told())
    assert error.hint.startswith("a known failure (grpc-gettid): the patch renames gRPC's")
    assert error.hint.endswith("; the full log: x.log")
    assert messages == [
        "known failure of TensorFlow 2.1.0 (grpc-gettid): gRPC's own gettid() is in the way of the one that glibc has "
        "from 2.30 on; workaround: the patch renames gRPC's; or a base with an older glibc"
    ]
    # Of a release that does not have it, it is another failure.
    assert compiling._known(compiled("2.14.1"), died, log, Told()) is died
    assert messages[-1] == "the log shows no known failure of TensorFlow 2.14.1"
    assert compiling._known(compiled("2.1.0"), died, tmp_path / "none.log", Told()) is died


# --- which builds they concern ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "ids"),
    [
        (["grpc-gettid", "python2-configuration"], concerned("2.0.4", "gcc-9", system="bullseye")),
        (
            ["grpc-gettid", "python2-configuration", "ruy-avx512-gcc", "avx512-fixed-point"],
            concerned("2.0.4", "gcc-9", "avx2", "avx512bw", system="bullseye"),
        ),
        (
            ["grpc-gettid", "python2-configuration", "avx512-fixed-point"],
            concerned("2.0.4", "clang-9", "avx512bw", system="bullseye"),
        ),
        (
            ["grpc-gettid", "python2-configuration", "avx512-fixed-point"],
            concerned("1.15.5", "gcc-9", "avx512bw", system="bullseye"),
        ),
        (["grpc-gettid", "python2-configuration", "gcc11-limits"], concerned("2.1.4", "gcc-12", system="bookworm")),
        ([], concerned("2.2.0", "gcc-10", system="bullseye")),
        (["gcc11-limits", "xnnpack-si32"], concerned("2.5.3", "gcc-11", system="bookworm")),
        ([], concerned("2.6.0", "gcc-12", system="bookworm")),
        (["gcc13-cstdint"], concerned("2.14.1", "gcc-13", system="trixie")),
        ([], concerned("2.14.1", "gcc-12", system="trixie")),
        # Clang takes the base's headers.
        (["clang-offsetof"], concerned("2.14.1", "clang-16", system="bookworm")),
        (["gcc13-cstdint", "clang-offsetof"], concerned("2.14.1", "clang-16", system="trixie")),
        (["gcc13-cstdint", "clang-offsetof"], concerned("2.14.1", "clang-16")),
        (["clang-offsetof", "clang-lld"], concerned("2.18.0", "clang-18", system="trixie")),
        (["clang19-offsetof", "clang-lld"], concerned("2.20.0", "clang-19", system="trixie")),
        (["gcc12-avxvnniint8", "gcc-quant-params"], concerned("2.19.1", "gcc-12", system="trixie")),
        (["avx512-fixed-point"], concerned("2.10.0", "gcc-12", "avx2", "avx512bw", system="bookworm")),
        (["gcc-cuda-218"], concerned("2.18.0", "gcc-13", system="trixie", target="cuda")),
    ],
)  # fmt: skip
def test_a_failure_concerns_the_builds_that_meet_its_conditions(expected: list[str], ids: list[str]) -> None:
    assert ids == expected


def test_a_plan_names_its_fixes_and_why() -> None:
    build = chosen(release="2.20.0", compiler="gcc-12")
    assert ids(build.fixes) == ["gcc12-avxvnniint8"]
    assert "--define=xnn_enable_avxvnniint8=false" in build.bazel_flags
    (note,) = (note for note in build.notes if note.startswith("fix "))
    assert note.startswith(
        "fix gcc12-avxvnniint8: XNNPACK asks for -mavxvnniint8, which GCC knows from 13 on: --define"
    )
    assert build.to_json()["fixes"] == ["gcc12-avxvnniint8"]
    assert build.variant == ("gcc-12",)


def test_explain_names_them_too() -> None:
    explanation = explain.explain(Request(release="2.20.0", compiler="gcc-12", cpu="x86-64-v3", platform="linux/amd64"))
    assert any(note.startswith("fix gcc12-avxvnniint8: XNNPACK asks for") for note in explanation.notes)


def test_the_users_own_flags_come_after_those_of_fixes() -> None:
    build = chosen(release="2.20.0", compiler="gcc-12", bazel_flag=("--define=xnn_enable_avxvnniint8=true",))
    assert [flag for flag in build.bazel_flags if "avxvnniint8" in flag] == [
        "--define=xnn_enable_avxvnniint8=false",
        "--define=xnn_enable_avxvnniint8=true",
    ]


def test_what_a_compiler_fails_at_without_a_fix_is_a_note() -> None:
    build = chosen(release="2.17.0", compiler="gcc-11", base="debian:bookworm")
    assert "known to fail (gcc12-needed-217)" in " ".join(build.notes)
    assert build.fixes == ()


def test_a_fix_can_be_left_out_and_makes_another_build() -> None:
    build = chosen(release="2.20.0", compiler="gcc-12", without_fix=("gcc12-avxvnniint8",))
    assert build.fixes == ()
    assert build.id != chosen(release="2.20.0", compiler="gcc-12").id
    assert "--without-fix gcc12-avxvnniint8" in dockerfile.command(build)


@pytest.mark.parametrize(
    ("compiler", "hint"), [("gcc-12", "it gets: gcc12-avxvnniint8"), ("gcc-13", "it gets none: leave it out")]
)
def test_a_fix_that_a_build_does_not_get_cannot_be_left_out(compiler: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--without-fix grpc-gettid: this build gets no such fix") as refusal:
        chosen(release="2.20.0", compiler=compiler, without_fix=("grpc-gettid",))
    assert refusal.value.hint == hint


# --- the context -----------------------------------------------------------------------------------------------------


def test_the_context_has_what_the_tree_needs_changed() -> None:
    build = chosen(release="2.1.4", compiler="gcc-10", base="debian:bullseye", cpu="x86-64-v3")
    files = dockerfile.files(build)
    assert files["fixes/grpc-gettid.patch"].startswith("--- a/tensorflow/workspace.bzl")
    assert {row["fix"] for row in json.loads(files["fixes/edits.json"])} == {"python2-configuration"}
    assert "--mount=type=bind,source=fixes,target=/mnt/fixes" in files["Dockerfile"]


def test_a_context_without_fixes_of_the_tree_has_no_folder_for_them() -> None:
    files = dockerfile.files(chosen(release="2.20.0", compiler="gcc-12"))
    assert not [name for name in files if name.startswith("fixes/")]
    assert "/mnt/fixes" not in files["Dockerfile"]


def test_a_context_with_fixes_is_written(tmp_path: Path) -> None:
    build = chosen(release="2.1.4", compiler="gcc-10", base="debian:bullseye")
    first, second = (dockerfile.write(build, tmp_path / name) for name in ("a", "b"))
    assert first.digest == second.digest
    assert (first.folder / "fixes" / "grpc-gettid.patch").is_file()


def edited(tree: Path, *rows: dict[str, str]) -> subprocess.CompletedProcess[str]:
    edits = tree.parent / "edits.json"
    edits.write_text(json.dumps(rows))
    command = [sys.executable, str(dockerfile.TEMPLATES / "edit.py"), str(tree), str(edits)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_edit_changes_every_file_of_its_pattern_and_no_other_byte(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    old, new = b'x\r\n\xff python_version = "PY2",\n' * 2, b'x\r\n\xff python_version = "PY3",\n' * 2
    for name in ("BUILD", "a/b/BUILD", "a/BUILD.txt"):
        (tree / name).write_bytes(old)
    (tree / "a" / "BUILD").symlink_to("/etc/hostname")
    edit = {"files": "**/BUILD", "find": 'python_version = "PY2"', "replace": 'python_version = "PY3"'}
    done = edited(tree, {"fix": "some", **edit})
    assert (done.returncode, done.stdout) == (0, "tfbuild: the fix some changed 2 files\n")
    assert [(tree / name).read_bytes() for name in ("BUILD", "a/b/BUILD", "a/BUILD.txt")] == [new, new, old]


def test_an_edit_that_finds_nothing_does_not_apply(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "BUILD").write_text("nothing")
    done = edited(tree, {"fix": "some", "files": "BUILD", "find": "what", "replace": "that"})
    assert done.returncode == 1
    assert done.stderr == "tfbuild: the fix some does not apply to this tree\n"
