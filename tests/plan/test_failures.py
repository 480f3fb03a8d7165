"""Known failures: every row, the lines by which they are known again, which builds they concern, and their fixes."""

import ast
import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.facts import trees
from tests.facts.checks import check_ranges
from tests.rows import each
from tfbuild import facts, plan
from tfbuild.context import dockerfile
from tfbuild.errors import BuildFailed, UsageError
from tfbuild.facts import releases, targets, toolchains
from tfbuild.pipeline import compiling, diagnosis
from tfbuild.pipeline.bazel import KILLED
from tfbuild.plan import Build, Request, cuda, failures, rules
from tfbuild.plan.failures import Failure
from tfbuild.util.progress import Progress

ROWS = facts.rows("failures", failures.Failure)
GPUS = cuda.parse_capabilities("8.0")
DATA = Path(__file__).parents[1] / "data"
ALL = tuple(row.version for row in releases.releases())
# Lines of real logs: those by which the first rules were written, and those of reports that were gathered later.
LOGS = tomllib.loads((DATA / "reports.toml").read_text(encoding="utf-8"))
LINES = [(row["failure"], row["line"]) for row in LOGS["first"]]


def matching(release: str, text: str) -> list[str]:
    return ids(row for row in failures.known_failures(release) if row.matches(text))


def ids(rows: Iterable[Failure]) -> list[str]:
    return [row.id for row in rows]


def chosen(**options: Any) -> Build:
    return plan.select(replace(Request(platform="linux/amd64", cpu="x86-64-v3", target="cpu"), **options), None)


# --- every row -------------------------------------------------------------------------------------------------------


def test_the_rows_fit_together() -> None:
    check_ranges("failures.toml:", ROWS)
    assert {name for row in ROWS for name in row.targets} <= set(targets.names())
    assert [re.compile(row.match) for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id} {row.since}")
def test_every_row_has_a_source_and_conditions_that_can_be_met(row: Failure) -> None:
    assert len(row.source) > 3
    assert re.fullmatch(r"[\w.+-]+", row.id)
    assert any(row.covers(release) for release in ALL)
    pairs = [(one, text) for text in row.when.values() for one in ["0", "7.1", "8.7", "9.0rc1", "2.42", "12.6", "16"]]
    assert [pair for pair in pairs if failures.meets(*pair) is not SpecifierSet(pair[1]).contains(pair[0], True)] == []
    assert row.compiler or "compiler" not in row.when
    assert [flag for flag in row.flags if not (flag.startswith("--") and " " not in flag)] == []
    assert [edit for edit in row.edits if not (edit.find != edit.replace and edit.find not in edit.replace)] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.edits], ids=lambda row: f"{row.id} {row.since}")
def test_a_fix_applies_to_every_tree_of_its_range(row: Failure) -> None:
    names = [f"{row.id} {edit.files}" for edit in row.edits]
    for release in (release for release in ALL if row.covers(release)):
        counts = [[tree.fixes.get(name, 0) for name in names] for tree in trees.around(release)]
        assert any(all(count) for count in counts), release
        assert not trees.of(release) or all(map(all, counts)), release


def test_a_config_that_a_fix_asks_for_stands_in_every_tree_of_its_range() -> None:
    named = [(row, flag.partition("=")[2]) for row in ROWS for flag in row.flags if flag.startswith("--config=")]
    assert named
    for row, name in named:
        for release in (release for release in ALL if row.covers(release)):
            assert [tree for tree in trees.around(release) if name not in tree.facts.configs] == []


# --- the log ---------------------------------------------------------------------------------------------------------


def test_every_row_that_can_be_known_again_has_a_line_here() -> None:
    ids = {row.id for row in ROWS if row.match}
    assert ids <= {name for name, _ in LINES} | {row["failure"] for row in LOGS["report"]}
    assert ids >= {name for name, _ in LINES}


@each("name, line", LINES)
def test_a_line_is_known_again_and_taken_for_no_other_failure(name: str, line: str) -> None:
    for row in (row for row in ROWS if row.id == name):
        assert matching(next(release for release in ALL if row.covers(release)), log(line)) == [name]


