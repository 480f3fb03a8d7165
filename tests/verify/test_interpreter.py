"""What comes before Python's code in an image is what tfbuild puts there."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tests.context.test_planned import planned
from tests.verify.test_checks import SANDBOX
from tfbuild.context.dockerfile import TCMALLOC
from tfbuild.engine import Engine, Image
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.verify.checks import interpreter
from tfbuild.verify.checks.interpreter import PRELOAD_FILE, PROGRAM
from tfbuild.verify.verification import Verification

OWN = Path(sys.executable).resolve().read_bytes()
PLAN = replace(planned(), python="{}.{}".format(*sys.version_info[:2]))
ENV = ("PATH=/opt/tensorflow/bin:/usr/bin", f"LD_PRELOAD={TCMALLOC}", "TF_ENABLE_ONEDNN_OPTS=1")


def judged(*more: str, files: Mapping[str, bytes] = {}) -> tuple[str, str]:
    check = interpreter.compare(PLAN, (*ENV, *more), {PROGRAM: OWN, **files})
    assert check.name == "interpreter"
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


def test_every_fault_is_named_and_an_image_without_a_path_too() -> None:
    check = interpreter.compare(PLAN, ("PYTHONPLATLIBDIR=/evil", "LD_AUDIT=/a=b.so"), {PROGRAM: OWN})
    assert check.detail == (
        "PYTHONPLATLIBDIR is set (/evil); LD_AUDIT is set (/a=b.so); "
        "PATH begins with nothing, not with /opt/tensorflow/bin"
    )


def test_a_program_for_another_processor_is_no_program_here() -> None:
    check = interpreter.compare(replace(PLAN, arch="aarch64"), ENV, {PROGRAM: OWN})
    assert check.status == "fail"
    assert "is no program for aarch64: it begins with b'\\x7fELF" in check.detail


@dataclass
class ReadingEngine:
    """Gives an image's files and environment, or raises. `asked`: the files, and the most bytes of one."""

    files: Mapping[str, bytes] | OSError
    asked: list[tuple[tuple[str, ...], int]] = field(default_factory=list)

    def read_contents(self, ref: str, paths: Sequence[str], limit: int) -> Mapping[str, bytes]:
        self.asked.append((tuple(paths), limit))
        if isinstance(self.files, OSError):
            raise self.files
        return self.files

    def image(self, ref: str) -> Image:
        return Image(
            id="sha256:0a", labels={}, size=1, env=ENV, entrypoint=(), architecture="amd64", repo_digests=()
        )  # fmt: skip


def run(files: Mapping[str, bytes] | OSError) -> tuple[Judgement, Verification, ReadingEngine]:
    engine = ReadingEngine(files)
    state = Verification(engine=cast(Engine, engine), ref="x", planned=PLAN, baseline="none", sandbox=SANDBOX)
    check = interpreter.CHECK.run(state)
    assert check.name == "interpreter"
    return check, state, engine


def test_the_program_s_digest_is_kept_for_the_look_at_its_process() -> None:
    check, state, engine = run({PROGRAM: OWN})
    assert (check.status, state.program) == ("pass", hashlib.sha256(OWN).hexdigest())
    ((asked, limit),) = engine.asked
    assert asked == ("/opt/tensorflow/bin/python", "/etc/ld.so.preload", TCMALLOC)
    assert limit > 32 * 1024 * 1024, "CPython's program has up to 30 MB"
    assert run({})[0].detail == f"{PROGRAM} is missing"


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(27, "File too large", PROGRAM), "File too large"), (OSError("gone"), "gone")]
)
def test_a_program_that_cannot_be_read_fails(error: OSError, reason: str) -> None:
    check, _, _ = run(error)
    assert check.status == "fail"
    assert check.detail.endswith(f" cannot be read: {reason}")
