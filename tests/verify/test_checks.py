"""Every check passes a right image, fails a spoiled one, and never passes or crashes on one that holds nothing."""

import errno
import importlib
import json
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, cast

import pytest

from tests.binary.test_scan import AVX2, everywhere, library
from tests.measure.test_workers import Script
from tests.rows import each
from tests.verify.images import CC, FILES, FRAMEWORK, PLANNED, PROBES, SITE, ImageEngine, run, sent, verification
from tests.verify.images import IMAGE as TUNED
from tests.verify.images import OTHER as PLAIN
from tests.verify.test_configuration import base, image
from tests.verify.test_judge import ENVIRONMENT
from tfbuild.engine import Image
from tfbuild.errors import TfbuildError
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement, ProbeCheck
from tfbuild.in_container.smoke.probes import Faults, GpuConvolution
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.verify import NOT_STARTED, Verification, VerificationCheck, checks, session
from tfbuild.verify.checks import CHECKS, guard
from tfbuild.verify.report import NO_START, Check

NAMES = [check.name for check in CHECKS]
CUDA = replace(PLANNED, target="cuda")
PROBE_CHECKS = {check.name: check for check in judge.PROBE_CHECKS}


def judged(check: VerificationCheck, engine: ImageEngine, **state: Any) -> Judgement:
    """Judge an image, of whatever target the check is."""
    return session.judged(check, verification(engine, CUDA if check.name == "cuda" else PLANNED, **state))


# --- each check, on one image of each kind ----------------------------------------------------------------------------

SPOILED: dict[str, ImageEngine] = {
    "configuration": ImageEngine(image_=image("PYTHONOPTIMIZE=1")),
    "guard": ImageEngine(files={guard.PATH: b"#!/bin/sh\n#\nexec \"$@\"\n"}),
    "import": ImageEngine(probes={"start": sent(ENVIRONMENT)}),
    "isa": ImageEngine(files={f"{SITE}/tensorflow/{FRAMEWORK}": FILES[f"{SITE}/tensorflow/{CC}"]}),
    "code": ImageEngine(files={f"{SITE}/tensorflow/{CC}": library(everywhere(AVX2), count=64)}),
    "onednn": ImageEngine(probes={"onednn": replace(PROBES["onednn"], stderr="")}),
    "tcmalloc": ImageEngine(probes={"faults": sent(Faults(per_tensor=10241.0))}),
    "cuda": ImageEngine(probes={"cuda": sent(GpuConvolution(gpus=1, device="/device:GPU:0", error=0.5))}),
    "numerics": ImageEngine(probes={"numerics": run(PROBES["numerics"].stdout.replace("1.0", "1.1"))}),
    "throughput": ImageEngine(script=Script(seconds={TUNED: 0.02, BASE_AGAIN: 0.02, PLAIN: 0.01})),
}  # fmt: skip


def test_a_machine_that_can_start_nothing_more_says_nothing_of_the_image() -> None:
    def start(_: Verification) -> Judgement:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with pytest.raises(TfbuildError, match="this machine cannot run the check numerics: Resource temporarily"):
        session.judged(replace(next(check for check in CHECKS if check.name == "numerics"), run=start), verification())


@each("check", CHECKS)
def test_a_right_image_passes_and_a_spoiled_one_fails(check: VerificationCheck) -> None:
    assert check.name in SPOILED, "it needs an image that fails it (docs/contributing/check.md)"
    assert (found := judged(check, ImageEngine())).status == "pass", found.detail
    assert (found := judged(check, SPOILED[check.name])).status == "fail", found.detail
    assert all((check.proves, check.how, check.fix)), "each has a sentence (docs/contributing/check.md)"


OWN_SETTING = "LD_LIBRARY_PATH=/opt/lib"
BASE = replace(base(OWN_SETTING), layers=("a", "b"))
IMPORTED = replace(BASE, layers=("a",))