@each("row", LOGS["report"])
def test_what_a_report_shows_is_named(row: dict[str, str]) -> None:
    """Where nothing is said, `why` says why not."""
    assert row["source"]
    assert bool(row["failure"]) != bool(row.get("why"))
    known = matching(row["release"] if releases.known(row["release"]) else ALL[0], log(row["line"]))
    if KILLED.search(row["line"]):
        known.append("memory")
    died = BuildFailed(f"the image could not be built\n  {row['line']}", hint="the full log: x.log")
    if (cause := diagnosis.explain(died)) is not died and "no such target" not in row["line"]:
        known.append(cause.reason)
    assert len(known) == bool(row["failure"]), known
    assert [text for text in known if row["failure"] not in text] == []


def log(line: str) -> str:
    return f"#12 3.4 INFO: Analyzed target\n#12 5.678 {line}\n#12 9.0 Target failed to build\n"


@each("path", [*DATA.glob("buildkit/*.log"), *DATA.glob("bazel/*.log")])
def test_no_failure_is_seen_in_a_log_without_one(path: Path) -> None:
    assert not [row.id for row in ROWS if row.match and re.search(row.match, path.read_text(), re.M)]


def test_a_compile_that_dies_of_a_known_failure_says_so(tmp_path: Path) -> None:
    def known(release: str, line: str) -> tuple[BuildFailed, str]:
        (tmp_path / "build.log").write_text(f"#7 1.0 {line}\n")
        stream = io.StringIO()
        error = compiling._known(chosen(release=release), died, tmp_path / "build.log", Progress(stream))
        return error, stream.getvalue()

    died = BuildFailed("the image could not be built", hint="the full log: x.log")
    error, said = known("2.15.1", "spectrogram.cc:46:22: error: 'uint32_t' was not declared in this scope")
    assert error.hint.startswith("a known failure (gcc13-cstdint): the flags include it everywhere")
    assert error.hint.endswith("; the full log: x.log")
    assert "known failure of TensorFlow 2.15.1 (gcc13-cstdint): GCC's headers no longer include" in said
    # Of a release that does not have it, it is another failure.
    error, said = known("2.12.1", "patchelf: command not found")
    assert error is died
    assert "the log shows no known failure of TensorFlow 2.12.1" in said


# --- which builds they concern ---------------------------------------------------------------------------------------


@each(
    "release, compiler, features, more, expected",
    [
        ("2.14.1", "gcc-13", (), {"system": "trixie"}, ["gcc13-cstdint"]),
        ("2.14.1", "gcc-12", (), {"system": "trixie", "target": "cuda", "cuda": "11.8"}, ["nvcc-gcc12"]),
        # Clang takes the base's headers.
        ("2.14.1", "clang-16", (), {"system": "bookworm"}, ["clang-offsetof"]),
        ("2.14.1", "clang-16", (), {}, ["gcc13-cstdint", "clang-offsetof", "boringssl-memchr"]),
        ("2.20.0", "clang-19", (), {"system": "trixie"}, ["clang19-offsetof", "clang-lld"]),
        ("2.12.0", "gcc-12", ("avx2", "avx512bw"), {"system": "bookworm"}, ["avx512-fixed-point"]),
        ("2.18.0", "gcc-13", (), {"system": "trixie", "target": "cuda"}, ["cuda-shared-alignment", "gcc-cuda-218"]),
        ("2.15.1", "clang-17", (), {"system": "trixie"}, ["gcc13-cstdint", "clang-offsetof", "clang-lld"]),
        ("2.20.0", "gcc-12", (), {"system": "trixie"}, ["gcc12-avxvnniint8", "gcc-pywrap"]),
        ("2.17.1", "clang-17", (), {"system": "bookworm", "target": "cuda", "gpus": GPUS},
         ["clang-offsetof", "clang-lld", "clang-cuda-path"]),
        ("2.21.0", "clang-18", (), {"system": "trixie", "bazel": "8.4.0"},
         ["clang-offsetof", "clang-lld", "hermetic-compiler", "bazel8-workspace"]),
        ("2.21.0", "clang-18", (), {"system": "trixie", "bazel": "9.0.0"},
         ["clang-offsetof", "clang-lld", "hermetic-compiler", "bazel9-workspace"]),
        ("2.18.0", "clang-18", (), {"system": "bookworm", "target": "cuda", "gpus": GPUS},
         ["clang-offsetof", "clang-lld", "cuda-shared-alignment"]),
        # nvcc, glibc 2.41 and Arm's header do not go together; Clang compiles on any of them.
        ("2.15.1", "gcc-12", (), {"system": "bookworm", "target": "cuda", "gpus": GPUS}, ["nccl-label-215"]),
        ("2.15.1", "gcc-12", (), {"system": "trixie", "target": "cuda", "gpus": GPUS, "arch": "aarch64"},
         ["nccl-label-215", "absl-neon", "cuda-glibc241"]),
    ],
)  # fmt: skip
def test_a_failure_concerns_the_builds_that_meet_its_conditions(
    release: str, compiler: str, features: tuple[str, ...], more: dict[str, Any], expected: list[str]
) -> None:
    build = {"target": "cpu", "arch": "x86_64", **more}
    debian = toolchains.distribution(build.pop("system", ""))
    rows = failures.concerning(release, compiler=compiler, features=features, debian=debian, **build)
    assert [row.id for row in rows if row.fixed or row.expected] == expected


