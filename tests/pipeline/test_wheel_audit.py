"""What `auditwheel show` prints of a wheel, and what users are told of it."""

import io
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.plan.test_selection import chosen
from tests.publish.wheels import zipped
from tfbuild.errors import BuildFailed, DiskFull
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.wheel import Audit, audit_wheel, read_audit
from tfbuild.util.progress import Progress

INFO = {
    "thing-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
    "thing-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
}
RECORDED = Path(__file__).parents[1] / "data" / "auditwheel" / "tensorflow_cpu-2.14.0.json"


@pytest.fixture(scope="module")
def official() -> Audit:
    output = json.loads(RECORDED.read_text())
    return read_audit(output, Path(output["wheel"]))


def test_the_official_wheel_keeps_the_promise_of_its_name(official: Audit) -> None:
    assert official.tag == "manylinux_2_17_x86_64"
    assert official.own == ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
    assert official.needs == {"GLIBC": "2.17", "CXXABI": "1.3.7", "GCC": "3.3", "GLIBCXX": "3.4.19"}
    assert official.broken_promises == ()
    assert official.lines(Path("x.whl")) == [
        "it runs where the system has GLIBC 2.17, CXXABI 1.3.7, GCC 3.3, GLIBCXX 3.4.19 or newer: consistent with "
        "manylinux_2_17_x86_64"
    ]


def test_a_name_that_promises_too_much_is_reported(official: Audit) -> None:
    newer = replace(official, tag="manylinux_2_36_x86_64")
    assert newer.broken_promises == official.own
    assert not newer.to_json()["consistent"]
    assert "wheel tags --platform-tag manylinux_2_36_x86_64 'a b.whl'" in newer.lines(Path("a b.whl"))[-1]
    assert replace(newer, own=("linux_x86_64",)).broken_promises == ()
    assert replace(newer, own=("manylinux_2_39_x86_64",)).broken_promises == ()
    # A wheel that needs another library from the system is consistent with no manylinux tag at all.
    foreign = replace(official, tag="linux_x86_64", external=("libcuda.so.1",))
    assert foreign.broken_promises == official.own
    assert "libcuda.so.1" in foreign.lines(Path("x.whl"))[1]


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    return zipped(folder / "thing-1.0-cp311-cp311-linux_x86_64.whl", {**INFO, **files})


def audited(folder: Path, code: str, *options: str) -> Audit:
    """Audit a wheel with one library, made of C code."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("there is no C compiler here")
    (folder / "thing.c").write_text(code)
    library = folder / "thing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "thing.c", *options], check=True)
    return audit_wheel(wheel(folder, {"tensorflow/thing.so": library.read_bytes()}))


def test_a_real_library_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "auditwheel.py").write_text("raise SystemExit")
    # explicit_bzero came with glibc 2.25.
    audit = audited(tmp_path, "#include <string.h>\nvoid thing(char *p) { explicit_bzero(p, 64); }\n")
    assert audit.needs["GLIBC"] == "2.25"
    assert audit.tag.startswith(("manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux_2_25"))
    assert audit.to_json() == {
        "platform_tag": audit.tag,
        "own_tags": ("linux_x86_64",),
        "consistent": True,
        "needs": audit.needs,
        "external_libraries": (),
    }


def test_what_this_machine_s_libraries_need_is_not_the_wheel_s(tmp_path: Path) -> None:
    # No manylinux tag allows it, and it needs the C library and versions of its own.
    system = next(Path("/usr/lib").glob("*/liblzma.so.5"))
    audit = audited(tmp_path, "int thing(void) { return 1; }\n", "-nostdlib", "-Wl,--no-as-needed", str(system))
    assert (audit.needs, audit.external) == ({}, ("liblzma.so.5",))


def test_a_wheel_is_unpacked_where_it_was_compiled_and_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder for temporary files may be in memory."""

    def run(*_: object, env: dict[str, str], **__: object) -> SimpleNamespace:
        return SimpleNamespace(stdout="", stderr=f"OSError: [Errno 28] No space left on device: {env['TMPDIR']}\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DiskFull, match=r"auditwheel cannot read x\.whl: .*: /here"):
        audit_wheel(Path("x.whl"), Path("/here"))


@pytest.mark.parametrize(
    ("files", "size", "message"),
    [
        ({"tensorflow/__init__.py": b"x = 1\n"}, -1, "is not a TensorFlow wheel"),
        ({"tensorflow/a.so": b"no machine code"}, -1, "is not a TensorFlow wheel"),
        ({}, 50, "auditwheel cannot read"),
    ],
)
def test_a_wheel_without_machine_code_or_that_is_cut_off_is_refused(
    files: dict[str, bytes], size: int, message: str, tmp_path: Path
) -> None:
    path = wheel(tmp_path, files)
    path.write_bytes(path.read_bytes()[:size] if size > 0 else path.read_bytes())
    with pytest.raises(BuildFailed, match=message) as caught:
        audit_wheel(path)
    assert "the wheel is kept" in caught.value.hint


NAME = "tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl"


def test_a_refused_wheel_keeps_no_sidecar_of_an_earlier_one(tmp_path: Path) -> None:
    built, output = tmp_path / "built", tmp_path / "dist"
    for folder in (built, output):
        folder.mkdir()
    (built / NAME).write_bytes(b"no wheel")
    (built / "build.txt").write_text("builder=sha256:0\n")
    (built / "packages.txt").symlink_to(output)
    (output / f"{NAME}.json").write_text("{}")
    build = chosen(release="2.14.1", python="3.11", compiler="clang-16")
    with pytest.raises(BuildFailed, match="auditwheel cannot read"):
        wheels.collect(build, built, output, Progress(io.StringIO()), context="")
    assert [file.suffix for file in output.iterdir()] == [".whl"]
    assert [file.name for file in built.iterdir()] == ["build.txt"]