@each(
    "own, digest, layers, told",
    [
        (BASE, BASE.id, ("a", "b", "own"), ""),
        (BASE, BASE.id, ("a", "x"), "its layers are not those of us/base:1, which its labels name as its base"),
        (BASE, BASE.id, ("a",), "its layers are not those of us/base:1"),
        (IMPORTED, "a", ("a", "own"), ""),
        (IMPORTED, "a", ("x", "own"), "its layers are not those of us/base:1"),
        # That name is another image's by now: a newer base's, or the image's own.
        (replace(BASE, id="3"), BASE.id, ("a", "b", "own"), "LD_LIBRARY_PATH is set (/opt/lib)"),
        (None, BASE.id, ("a", "b", "own"), "LD_LIBRARY_PATH is set (/opt/lib)"),
        (BASE, "", ("x",), "LD_LIBRARY_PATH is set (/opt/lib)"),
    ],
)
def test_a_base_is_known_by_its_digest(own: Image | None, digest: str, layers: tuple[str, ...], told: str) -> None:
    """And by no name: which its image may have itself."""
    found = replace(image(OWN_SETTING, labels={"org.opencontainers.image.base.digest": digest}), layers=layers)
    judgement = judged(checks.configuration.CHECK, ImageEngine(image_=found, base=own or found))
    assert judgement.status == ("fail" if told else "pass"), judgement.detail
    assert told in judgement.detail


def hostile(check: ProbeCheck) -> Iterator[str]:
    """Yield what a probe may send instead of an answer."""
    yield from ("", "\n", "{}\n", "[]\n", "null\n", "forged\n", '{"python": NaN}\n', "\x1b[2J\n", "0" * 1000)
    for kind in check.kinds[:2]:
        for text, number in (("", 0), ("x" * 5000, -1), ("\x1b[2J", 10**15), ("tcmalloc", True), (None, None)):
            values: dict[type, Any] = {str: text, float: number, int: number, bool: bool(number)}
            record = {row.name: values.get(cast(type, row.type), ()) for row in fields(kind)}
            yield "".join(f"{json.dumps(record)}\n" for _ in check.kinds)


def empty_images(name: str) -> Iterator[ImageEngine]:
    """Yield images that hold nothing, or nothing right."""
    nothing: dict[str, Any] = {"image_": replace(image(), env=(), config={}, labels={}), "script": None}
    for every in (run(), run(code=139), run(code=1), run(truncated=True), TimeoutError("too long")):
        yield ImageEngine(files={}, every=every, **nothing)
    yield ImageEngine(files=dict.fromkeys(FILES, b"text"), every=run("text\n"), **nothing)
    yield ImageEngine(files=dict.fromkeys(FILES, OSError("it vanished")), every=run("text"), **nothing)
    if name in PROBE_CHECKS:
        for text in hostile(PROBE_CHECKS[name]):
            yield ImageEngine(files={}, every=run(text), **nothing)


def faults(check: VerificationCheck) -> list[str]:
    """Return what is wrong with a check: where it passes what holds nothing right, or crashes."""
    wrong = []
    for engine in empty_images(check.name):
        try:
            found = judged(check, engine, start=NOT_STARTED)
        except Exception as error:
            wrong.append(f"{error!r} for {engine.every}")
        else:
            if found.status not in ("fail", "skip") or not found.detail:
                wrong.append(f"{found.status} for {engine.every}")
    return wrong


@each("check", CHECKS)
def test_no_check_passes_or_crashes_on_what_holds_nothing(check: VerificationCheck) -> None:
    assert faults(check) == []


def test_every_check_of_every_file_is_in_the_list() -> None:
    files = [
        importlib.import_module(f"{checks.__name__}.{file.name}") for file in pkgutil.iter_modules(checks.__path__)
    ]
    written = {
        row.name for file in (checks, *files) for row in vars(file).values() if isinstance(row, VerificationCheck)
    }
    assert written == {*NAMES}, "a check that is not in the list never runs"
    assert PROBE_CHECKS.keys() <= written


# --- when they run ----------------------------------------------------------------------------------------------------


