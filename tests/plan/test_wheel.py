"""A wheel of one's own is planned by its name and by what is in it, and refused where they contradict the request."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.binary import libraries
from tests.binary.test_scan import zipped
from tests.rows import each
from tfbuild.errors import BadInput
from tfbuild.plan import Build, Request, select

NAME = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
CODE = "tensorflow/libtensorflow_cc.so.2"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with the guard of a real one, which says AVX, and with no other code."""
    return zipped(tmp_path / NAME, {FRAMEWORK: libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"))})


def planned(wheel: Path, **options: str) -> Build:
    return select(replace(Request(wheel=str(wheel), target="cpu", platform="linux/amd64"), **cast(Any, options)), None)


def test_a_wheel_is_planned_by_its_name_and_its_guard(wheel: Path) -> None:
    build = planned(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (build.release, build.python, build.platform) == ("2.14.0", "3.11", "linux/amd64")
    assert build.instruction_set.name == "avx"
    assert (build.wheel.kind, build.wheel.path, build.wheel.sha256) == ("file", wheel, digest)
    assert build.wheel.requirement == NAME
    assert build.id.endswith(digest[:8])
    shown = cast(Any, build.to_json()["wheel"])
    assert (shown["kind"], shown["requirement"], shown["sha256"]) == ("file", NAME, digest)


def test_code_that_cannot_be_read_is_for_verification_to_report(wheel: Path) -> None:
    content = libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"))
    assert planned(zipped(wheel, {FRAMEWORK: content, CODE: b"text"})).instruction_set.name == "avx"


def test_a_cpu_that_agrees_with_the_guard_names_the_set(wheel: Path) -> None:
    assert planned(wheel, cpu="avx").instruction_set.name == "avx"
    for other in ("x86-64-v3", "x86-64-v2"):
        with pytest.raises(BadInput, match=f"was compiled for .*avx.*, not for {other}") as caught:
            planned(wheel, cpu=other)
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
        planned(wheel, **options)
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
        planned(other, target=target)
    assert told in caught.value.reason
    assert hint in str(caught.value.hint)


def test_what_is_no_file_is_answered_with_what_to_type() -> None:
    with pytest.raises(BadInput, match="no wheel at offical") as caught:
        planned(Path("offical"))
    assert "--wheel takes `official`" in caught.value.hint
