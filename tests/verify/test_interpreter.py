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
from tfbuild.engine import Engine
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.verify.checks import interpreter
from tfbuild.verify.checks.interpreter import PRELOAD_FILE, PROGRAM
from tfbuild.verify.verification import Verification

OWN = Path(sys.executable).resolve().read_bytes()
PLAN = replace(planned(), python="{}.{}".format(*sys.version_info[:2]))


def judged(files: Mapping[str, bytes] = {}) -> tuple[str, str]:
    check = interpreter.compare(PLAN, {PROGRAM: OWN, **files})
    return check.status, check.detail


def test_cpython_passes() -> None:
    status, detail = judged()
    assert status == "pass"
    assert detail.startswith(f"CPython {PLAN.python} (sha256:")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({PROGRAM: b"#!/bin/sh\necho forged\n"}, "is not a program for x86_64: it begins with b'#!/bin/sh"),
        ({PROGRAM: b""}, "is not a program for x86_64: it begins with b''"),
        ({PROGRAM: Path("/bin/ls").read_bytes()}, f"is another program, not CPython {PLAN.python}"),
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
    other = interpreter.compare(replace(PLAN, python="3.99"), {PROGRAM: OWN})
    assert (other.status, other.detail) == ("fail", f"{PROGRAM} is CPython {PLAN.python}, not CPython 3.99")
    assert interpreter.compare(PLAN, {}).detail == f"{PROGRAM} is missing"


def test_an_empty_preload_file_loads_nothing() -> None:
    assert judged(files={PRELOAD_FILE: b"\n"})[0] == "pass"


def test_a_program_for_another_processor_is_no_program_here() -> None:
    check = interpreter.compare(replace(PLAN, arch="aarch64"), {PROGRAM: OWN})
    assert check.status == "fail"
    assert "is not a program for aarch64: it begins with b'\\x7fELF" in check.detail


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


def run(files: Mapping[str, bytes] | OSError) -> tuple[Judgement, Verification, ReadingEngine]:
    engine = ReadingEngine(files)
    state = Verification(engine=cast(Engine, engine), ref="x", planned=PLAN, baseline="none", sandbox=SANDBOX)
    check = interpreter.CHECK.run(state)
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
