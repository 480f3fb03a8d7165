"""What comes before Python's code in an image is what tfbuild puts there."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.context.test_planned import planned
from tfbuild.context.dockerfile import TCMALLOC
from tfbuild.verify.checks import interpreter
from tfbuild.verify.checks.interpreter import PRELOAD_FILE, PROGRAM

OWN = Path(sys.executable).resolve().read_bytes()
PLAN = replace(planned(), python="{}.{}".format(*sys.version_info[:2]))
ENV = ("PATH=/opt/tensorflow/bin:/usr/bin", f"LD_PRELOAD={TCMALLOC}", "TF_ENABLE_ONEDNN_OPTS=1")


def judged(*more: str, files: Mapping[str, bytes] = {}) -> tuple[str, str]:
    check = interpreter.compare(PLAN, (*ENV, *more), {PROGRAM: OWN, **files})
    return check.status, check.detail


def test_cpython_and_the_usual_environment_pass() -> None:
    status, detail = judged()
    assert status == "pass"
    assert detail.startswith(f"CPython {PLAN.python} (sha256:")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("PYTHONPATH=/evil", "PYTHONPATH is set (/evil)"),
        ("PYTHONHOME=/evil", "PYTHONHOME is set (/evil)"),
        ("LD_AUDIT=/evil.so", "LD_AUDIT is set (/evil.so)"),
        ("PATH=/evil:/opt/tensorflow/bin", "PATH begins with /evil, not with /opt/tensorflow/bin"),
        (f"LD_PRELOAD={TCMALLOC}:/evil.so", "LD_PRELOAD loads /evil.so"),
        (f"LD_PRELOAD=/evil.so {TCMALLOC}", "LD_PRELOAD loads /evil.so"),
    ],
)
def test_an_environment_that_loads_something_first_fails(more: str, told: str) -> None:
    assert judged(more) == ("fail", told)


@pytest.mark.parametrize("more", ["LD_PRELOAD=", "LD_PRELOAD=/nowhere/libtcmalloc_minimal.so.4", "PYTHONPATH="])
def test_a_missing_allocator_is_for_its_own_check(more: str) -> None:
    assert judged(more)[0] == "pass"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({PROGRAM: b"#!/bin/sh\necho forged\n"}, "is no program for x86_64: it begins with b'#!/bin/sh"),
        ({PROGRAM: b""}, "is no program for x86_64: it begins with b''"),
        ({PROGRAM: Path("/bin/ls").read_bytes()}, f"is no CPython, not CPython {PLAN.python}"),
        ({PRELOAD_FILE: b"/evil.so\n"}, "/etc/ld.so.preload loads b'/evil.so"),
        ({TCMALLOC: OWN}, f"{TCMALLOC} is not TCMalloc"),
        ({TCMALLOC: b"text"}, f"{TCMALLOC} is not TCMalloc"),
    ],
)
def test_another_file_in_its_place_fails(files: dict[str, bytes], told: str) -> None:
    status, detail = judged(files=files)
    assert status == "fail"
    assert told in detail


def test_another_version_or_none_fails() -> None:
    other = interpreter.compare(replace(PLAN, python="3.99"), ENV, {PROGRAM: OWN})
    assert (other.status, other.detail) == ("fail", f"{PROGRAM} is CPython {PLAN.python}, not CPython 3.99")
    assert interpreter.compare(PLAN, ENV, {}).detail == f"{PROGRAM} is missing"


def test_an_empty_preload_file_loads_nothing() -> None:
    assert judged(files={PRELOAD_FILE: b"\n"})[0] == "pass"
