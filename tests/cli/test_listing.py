"""What people read fits a terminal of eighty columns, and says which release, Python and compiler were taken."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commandline import answer, invoke
from tests.cpu.machines import machine
from tfbuild import plan
from tfbuild.plan import Request
from tfbuild.publish import choose
from tfbuild.publish.choose import Published

LINUX = ("--platform", "linux/amd64")
OLD = "processor : 0\nvendor_id : GenuineIntel\nmodel name : old\nflags : fpu lm sse sse2 pni\n"


def shown(*words: str | Path) -> list[str]:
    """The lines that a command prints to stdout; on a terminal of eighty columns, none is longer."""
    done = answer(*words, terminal=True)
    assert done.returncode == 0, done.stderr
    assert max(map(len, f"{done.stdout}{done.stderr}".splitlines())) <= 80
    return str(done.stdout).splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--cpu", "sapphirerapids", "--full", *LINUX),
        ("plan", "--cpu", "haswell", "--target", "cuda", "--release", "2.15", *LINUX),
        ("plan", "--wheel", "official", "--cpu", "haswell", *LINUX),
        ("copts", "--explain", "--cpu", "sapphirerapids", *LINUX),
        ("cpus", "zen"),
    ],
    ids=shlex.join,
)
def test_it_fits_eighty_columns(words: tuple[str, ...]) -> None:
    assert shown(*words)


def names_of(lines: list[str]) -> list[str]:
    """The names in the first of two columns."""
    return [re.split("  +", line)[0] for line in lines if line[:1].strip()]


@pytest.mark.parametrize(
    ("cpuinfo", "more", "answered"),
    [
        (machine("unknown-sapphirerapids").cpuinfo(), ["bfloat16", "conda-forge"], "use AVX2 AVX512F AVX512_VNNI"),
        (OLD, ["conda-forge"], "this CPU: the official wheel of 2.21.0 (Illegal instruction), for lack of avx f16c;"),
    ],
)
def test_the_gain_begins_with_the_answer(cpuinfo: str, more: list[str], answered: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    lines = shown("gain", "--cpuinfo", tmp_path / "cpuinfo")
    blank = lines.index("")
    assert answered in " ".join(lines[:blank])
    row = re.compile(r" \d\.\d\d \[\d\.\d\d, \d\.\d\d\]  (faster|slower|the same)")
    table = [*filter(row.search, lines[blank:])]
    assert ("measured" in names_of(lines)) == bool(table) == ("Measured for" in " ".join(lines[:blank]))
    assert [name for name in names_of(lines) if name in ("bfloat16", "conda-forge", "zentf")] == more


def test_another_cpu_is_named() -> None:
    """Also where this machine's cannot be read, as in a container for another architecture."""
    code = "import platform; platform.machine = lambda: 'riscv64'; from tfbuild.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "gain", "--cpu", "Xeon X5650"], capture_output=True, check=False)
    assert (done.returncode, done.stdout[:19]) == (0, b"Crashes on this CPU"), done.stderr


def test_a_plan_is_what_people_look_for_and_what_is_doubtful_and_in_full_everything() -> None:
    names = names_of(shown("plan", "--cpu", "x86-64-v3", "--compiler", "clang-19", "--target", "cuda", *LINUX))
    assert names == [
        "id", "release", "python", "target", "platform", "instruction set", "wheel", "compiler", "copts", "base image",
        "cuda", "cudnn", "compute capabilities", "compile takes", "note", "note",
    ]  # fmt: skip
    lines = shown("plan", "--cpu", "x86-64-v3", "--full", *LINUX)
    full = names_of(lines)
    assert (full[:10], full[full.index("note") - 1]) == (names[:10], "compile takes")
    assert full.count("note") > 1
    assert not {"level", "notes", "cuda", "cudnn"} & {*full}
    assert "None" not in "\n".join(lines)
    assert all(part in "\n".join(lines) for part in ("tag=v", "slim-trixie, with glibc 2.41"))


FITTING = Published(
    id="2.21.0-mkl-py3.13-x86-64-v3", digest="sha256:1", release="2.21.0", target="mkl", python="3.13",
    platform="linux/amd64", instruction_set="x86-64-v3", features=frozenset(("avx2",)), created="2026-11-01T00:00:00Z",
)  # fmt: skip


def test_what_a_pull_passes_over_is_grouped_by_reason() -> None:
    larger = [replace(FITTING, id=f"larger-{number}", features=frozenset(("avx512f",))) for number in range(5)]
    other = replace(FITTING, id="other", platform="linux/arm64", features=frozenset())
    choice = choose.choose([FITTING, *larger, other], platform="linux/amd64", features=frozenset(("avx2",)))
    lines = choose.passed_over_lines(choice.passed_over)
    assert sorted(lines) == ["not larger-4, larger-3 and 3 more: this CPU lacks avx512f", "not other: for linux/arm64"]


# --- one default everywhere -------------------------------------------------------------------------------------------


def test_every_verb_speaks_of_the_same_release_python_and_compiler(tmp_path: Path) -> None:
    request = ("--cpu", "haswell", *LINUX)
    (planned,) = json.loads(invoke("plan", *request, "--json").stdout)
    taken = {key: planned[key] for key in ("release", "compiler")}
    answered = json.loads(invoke("copts", *request, "--json").stdout)
    assert {key: answered[key] for key in taken} == taken
    assert f"TensorFlow {taken['release']}, {taken['compiler']}" in invoke("copts", *request).stderr
    done = invoke("build", *request, "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)[0].items() >= {"python": planned["python"], **taken}.items()
    assert "note: " not in done.stderr, "the plan has them"


@pytest.mark.parametrize("release", ["", "2.21", "2.15", "2.12.0"])
@pytest.mark.parametrize("compiler", ["", "gcc-12"])
def test_what_is_usual_is_what_is_planned(release: str, compiler: str) -> None:
    usual = plan.usual("x86_64", release, compiler)
    request = Request(target="cpu", release=release, compiler=compiler, cpu="x86-64-v2", platform="linux/amd64")
    planned = plan.select(request, None)
    assert usual == (planned.release, planned.compiler)


def test_the_level_of_a_cpu_is_told(tmp_path: Path) -> None:
    for text, level in ((machine("rhel7-haswell").cpuinfo(), "x86-64-v3"), (OLD, "x86-64-v1")):
        (tmp_path / "cpuinfo").write_text(text)
        assert re.search(rf"^level +{level}$", invoke("detect", "--cpuinfo", tmp_path / "cpuinfo").stdout, re.MULTILINE)
