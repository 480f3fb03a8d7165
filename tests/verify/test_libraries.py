"""TensorFlow's libraries are read out of an image one at a time."""

import io
import sys
import venv
from pathlib import Path
from typing import cast

import pytest

from tests.binary import libraries as guards
from tests.binary.test_scan import AVX, AVX2, BMI2, everywhere, function, library
from tests.rows import each
from tests.verify.images import CC, FILES, FRAMEWORK, SITE, ImageEngine
from tests.verify.test_configuration import image as right_image
from tests.verify.test_labelled import LABELS
from tfbuild.binary import LibraryUnreadable, inspector
from tfbuild.binary.guard import Guard
from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine
from tfbuild.errors import BadInput, UsageError
from tfbuild.util.files import temporary_folder
from tfbuild.util.progress import Progress
from tfbuild.verify import libraries, session

INTERNAL = "python/_pywrap_tensorflow_internal.so"
SMALL = library(everywhere(AVX2, BMI2), count=64)
GUARD = guards.library(guards.recorded("tensorflow_cpu-2.14.0"), text=function(AVX))


def image(**files: bytes | OSError) -> ImageEngine:
    paths = {"cc": CC, "internal": INTERNAL, "framework": FRAMEWORK}
    return ImageEngine(files={f"{SITE}/tensorflow/{paths[name]}": content for name, content in files.items()})


def read(engine: ImageEngine) -> tuple[list[str], bool]:
    """Return the names of the libraries that were read, and whether the guard was."""
    with temporary_folder() as scratch:
        found = libraries.copied(cast(Engine, engine), "x", SITE, scratch)
        inspection = inspector.of_libraries("x", "2.14.0", found, full=False, progress=None)
    return [*inspection.libraries], inspection.guard is not None


def test_the_main_library_comes_first_and_then_the_framework() -> None:
    engine = image(cc=SMALL, internal=SMALL, framework=GUARD)
    assert read(engine) == ([CC, FRAMEWORK], True)
    assert engine.asked == [f"{SITE}/tensorflow/{name}" for name in (CC, FRAMEWORK)], "it has the code of the other"
    assert read(image(internal=SMALL, framework=SMALL)) == ([INTERNAL, FRAMEWORK], False), "as older releases"
    assert read(image(cc=GUARD)) == ([CC], False), "only the guard of the framework counts"


