"""`inspect` on real wheels and images: it tells them apart, and agrees with what TensorFlow says of each."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild.binary import scan

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
QUICK = ("official 2.21.0",)


@pytest.fixture(scope="module")
def inspected(wheel: Callable[..., Path]) -> Callable[[str], Any]:
    """What `inspect` shows of a wheel."""

    @cache
    def shown(name: str) -> Any:
        command = [sys.executable, "-m", "invoke", "inspect", str(wheel(*WHEELS[name][0])), "--json"]
        return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    return shown


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in WHEELS]
)
def test_real_wheels_are_told_apart(name: str, inspected: Callable[[str], Any]) -> None:
    _, last, needs = WHEELS[name]
    shown = inspected(name)
    assert set(shown["features"]) - EITHER == needs - EITHER
    assert shown["libraries"][0]["method"] == "symbols"
    assert shown["guard"]["compiled"][-1] == last
    assert shown["disagreements"] == []


@pytest.mark.parametrize("release", [pytest.param("2.14.0", marks=pytest.mark.nightly), "2.21.0"])
def test_an_image_is_what_its_wheel_is_though_it_is_stripped(
    release: str, image: Callable[..., str], inspected: Callable[[str], Any], invoke: Invoke
) -> None:
    stripped: Any = json.loads(invoke("inspect", image(release), "--json").stdout)
    whole = inspected(f"official {release}")
    assert [library["method"] for library in stripped["libraries"]] == ["spread", "spread"]
    assert set(stripped["features"]) - EITHER == set(whole["features"]) - EITHER
    assert (stripped["guard"], stripped["disagreements"]) == (whole["guard"], [])
    # Twice the share of what no wheel here was compiled for, and half of what one was: the threshold lies between.
    least = scan.threshold("spread")
    values = {name: row["share"] for name, row in stripped["libraries"][0]["features"].items() if name not in EITHER}
    assert all(share < least / 2 or share > 2 * least for share in values.values()), values