def test_a_plan_names_its_fixes_and_why_and_the_users_own_flags_come_after_theirs() -> None:
    theirs, own = "--define=xnn_enable_avxvnniint8=false", "--define=xnn_enable_avxvnniint8=true"
    build = chosen(release="2.20.0", compiler="gcc-12", bazel_flag=(own,))
    assert [flag for flag in build.bazel_flags if "avxvnniint8" in flag] == [theirs, own]
    (note,) = (note for note in build.notes if note.startswith("fix "))
    assert note.startswith("fix gcc12-avxvnniint8: XNNPACK asks for -mavxvnniint8, which GCC knows from 13 on: --def")
    assert build.to_json()["fixes"] == ids(build.fixes) == ["gcc12-avxvnniint8"]


def test_a_plan_passes_over_a_compiler_and_a_base_that_are_known_to_fail() -> None:
    build = chosen(release="2.15.1", target="cuda")
    assert (build.compiler, build.base_image) == ("gcc-12", "python:3.11-slim-bookworm")
    assert any(note.startswith("clang-17 on python:3.11-slim-trixie is passed over") for note in build.notes)
    # Abseil's header for Arm does not go together with nvcc.
    arm = chosen(release="2.15.1", target="cuda", platform="linux/arm64", cpu="armv8.2-a")
    assert arm.compiler == "clang-17"
    assert any(note.startswith("not certain (cuda-clang-arm64): nobody is known") for note in arm.notes)
    # Neither nvcc and glibc 2.41 go together nor, on x86-64, Clang 18 and libstdc++ 14. Trixie has both.
    usual = ("x86-64-v3", "", "bookworm")
    for cpu, gpu, base in (("armv8.2-a", "", "trixie"), ("x86-64-v3", "12.0", "bookworm"), usual):
        build = chosen(release="2.20.0", target="cuda", cpu=cpu, platform="", compute_capabilities=gpu)
        assert (build.compiler, build.base_image) == ("clang-18", f"python:3.13-slim-{base}")
    assert any(note.startswith("not certain (cudnn-turing): pip installs the newest cuDNN 9") for note in build.notes)


@each(
    "cuda, system, expected",
    [
        ("12.9", {"debian": toolchains.distribution("trixie")}, ["cuda-glibc241"]),
        ("13.0", {"debian": toolchains.distribution("trixie")}, []),
        ("13.1.1", {"glibc": "2.42"}, ["cuda-glibc242"]),
        ("13.2", {"glibc": "2.42"}, []),
    ],
)
def test_cuda_13_goes_together_with_a_newer_glibc(cuda: str, system: dict[str, Any], expected: list[str]) -> None:
    rows = failures.concerning(
        "2.21.0", target="cuda", arch="x86_64", compiler="gcc-13", gpus=GPUS, cuda=cuda, **system
    )
    assert [name for name in ids(rows) if name.startswith("cuda-glibc")] == expected


@each(
    "base, told",
    [
        ("debian:trixie", "known to fail (cuda-glibc241): "),
        ("mirror.site/ours:1", "known to fail if the base has glibc >=2.41 (cuda-glibc241): "),
        ("ubuntu:24.04", ""),
        ("mirror.site/library/debian:bookworm-20260101-slim", ""),
        ("python:3.13-bookworm", ""),
    ],
)
def test_what_the_user_names_is_planned_and_told_to_be_known_to_fail(base: str, told: str) -> None:
    build = chosen(release="2.20.0", target="cuda", compute_capabilities="12.0", base=base)
    notes = [note for note in build.notes if "known to fail" in note]
    assert [note.startswith(told) for note in notes] == [True] * bool(told)


