"""TensorFlow's libraries are read out of an image one at a time, and the check code judges what it finds in them."""

import io
from typing import cast

import pytest

from tests.binary import libraries as guards
from tests.binary.test_scan import AVX, AVX2, BMI2, everywhere, function, library
from tests.context.test_planned import LABELS, planned
from tests.verify.images import LibraryEngine
from tests.verify.test_checks import SANDBOX
from tfbuild.binary import inspector
from tfbuild.binary.scan import CodeUnreadable
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine
from tfbuild.errors import BadInput
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.util.files import temporary_folder
from tfbuild.util.progress import Progress
from tfbuild.verify import libraries
from tfbuild.verify.checks import machine_code
from tfbuild.verify.verification import Verification

FOLDER = "/opt/tensorflow/lib/python3.11/site-packages"
CC = "libtensorflow_cc.so.2"
INTERNAL = "python/_pywrap_tensorflow_internal.so"
FRAMEWORK = "libtensorflow_framework.so.2"
SMALL = library(everywhere(AVX2, BMI2), count=64)
PLAIN = library(lambda _: b"", count=64)
GUARD = guards.library(guards.recorded("tensorflow_cpu-2.14.0"), text=function(AVX))


def image(package: str = "tensorflow", **files: bytes | OSError) -> LibraryEngine:
    paths = {"cc": CC, "internal": INTERNAL, "framework": FRAMEWORK}
    return LibraryEngine(
        {f"{FOLDER}/{package}/{paths[name]}": content for name, content in files.items()}, labels=LABELS
    )


def read(engine: LibraryEngine, *, folder: str = FOLDER, release: str = "2.14.0") -> tuple[list[str], bool]:
    """Return the names of the libraries that were read, and whether the guard was."""
    with temporary_folder() as scratch:
        found = libraries.copied(cast(Engine, engine), "x", folder, scratch)
        inspection = inspector.of_libraries("x", release, found, full=False, progress=None)
    return [*inspection.libraries], inspection.guard is not None


def test_the_main_library_comes_first_and_then_the_framework() -> None:
    engine = image(cc=SMALL, internal=SMALL, framework=GUARD)
    assert read(engine) == ([CC, FRAMEWORK], True)
    assert engine.asked == [f"{FOLDER}/tensorflow/{name}" for name in (CC, FRAMEWORK)], "it has the code of the other"
    assert engine.beside == [[], []], "each is removed before the next: they have up to 788 MB"


def test_older_releases_have_their_code_in_another_library() -> None:
    assert read(image(internal=SMALL, framework=SMALL)) == ([INTERNAL, FRAMEWORK], False)


def test_only_the_guard_of_the_framework_counts() -> None:
    assert read(image(cc=GUARD)) == ([CC], False)


def test_an_image_without_the_libraries_is_a_reason() -> None:
    with pytest.raises(CodeUnreadable, match="the image has none of TensorFlow's libraries"):
        read(image())


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(27, "File too large"), "File too large"), (OSError("it vanished"), "it vanished")]
)
def test_a_library_that_cannot_be_copied_is_named_with_the_reason(error: OSError, reason: str) -> None:
    with pytest.raises(CodeUnreadable, match=f"{FRAMEWORK} cannot be copied out of the image: {reason}"):
        read(image(cc=SMALL, framework=error))


def test_an_image_is_inspected_by_its_labels() -> None:
    engine, output = image(cc=SMALL, framework=GUARD), io.StringIO()
    inspection = libraries.image(cast(Engine, engine), "tfbuild:x", full=False, progress=Progress(output))
    assert (inspection.subject, inspection.release) == ("tfbuild:x", "2.14.0")
    assert inspection.main.compiled == {"avx", "avx2", "bmi2"}
    assert inspection.guard is not None
    assert "AVX" in inspection.guard.compiled
    assert output.getvalue().index(f"inspect: {CC}") < output.getvalue().index(f"inspect: {FRAMEWORK}")


FOREIGN = "/usr/local/lib/python3.10/dist-packages"


@pytest.mark.parametrize(
    ("metadata", "release"),
    [
        ("tensorflow_cpu-2.14.0", "2.14.0"),
        ("tensorflow-2.14.0+nv23.11", "2.14.0"),
        ("tf_nightly-2.22.0.dev20260501", "2.22.0.dev20260501"),
    ],
)
def test_an_image_of_somebody_else_is_inspected_by_what_pip_installed(metadata: str, release: str) -> None:
    files = {f"{FOREIGN}/tensorflow/{name}": SMALL for name in (CC, FRAMEWORK)}
    others = [f"{FOREIGN}/{name}.dist-info/METADATA" for name in ("tensorflow_estimator-2.13.0", "numpy-1.26.4")]
    engine = LibraryEngine({**files, f"{FOREIGN}/{metadata}.dist-info/METADATA": b"", **dict.fromkeys(others, b"")})
    inspection = libraries.image(cast(Engine, engine), "nvidia", full=False, progress=Progress(io.StringIO()))
    assert (inspection.release, [*inspection.libraries]) == (release, [CC, FRAMEWORK])
    assert inspection.main.compiled == {"avx", "avx2", "bmi2"}


def test_an_image_without_tensorflow_is_an_error_that_says_so() -> None:
    engine = LibraryEngine({f"{FOREIGN}/tensorflow_estimator-2.13.0.dist-info/METADATA": b""})
    with pytest.raises(BadInput, match="debian:12 has no TensorFlow that pip installed"):
        libraries.image(cast(Engine, engine), "debian:12", full=False, progress=Progress(io.StringIO()))


# --- the check code ---------------------------------------------------------------------------------------------------


def run(engine: LibraryEngine, plan: Planned) -> Judgement:
    state = Verification(engine=cast(Engine, engine), ref="x", planned=plan, baseline="none", sandbox=SANDBOX)
    return machine_code.CHECK.run(state)


def test_the_code_in_the_image_is_judged_by_its_labels() -> None:
    labelled = run(image(cc=SMALL, framework=PLAIN), planned("avx2", "bmi2"))
    assert labelled.status == "pass"
    assert labelled.detail.startswith("as labelled: compiled for avx2-bmi2; ")
    beyond = run(image(cc=PLAIN, framework=SMALL), planned("avx"))
    assert beyond.status == "fail"
    assert beyond.detail.startswith(f"{FRAMEWORK} needs avx2 bmi2 beyond its labels; compiled for avx; ")


def test_code_that_cannot_be_read_fails_with_the_reason() -> None:
    check = run(image(), planned("avx"))
    assert (check.status, check.detail) == ("fail", "the image has none of TensorFlow's libraries")
    assert run(image(cc=b"text"), planned("avx")).status == "fail"