@each(
    "files, reason",
    [
        ({}, "the image has none of TensorFlow's libraries"),
        ({"cc": SMALL, "framework": OSError(27, "File too large")}, f"{FRAMEWORK} cannot be copied out of the image"),
    ],
)
def test_a_library_that_cannot_be_copied_is_named_with_the_reason(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(LibraryUnreadable, match=reason):
        read(image(**files))


def inspected(engine: ImageEngine, name: str = "x") -> inspector.Inspection:
    return libraries.inspect_image(cast(Engine, engine), name, full=False, progress=Progress(io.StringIO()))


def test_an_image_is_inspected_by_its_labels() -> None:
    engine = image(cc=SMALL, framework=GUARD)
    engine.image_ = right_image(labels=LABELS)
    inspection = inspected(engine, "tfbuild:x")
    assert (inspection.subject, inspection.release) == ("tfbuild:x", "2.14.0")
    assert inspection.main.compiled == {"avx", "avx2", "bmi2"}
    assert inspection.guard is not None
    assert "AVX" in inspection.guard.compiled


FOREIGN = "/usr/local/lib/python3.10/dist-packages"


@each(
    "metadata, release",
    [
        ("tensorflow_cpu-2.14.0", "2.14.0"),
        ("tensorflow-2.14.0+nv23.11", "2.14.0"),
        ("tf_nightly-2.22.0.dev20260501", "2.22.0.dev20260501"),
        ("tensorflow_estimator-2.13.0", ""),
    ],
)
def test_an_image_of_somebody_else_is_inspected_by_what_pip_installed(metadata: str, release: str) -> None:
    names = (metadata, "tensorflow_estimator-2.13.0", "numpy-1.26.4")
    files: dict[str, bytes | OSError] = {f"{FOREIGN}/{name}.dist-info/METADATA": b"" for name in names}
    files |= {f"{FOREIGN}/tensorflow/{name}": SMALL for name in (CC, FRAMEWORK)}
    engine = ImageEngine(files=files, image_=right_image(Labels={}))
    if not release:
        with pytest.raises(BadInput, match="nvidia has no TensorFlow that pip installed"):
            inspected(engine, "nvidia")
        return
    inspection = inspected(engine, "nvidia")
    assert (inspection.release, [*inspection.libraries]) == (release, [CC, FRAMEWORK])
    assert inspection.main.compiled == {"avx", "avx2", "bmi2"}


# --- an environment in place of an image ------------------------------------------------------------------------------


def environment(folder: Path, version: str) -> Path:
    """Make a virtual environment of this Python, with these libraries as those of tensorflow-cpu ("2.20.0 file")."""
    version, _, way = version.partition(" ")
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    metadata = site / f"tensorflow_cpu-{version}.dist-info"
    metadata.mkdir()
    for name in ("METADATA", {"file": "direct_url.json"}.get(way, "INSTALLER")):
        (metadata / name).write_text(way or "pip\n")
    (site / "tensorflow").mkdir()
    for path, content in FILES.items():
        if "/tensorflow/lib" in path and isinstance(content, bytes):
            (site / "tensorflow" / Path(path).name).write_bytes(content)
    return folder


# Its code is compiled for F16C, which 2.20.0's official wheel is not.
@pytest.mark.parametrize(
    ("version", "code"),
    [("2.21.0", "pass"), ("2.21.0+own", "pass"), ("2.20.0 file", "pass"), ("2.20.0 conda", "pass"), ("2.20.0", "fail")],
)
def test_an_installed_wheel_is_verified_as_its_image_would_be(version: str, code: str, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    report = session.verify_installed(str(environment(tmp_path / "venv", version)), Progress(io.StringIO()), reports)
    statuses = {check.name: check.status for check in report.checks}
    # There is no Python code of TensorFlow in it.
    assert statuses == {"import": "fail", "isa": "pass", "code": code, "onednn": "skip", "numerics": "skip"}
    assert report.image.labels["io.tfbuild.release"] == version[:6]
    assert [path.name for path in sorted(reports.glob("*.json"))] == [f"{report.id}-failed.json"]
    assert report.id.endswith("-installed"), "an image's own report stays"


# Of 2.14.1, the wheel with CUDA has no extra of its own.
@pytest.mark.parametrize("version", ["2.21.0", "2.14.1"])
def test_an_installed_wheel_that_is_compiled_for_gpus_is_that_of_target_cuda(version: str, tmp_path: Path) -> None:
    folder = environment(tmp_path, version)
    (about,) = (path / "python/platform" for path in folder.glob("lib/*/site-packages/tensorflow"))
    about.mkdir(parents=True)
    (about / "build_info.py").write_text("OrderedDict([('cudnn_version', '9'), ('is_cuda_build', True)])\n")
    assert read_labels(libraries.InstalledWheel().image(str(folder)).labels).get("target") == "cuda"


def test_the_guard_too_says_what_a_wheel_of_ones_own_is_compiled_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little code has AVX_VNNI, and without this the check `isa` would fail every wheel that is compiled for it."""
    monkeypatch.setattr(inspector, "read_guard", lambda *_: Guard(compiled=("AVX", "AVX_VNNI"), unused=()))
    labels = read_labels(libraries.InstalledWheel().image(str(environment(tmp_path, "2.21.0+own"))).labels)
    assert {"avx_vnni", "f16c"} <= {*labels.get("features").split()}
    assert labels.get("threading") == "", "it may be OpenMP"


def test_an_environment_without_tensorflow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="/bin/true is not Python"):
        libraries.InstalledWheel().image("/bin/true")
    venv.create(tmp_path, symlinks=True)
    with pytest.raises(BadInput, match=f"{tmp_path} has no TensorFlow that pip installed"):
        libraries.InstalledWheel().image(str(tmp_path))