def skipped(**state: Any) -> dict[str, str]:
    """Return why checks are skipped, by name."""
    state = {"planned": PLANNED} | state
    return {check.name: why for check in CHECKS if (why := check.skip(verification(**state)))}


def test_only_checks_of_other_targets_are_skipped_for_an_image_that_starts() -> None:
    assert {*skipped()} == {"cuda"}
    assert {*skipped(planned=CUDA)} == {"onednn"}
    assert {*skipped(planned=replace(PLANNED, instruction_set=replace(PLANNED.instruction_set, arch="aarch64")))} == {
        "isa",
        "cuda",
    }
    assert {*skipped(baseline="not requested")} == {"cuda", "throughput"}
    failed = Check(name="onednn", status="fail", detail="", seconds=0.0, measures=(), proves="", how="", fix="")
    assert {*skipped(checks=[failed])} == {"cuda", "throughput"}


def test_without_a_start_only_checks_without_tensorflow_run() -> None:
    needing = {"import", "onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    assert skipped(start=NOT_STARTED, why=NO_START) == dict.fromkeys(needing, NO_START)


def test_checks_run_after_those_whose_results_they_use() -> None:
    for name, users in {
        "guard": ("import",),
        "import": ("isa", "onednn", "tcmalloc", "cuda", "numerics", "throughput"),
        "onednn": ("throughput",),
    }.items():
        assert [user for user in users if NAMES.index(name) >= NAMES.index(user)] == []


# --- import -----------------------------------------------------------------------------------------------------------


def test_what_import_saw_is_there_for_later_checks() -> None:
    state = verification(start=NOT_STARTED)
    assert session.judged(checks.IMPORT, state).status == "pass"
    assert (state.why, state.environment) == ("", ENVIRONMENT)
    state = verification(SPOILED["import"])
    assert session.judged(checks.IMPORT, state).status == "fail"
    assert state.why == "TensorFlow does not import (see import)"
    assert checks.NUMERICS.skip(state) == state.why
    state = verification(planned=replace(PLANNED, python="3.12"))
    assert session.judged(checks.IMPORT, state).status == "fail"
    assert state.why == "", "it does import, though on another Python"


def test_an_import_that_fails_as_is_known_says_what_helps() -> None:
    symbol = "_ZN17pybind11_protobuf16GenericProtoCastEPN6google8protobuf7MessageEN8pybind1119return_value_policyE"
    failed = Judgement(judge.FAIL, f"ImportError: _pywrap_tf_session.so: undefined symbol: {symbol}")
    for release in ("2.20.0", "2.99.0"):
        assert "; a known failure (gcc-pywrap): clang-18" in checks.with_known_failure(failed, release).detail
    for release in ("2.14.1", "2.99", "9.9", ""):
        assert checks.with_known_failure(failed, release) == failed
    passed = Judgement(judge.PASS, failed.detail)
    assert checks.with_known_failure(passed, "2.20.0") == passed


# --- cuda -------------------------------------------------------------------------------------------------------------


def test_a_host_without_a_gpu_is_a_reason_to_skip_and_a_crash_there_a_failure() -> None:
    nothing = {"cuda": sent(GpuConvolution(gpus=0, device="", error=None))}
    found = judged(checks.CUDA, ImageEngine(probes=nothing, no_gpu="the engine offers no GPU"))
    assert (found.status, found.detail) == ("skip", "the engine offers no GPU")
    assert judged(checks.CUDA, ImageEngine(probes=nothing)).status == "skip"
    assert judged(checks.CUDA, ImageEngine(probes={"cuda": run(code=1)}, no_gpu="no GPU")).status == "fail"


def test_probes_have_the_environment_that_their_judges_need() -> None:
    engine = ImageEngine()
    judged(checks.ONEDNN, engine)
    judged(checks.TCMALLOC, engine)
    (_, talkative), (_, without) = engine.asked
    assert talkative["ONEDNN_VERBOSE"] == "1"
    assert {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DISABLE_MKL": "1"}.items() <= without.items()
