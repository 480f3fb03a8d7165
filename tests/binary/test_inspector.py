"""What is read of a wheel or a library, in which order, and how it is told."""

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.binary import libraries as guards
from tests.binary.codes import code_with
from tests.binary.test_scan import AVX, AVX2, everywhere, function, library, zipped
from tfbuild.binary import inspector
from tfbuild.binary.guard import Guard
from tfbuild.binary.inspector import Inspection
from tfbuild.errors import BadInput
from tfbuild.util.progress import Progress

SMALL = library(everywhere(AVX2), count=64)
FRAMEWORK = guards.library(guards.recorded("tensorflow_cpu-2.14.0"), text=function(AVX))
NAME = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_17_x86_64.whl"
MEMBERS = {
    "tensorflow/libtensorflow_framework.so.2": FRAMEWORK,
    "tensorflow/python/_pywrap_tensorflow_internal.so": SMALL,
    "tensorflow/other.so": b"not read",
}
GUARD = Guard(compiled=("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX"), unused=("AVX2", "FMA"))


def look(path: Path) -> tuple[Inspection, str]:
    output = io.StringIO()
    return inspector.inspect(path, full=False, progress=Progress(output)), output.getvalue()


def test_a_wheel_of_tensorflow_has_its_framework_s_guard(tmp_path: Path) -> None:
    shown, said = look(zipped(tmp_path / NAME, MEMBERS))
    assert [*shown.libraries] == [
        "tensorflow/python/_pywrap_tensorflow_internal.so", "tensorflow/libtensorflow_framework.so.2",
    ]  # fmt: skip
    assert (shown.subject, shown.release) == (NAME, "2.14.0")
    assert shown.guard is not None
    assert shown.guard.compiled == GUARD.compiled
    assert shown.main.compiled == {"avx", "avx2"}
    assert shown.disagreements() == ("the guard was compiled without avx2, but the code has it",)
    assert "inspect: tensorflow/libtensorflow_framework.so.2" in said
    without = inspector.wheel(tmp_path / NAME)
    assert (without.libraries, without.guard) == (shown.libraries, shown.guard)
    stripped = guards.library(guards.recorded("tensorflow_cpu-2.14.0"), symbols=False, text=function(AVX))
    shown, said = look(zipped(tmp_path / NAME, MEMBERS | {next(iter(MEMBERS)): stripped}))
    assert (shown.guard, "guard cannot be read: the library has no .strtab: it was stripped" in said) == (None, True)


def test_another_wheel_is_its_largest_libraries(tmp_path: Path) -> None:
    members = {f"pack/{number}.cpython-311-x86_64-linux-gnu.so": SMALL + bytes(number) for number in range(6)}
    shown, _ = look(zipped(tmp_path / "pack-1.0-py3-none-any.whl", {**members, "pack/so.py": b"", "pack/b.sock": b""}))
    assert [name[5] for name in shown.libraries] == ["5", "4", "3", "2"]
    assert (shown.release, shown.guard, shown.disagreements()) == ("", None, ())
    with pytest.raises(BadInput, match=r"^error: not a whole ELF library"):
        look(zipped(tmp_path / "text-1.0-py3-none-any.whl", {"text.so": b"\x7fELF"}))
    with pytest.raises(BadInput, match=r"^error: not an ELF library: only libraries of Linux"):
        look(zipped(tmp_path / "mac-1.0-py3-none-any.whl", {"text.so": b"\xcf\xfa\xed\xfe"}))
    # Larger ones hold only data (ICU's tables), or code for 32 bits (a debugger's). It is only named like TensorFlow's.
    data = guards.elf([guards.Part(name=".rodata", kind=guards.PROGBITS, address=0, content=bytes(4 * len(SMALL)))])
    others = {"x86.so": b"\x7fELF\1\1\1" + bytes(3 * len(SMALL)), "x.so": SMALL, "libicudata.so.72": data}
    shown, said = look(zipped(tmp_path / "tensorflow_addons-2.19.0-py3-none-any.whl", others))
    assert (shown.release, [*shown.libraries], "x86.so is left out: " in said) == ("", ["x.so"], True)
    assert "libicudata.so.72 is left out: the library has no .text" in said


