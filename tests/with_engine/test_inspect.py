"""`inspect` on real wheels and images: it tells them apart, and agrees with what TensorFlow says of each."""

import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild.binary import scan
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.util.progress import Progress

Invoke = Callable[..., "subprocess.CompletedProcess[str]"]
AVX = {"avx", "popcnt"}
HASWELL = AVX | {"avx2", "bmi1", "bmi2", "fma", "lzcnt", "movbe"}
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# What TensorFlow's guard asks for, and what the code of the main library needs.
WHEELS: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "official 2.14.0": (("tensorflow-cpu==2.14.0",), "AVX", AVX),
    "official 2.21.0": (("tensorflow-cpu==2.21.0",), "AVX", AVX | {"f16c"}),
    "AVX-512 2.14.0": (("intel-tensorflow-avx512==2.14.0",), "FMA", HASWELL - {"movbe"} | AVX512 | {"f16c"}),
    # The wheels that were compiled for Haswell by accident: "Illegal instruction" on everything older.
    "official 2.4.0": (("tensorflow-cpu==2.4.0", "--python-version=3.8", "--only-binary=:all:"), "FMA", HASWELL),
}
# Shares that lie so near to the threshold that the sample decides.
EITHER = {"popcnt", "avx512cd"}
MOST_MIB = 400
# Runs a command, and then says the most memory that it held, in KiB.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


QUICK = ("official 2.21.0",)
Inspected = tuple[Any, int]


@pytest.fixture(scope="module")
def inspected(wheel: Callable[..., Path]) -> Callable[[str], Inspected]:
    """What `inspect` shows of a wheel, and the most memory that it held, in KiB."""

    @cache
    def shown(name: str) -> Inspected:
        path = wheel(*WHEELS[name][0])
        # In a process of its own, whose largest child is this one.
        command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "invoke", "inspect", str(path), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return json.loads(done.stdout), int(done.stderr.splitlines()[-1])

    return shown


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in WHEELS]
)
def test_real_wheels_are_told_apart(name: str, inspected: Callable[[str], Inspected]) -> None:
    _, last, needs = WHEELS[name]
    shown, memory = inspected(name)
    assert set(shown["features"]) - EITHER == needs - EITHER
    assert shown["libraries"][0]["method"] == "symbols"
    assert shown["guard"]["compiled"][-1] == last
    assert shown["disagreements"] == []
    # 788 MB of library, of which a few are touched.
    assert memory < MOST_MIB * 1024


@pytest.mark.parametrize("release", [pytest.param("2.14.0", marks=pytest.mark.nightly), "2.21.0"])
def test_an_image_is_what_its_wheel_is_though_it_is_stripped(
    release: str, image: Callable[..., str], inspected: Callable[[str], Inspected], invoke: Invoke
) -> None:
    stripped: Any = json.loads(invoke("inspect", image(release), "--json").stdout)
    whole, _ = inspected(f"official {release}")
    assert [library["method"] for library in stripped["libraries"]] == ["spread", "spread"]
    assert set(stripped["features"]) - EITHER == set(whole["features"]) - EITHER
    assert (stripped["guard"], stripped["disagreements"]) == (whole["guard"], [])
    # Twice the share of what no wheel here was compiled for, and half of what one was: the threshold lies between.
    least = scan.threshold("spread")
    values = {name: row["share"] for name, row in stripped["libraries"][0]["features"].items() if name not in EITHER}
    assert all(share < least / 2 or share > 2 * least for share in values.values()), values


def test_an_image_of_somebody_else_has_the_code_of_its_wheel(
    wheel: Callable[..., Path], engine: Engine, invoke: Invoke, tmp_path: Path
) -> None:
    """Where pip puts a package in Python's own images; without labels, and without a program that could run."""
    requirement, last, needs = WHEELS["official 2.4.0"]
    with zipfile.ZipFile(wheel(*requirement)) as archive:
        archive.extractall(tmp_path / "packages")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY packages /usr/local/lib/python3.8/site-packages\n")
    foreign = f"tfbuild-test:foreign-{uuid.uuid4().hex[:8]}"
    engine.build(tmp_path, BuildSettings(log=tmp_path / "log", progress=Progress()), tag=foreign)
    try:
        shown: Any = json.loads(invoke("inspect", foreign, "--json").stdout)
    finally:
        engine.remove(foreign)
    assert shown["release"] == "2.4.0"
    assert set(shown["features"]) - EITHER == needs - EITHER
    assert shown["guard"]["compiled"][-1] == last
    assert shown["disagreements"] == []


def test_another_image_is_refused(invoke: Invoke) -> None:
    done = invoke("inspect", "tfbuild-test:there-is-none", code=25)
    assert "Traceback" not in done.stderr
