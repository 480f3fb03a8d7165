"""What people read fits a terminal of eighty columns, and says which release, Python and compiler were taken."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.commandline import answer, invoke
from tests.cpu.machines import recordings
from tfbuild import plan
from tfbuild.plan import Request

LINUX = ("--platform", "linux/amd64")


def shown(*words: str | Path) -> list[str]:
    """The lines that a command prints to stdout, a terminal of eighty columns."""
    done = answer(*words, terminal=True)
    assert done.returncode == 0, done.stderr
    lines = str(done.stdout).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    return lines


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--cpu", "sapphirerapids", *LINUX),
        ("plan", "--cpu", "haswell", "--target", "cuda", "--release", "2.15", *LINUX),
        ("plan", "--wheel", "official", "--cpu", "haswell", *LINUX),
        ("copts", "--cpu", "sapphirerapids", *LINUX),
        ("explain", "--cpu", "sapphirerapids", *LINUX),
    ],
    ids=shlex.join,
)
def test_it_fits_eighty_columns(words: tuple[str, ...]) -> None:
    assert shown(*words)


def test_a_detected_cpu_fits_eighty_columns(tmp_path: Path) -> None:
    longest = max((row for row in recordings() if not row.refused), key=lambda row: len(row.features))
    (tmp_path / "cpuinfo").write_text(longest.text)
    lines = shown("detect", "--cpuinfo", tmp_path / "cpuinfo")
    assert [line.split()[0] for line in lines if line[:1].strip()][:3] == ["CPU", "level", "features"]


def test_copts_can_be_pasted_from_a_terminal_and_from_a_pipe() -> None:
    words = ("copts", "--cpu", "sapphirerapids", *LINUX)
    line = invoke(*words).stdout
    assert line.count("\n") == 1
    pasted = "printf '%s\\n' " + "\n".join(shown(*words))
    assert subprocess.check_output(["sh", "-c", pasted], text=True).split() == shlex.split(line)


def test_a_plan_begins_with_what_people_look_for_and_shows_no_python() -> None:
    lines = shown("plan", "--cpu", "x86-64-v3", *LINUX)
    assert [line[:15].strip() for line in lines[:7]] == [
        "id", "release", "python", "target", "platform", "instruction set", "compiler",
    ]  # fmt: skip
    assert "None" not in "\n".join(lines)
    assert "tag=v" in "\n".join(lines)


# --- one default everywhere -------------------------------------------------------------------------------------------


def test_every_verb_speaks_of_the_same_release_python_and_compiler(tmp_path: Path) -> None:
    request = ("--cpu", "haswell", *LINUX)
    (planned,) = json.loads(invoke("plan", *request, "--json").stdout)
    taken = {key: planned[key] for key in ("release", "python", "compiler")}
    for verb in ("copts", "explain"):
        answered = json.loads(invoke(verb, *request, "--json").stdout)
        assert {key: answered[key] for key in taken} == taken
    words = f"TensorFlow {taken['release']}, Python {taken['python']}, {taken['compiler']}"
    assert words in invoke("copts", *request).stderr
    assert words in invoke("build", *request, "--dry-run", cwd=tmp_path).stderr
    table = invoke("explain", *request).stdout
    assert all(f"{name} {value}" in " ".join(table.split()) for name, value in (
        ("release", taken["release"]), ("Python", taken["python"]), ("compiler", taken["compiler"]),
    ))  # fmt: skip


@pytest.mark.parametrize("release", ["", "2.21", "2.15", "2.9.0", "2.4", "1.15.0"])
@pytest.mark.parametrize("compiler", ["", "gcc-9"])
def test_what_is_usual_is_what_is_planned(release: str, compiler: str) -> None:
    usual = plan.usual("x86_64", release, compiler)
    request = Request(target="cpu", release=release, compiler=compiler, cpu="x86-64-v2", platform="linux/amd64")
    planned = plan.select(request, None)
    assert (usual.release, usual.python, usual.compiler) == (planned.release, planned.python, planned.compiler)


def test_the_flags_of_a_compiler_that_no_base_image_has_can_be_asked_for() -> None:
    assert json.loads(invoke("copts", "--cpu", "haswell", *LINUX, "--compiler", "gcc-16", "--json").stdout)["copts"]


# --- suggestions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "better"),
    [
        (("--release", "2.2l"), ("--release", "2.21")),
        (("--python", "3.14"), ("--python", "3.13")),
        (("--python", "python3.12"), ("--python", "3.12")),
        (("--release", "2.14", "--python", "3.13"), ("--release", "2.21.0", "--python", "3.13")),
        (("--target", "gpu"), ("--target", "cuda")),
        (("--target", "onednn"), ("--target", "mkl")),
        (("--compiler", "clang"), ("--compiler", "clang-18")),
    ],
    ids=shlex.join,
)
def test_what_is_suggested_can_be_planned(words: tuple[str, ...], better: tuple[str, ...]) -> None:
    shared = ("plan", "--cpu", "x86-64-v3", *LINUX)
    refused = answer(*shared, *words)
    assert refused.returncode != 0
    new = [value for value in better if value not in words]
    assert all(value in refused.stderr.partition("hint: ")[2] for value in new)
    assert invoke(*shared, *better)


def test_a_bare_architecture_is_given_its_platform() -> None:
    assert answer("plan", "--cpu", "neoverse_n1", "--platform", "arm64").stderr.endswith(
        "hint: --platform linux/arm64\n"
    )
    assert invoke("plan", "--cpu", "neoverse_n1", "--platform", "linux/arm64")