def install(folder: Path, project: str = "tensorflow_cpu-2.14.0") -> Path:
    """Unpack the wheel as pip does, beside another package of that version."""
    for name, content in MEMBERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for info, listed in (("tensorflow_estimator-2.99.0", ["estimator.py"]), (project, list(MEMBERS))):
        (folder / f"{info}.dist-info").mkdir()
        (folder / f"{info}.dist-info" / "RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in listed))
    return folder / "tensorflow"


def test_an_installed_package_is_read_like_its_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = inspector.wheel(zipped(tmp_path / NAME, MEMBERS))
    package = install(tmp_path / "site-packages")
    shown, _ = look(package)
    assert (shown.release, shown.libraries, shown.guard) == (wheel.release, wheel.libraries, wheel.guard)
    monkeypatch.chdir(package)
    assert inspector.inspect(Path(), full=False, progress=Progress(io.StringIO())).guard == wheel.guard


def test_other_folders_are_no_installed_package(tmp_path: Path) -> None:
    package = install(tmp_path / "site-packages", project="tensorflow_cpu-none")
    (tmp_path / "site-packages" / "odd.dist-info").mkdir()
    os.mkfifo(tmp_path / "site-packages" / "odd.dist-info" / "RECORD")
    for folder in (package, package.parent, Path("/")):
        with pytest.raises(BadInput, match="is not an installed TensorFlow"):
            look(folder)
    damaged = install(tmp_path / "damaged")
    for path in damaged.rglob("*.so*"):
        path.unlink()
    with pytest.raises(BadInput, match="is not an installed TensorFlow"):
        look(damaged)


def test_a_library_file_has_no_release(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(SMALL)
    shown, said = look(path)
    assert (shown.subject, shown.release, [*shown.libraries]) == (str(path), "", ["lib.so"])
    assert "inspect: lib.so" in said


def test_members_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "pack-1.0-py3-none-any.whl", {"a.so": SMALL})
    monkeypatch.setattr(inspector, "MOST_BYTES", len(SMALL))
    assert look(path)[0].main.compiled == {"avx", "avx2"}, "just that large"
    monkeypatch.setattr(inspector, "MOST_BYTES", len(SMALL) - 1)
    with pytest.raises(BadInput, match=r"a\.so in it is too large to be a library") as caught:
        look(path)
    assert caught.value.hint


def test_a_wheel_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.whl cannot be read: No such file or directory"):
        inspector.wheel(tmp_path / "none.whl")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        inspector.wheel(tmp_path)


@pytest.mark.parametrize("subject", ["tfbuild:2.21.0-mkl-py3.11", "library/so.x", "ghcr.io/us/tfbuild:x", "busybox"])
def test_any_other_word_is_an_image(subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert inspector.is_image(subject)


def test_a_file_or_a_folder_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    assert not any(map(inspector.is_image, ("file", "folder", "/")))
    paths = ("./file.none", "/none", "/nowhere/lib.so", "none.so", "none.so.2", "none.whl")
    for subject in (*paths, f"/{'a' * 300}.so"):
        with pytest.raises(BadInput, match="no wheel or library at"):
            inspector.is_image(subject)


def test_the_json_of_an_inspection_has_every_number() -> None:
    libraries = {"cc": code_with("avx"), "other": code_with("f16c"), "arm": replace(code_with("sve"), arch="aarch64")}
    shown = Inspection(subject="x", release="2.14.0", libraries=libraries, guard=GUARD).to_json()
    row = cast(list[object], shown.pop("libraries"))[0]
    assert shown == {
        "subject": "x", "release": "2.14.0", "arch": "x86_64", "instruction_set": "f16c", "features": ["avx", "f16c"],
        "guard": {"compiled": list(GUARD.compiled), "unused": ["AVX2", "FMA"]}, "disagreements": [],
    }  # fmt: skip
    assert row == {
        "name": "cc", "method": "symbols", "threshold": 0.02, "instructions": 1000, "regions": 512, "coverage": 0.03,
        "dispatched": {"oneDNN": 100},
        "features": {
            "avx": {"per_1000": 1.0, "share": 0.1, "compiled": True},
            "avx512f": {"per_1000": 0.1, "share": 0.001, "compiled": False},
        },
    }  # fmt: skip


def test_the_guard_is_compared_with_the_code_of_x86() -> None:
    def said(*features: str, arch: str = "x86_64", guard: Guard | None = GUARD) -> tuple[str, ...]:
        code = replace(code_with(*features), arch=arch)
        return Inspection(subject="x", release="2.14.0", libraries={"cc": code}, guard=guard).disagreements()

    # BMI2 and F16C are none of the guard's.
    assert said("avx", "bmi2", "f16c") == ()
    assert said("avx", "avx2") == ("the guard was compiled without avx2, but the code has it",)
    assert said() == ("the guard was compiled for avx, but the code lacks it",)
    assert said("avx2", arch="aarch64") == said("avx2", guard=None) == ()