@each(
    "release, base, compiler",
    [
        ("2.15.1", "debian:bookworm", "gcc-12"),
        ("2.15.1", "python:3.11-slim-trixie", "clang-17"),  # where all fail, the surest is told to
        ("2.16.1", "ours:1", "gcc-12"),  # which fails on a newer glibc alone
        ("2.17.0", "ours:1", "clang-17"),  # and so does this one on a newer libstdc++
    ],
)
def test_a_base_that_the_user_names_gets_a_compiler_that_is_not_known_to_fail_there(
    release: str, base: str, compiler: str
) -> None:
    build = chosen(release=release, target="cuda", base=base)
    assert build.compiler == compiler
    assert build.id.endswith("-x86-64-v3"), "it is the default"
    assert build.toolchain is not None
    assert compiler in build.toolchain.cuda_base


@each(
    "base, condition, passed_over",
    [("ours:1", "glibc", False), ("ours:1", "libstdcxx", False), ("ours:1", "compiler", True),
     ("debian:bookworm", "glibc", True), ("debian:bookworm", "libstdcxx", True)],
)  # fmt: skip
def test_only_a_failure_that_a_base_certainly_has_passes_over_a_compiler(
    base: str, condition: Any, passed_over: bool
) -> None:
    surest = releases.compilers("2.17.1")[0].name
    row = Failure(id="x", symptom="x", workaround="x", source="x", when={condition: ">=1"})
    request = Request(base=base, python="3.11")
    _, compiler, *_ = rules.choose_builder(request, "2.17.1", lambda name, _: (row,) * (name == surest))
    assert (compiler != surest) == passed_over


def test_a_fix_can_be_left_out_which_makes_another_build_if_the_build_gets_it() -> None:
    build = chosen(release="2.20.0", compiler="gcc-12", without_fix=("gcc12-avxvnniint8",))
    assert build.fixes == ()
    assert build.id != chosen(release="2.20.0", compiler="gcc-12").id
    assert "--without-fix gcc12-avxvnniint8" in dockerfile.command(build)
    for compiler, hint in (("gcc-12", "it gets: gcc12-avxvnniint8"), ("gcc-13", "it gets none: leave it out")):
        with pytest.raises(UsageError, match="--without-fix gcc15-cstdint: this build gets no such fix") as refusal:
            chosen(release="2.20.0", compiler=compiler, without_fix=("gcc15-cstdint",))
        assert refusal.value.hint == hint


# --- the context -----------------------------------------------------------------------------------------------------


def test_the_context_has_what_the_tree_needs_changed() -> None:
    files = dockerfile.files(chosen(release="2.19.1", compiler="gcc-13"))
    assert {row["fix"] for row in json.loads(files["fixes/edits.json"])} == {"gcc-quant-params"}
    assert "--mount=type=bind,source=fixes,target=/mnt/fixes" in files["Dockerfile"]
    files = dockerfile.files(chosen(release="2.20.0", compiler="gcc-12"))
    assert not [name for name in files if name.startswith("fixes/")]
    assert "/mnt/fixes" not in files["Dockerfile"]


def edited(tree: Path, *rows: dict[str, str]) -> subprocess.CompletedProcess[str]:
    edits = tree.parent / "edits.json"
    edits.write_text(json.dumps(rows))
    command = [sys.executable, str(dockerfile.TEMPLATES / "edit.py"), str(tree), str(edits)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@each("script", sorted(dockerfile.TEMPLATES.glob("*.py")))
def test_the_builder_s_scripts_can_be_read_by_the_python_of_rhel_8(script: Path) -> None:
    assert ast.parse(script.read_text(), feature_version=(3, 6)).body


def test_an_edit_changes_every_file_of_its_pattern_and_no_other_byte_or_does_not_apply(tmp_path: Path) -> None:
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
    done = edited(tree, {"fix": "some", "files": "BUILD", "find": "what", "replace": "that"})
    assert (done.returncode, done.stderr) == (1, "tfbuild: the fix some does not apply to this tree\n")
