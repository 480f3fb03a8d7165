"""slim.sh and parts.sh on a small virtual environment: what they leave is the same each time, and Python runs it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkout import ROOT

SLIM = ROOT / "templates" / "slim.sh"
PARTS = ROOT / "templates" / "parts.sh"
EPOCH = 315532800
# A set among the constants: its order in the bytecode depends on the hash seed before Python 3.11.
MODULE = "def f(x):\n    return x in {'one', 'two', 'three'}\n"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("strip", "ldd"))), reason="slim.sh needs binutils and the loader's ldd"
)


def slimmed(venv: Path, library: Path | None = None) -> dict[str, tuple[int, int, bytes]]:
    """Make the environment anew, slim it, and return each path's mode, time and content.

    `library`: TensorFlow's; any real one by default.
    """
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    package = site / "tensorflow"
    (package / "include").mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE)
    (package / "other.py").write_text("print 'of another Python'\n")
    (package / "include" / "cpu_info.h").write_text("")
    # As setuptools does: Python imports the module whenever it starts.
    (site / "hook.pth").write_text("import hook\n")
    (site / "hook.py").write_text("")
    shutil.copy(library or next(Path("/usr/lib").rglob("libdl.so.2")), package / "libtensorflow_framework.so.2")
    # As an installer leaves it: with the time in it.
    subprocess.run([venv / "bin" / "python", "-m", "compileall", "-q", package / "__init__.py"], check=True)
    subprocess.run(["sh", SLIM, venv, "headers"], check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return {
        str(path.relative_to(venv)): (
            path.lstat().st_mode,
            int(path.lstat().st_mtime),
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(venv.rglob("*"))
    }


def test_what_slim_leaves_is_the_same_each_time(tmp_path: Path) -> None:
    first = slimmed(tmp_path / "venv")
    time.sleep(1.1)  # bytecode holds whole seconds
    assert slimmed(tmp_path / "venv") == first
    assert {entry[1] for entry in first.values()} == {EPOCH}
    bytecode = {name: entry[2] for name, entry in first.items() if name.endswith(".pyc")}
    assert [name.rpartition("/")[2].partition(".")[0] for name in bytecode] == ["hook", "__init__"]
    # PEP 552: 1 for a hash of the source that is not compared again.
    assert {content[4:8] for content in bytecode.values()} == {b"\1\0\0\0"}
    python = tmp_path / "venv" / "bin" / "python"
    run = [str(python), "-v", "-c", "import tensorflow; print(tensorflow.f('one'))"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert "matches" in done.stderr


def test_a_library_that_cannot_be_stripped_fails_the_build(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF and no more")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        slimmed(tmp_path / "venv", broken)
    assert str(SLIM) in map(str, raised.value.cmd)


def test_parts_takes_tensorflow_s_own_libraries_and_their_record_and_no_more(tmp_path: Path) -> None:
    site = "lib/python3.11/site-packages"
    own = {
        f"{site}/tensorflow/libtensorflow_cc.so.2",
        f"{site}/tensorflow/python/_pywrap.so",
        f"{site}/tensorflow-2.0.dist-info/RECORD",
    }
    others = {f"{site}/tensorflow/__init__.py", f"{site}/numpy/core.so", f"{site}/numpy-1.dist-info/RECORD", "bin/x.so"}
    for name in own | others:
        (tmp_path / "venv" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "venv" / name).write_text(name)
    for _ in range(2):  # the second time, nothing is left to do
        subprocess.run(["sh", PARTS, tmp_path / "venv", tmp_path / "libraries"], check=True)
        assert files(tmp_path / "venv") == others
        assert files(tmp_path / "libraries") == own
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {int(path.stat().st_mtime) for path in folders} == {EPOCH}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
