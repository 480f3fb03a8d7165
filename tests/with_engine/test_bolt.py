"""`--bolt` in a builder: real Clang, LLD and BOLT lay out a library, in a wheel that pip installs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine.conftest import COMPILER, ROOT
from tfbuild.binary import scan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.engine.build import find_program
from tfbuild.facts import toolchains

# A loop that the training runs, with the function that it calls, and one that nothing calls.
LIBRARY = """
extern "C" int before(int x) { return x * 7; }
extern "C" long work(long count) {
    long sum = 0;
    for (long i = 0; i < count; ++i) sum += i % 3 == 0 ? i : before(static_cast<int>(i));
    return sum;
}
extern "C" int after(int x) { return before(x) + 1; }
"""
INIT = """import ctypes
from pathlib import Path

work = ctypes.CDLL(str(Path(__file__).with_name("libtensorflow_framework.so.2"))).work
"""
INFO = "tensorflow-2.20.0.dist-info"
TAG = "py3-none-linux_x86_64"
TEXTS = {
    "work.cc": LIBRARY,
    "wheel/tensorflow/__init__.py": INIT,
    f"wheel/{INFO}/METADATA": "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.0\n",
    f"wheel/{INFO}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {TAG}\n",
    "training.py": "import sys, tensorflow\nsys.exit(tensorflow.work(1000) != 2495502)\n",
    "compile.sh": f"""set -eu
cd /folder
{COMPILER} -O1 -fno-inline -shared -fPIC -fuse-ld=lld FLAG work.cc -o wheel/tensorflow/libtensorflow_framework.so.2
cp wheel/tensorflow/libtensorflow_framework.so.2 wheel/tensorflow/other.so
python3 -m wheel pack wheel
""",
    "bolt.sh": """set -eu
mkdir /tmp/bolt
cd /in
python3 -Bc 'import sys, bolt, pathlib; bolt.lay_out(*map(pathlib.Path, sys.argv[1:3]), "VERSION",
    *map(pathlib.Path, sys.argv[3:]))' /folder/*.whl /dev/null /tmp/bolt /folder/training.py
python3 -m venv /tmp/venv
/tmp/venv/bin/pip install --quiet --no-index /folder/*.whl
sh /templates/slim.sh /tmp/venv headers
/tmp/venv/bin/python -B /folder/training.py
for library in /tmp/venv/lib/*/site-packages/tensorflow/*.so*; do
    readelf --sections --wide "$library" > "/folder/${library##*/}.txt"
    cp "$library" /folder
done
""",
}


@pytest.fixture
def folder(tmp_path: Path, engine: Engine, compilers: str) -> Path:
    row = toolchains.table().bolt
    for name, text in TEXTS.items():
        text = text.replace("FLAG", row.flag.removeprefix("--linkopt="))
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("VERSION", row.package.removeprefix("bolt-")))
    done = run(engine, compilers, tmp_path, "compile.sh")
    assert done.returncode == 0, done.stderr
    return tmp_path


def run(engine: Engine, image: str, folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    inside, scripts = ROOT / "tfbuild" / "in_container", dockerfile.TEMPLATES
    mounts = (f"{folder}:/folder", f"{inside}:/in:ro", f"{scripts}:/templates:ro")
    command: list[Any] = [find_program(engine.environ)[0], "run", "--rm", "--network", "none"]
    command += [word for mount in mounts for word in ("--volume", mount)]
    command += ["--entrypoint", "sh", image, f"/folder/{script}"]
    return subprocess.run(command, env=engine.environ, capture_output=True, text=True, check=False)


def test_the_core_library_is_laid_out_and_no_library_keeps_relocations(
    folder: Path, engine: Engine, compilers: str
) -> None:
    done = run(engine, compilers, folder, "bolt.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    sections = {file.name: file.read_text() for file in folder.glob("*.so*.txt")}
    assert sections.keys() == {"libtensorflow_framework.so.2.txt", "other.so.txt"}
    # BOLT leaves all functions where they were, under this name, and there the scan reads them.
    assert [name for name, text in sections.items() if ".bolt.org.text" in text] == ["libtensorflow_framework.so.2.txt"]
    assert not [name for name, text in sections.items() if ".rela.text" in text]
    laid, other = (scan.read_code(folder / name.removesuffix(".txt"), full=True) for name in sorted(sections))
    assert (laid.instructions, laid.coverage) == (other.instructions, 1.0)


def test_a_training_that_fails_leaves_the_wheel_as_it_was(folder: Path, engine: Engine, compilers: str) -> None:
    (wheel,) = folder.glob("*.whl")
    before = wheel.read_bytes()
    (folder / "training.py").write_text("import os, signal, tensorflow\nos.kill(os.getpid(), signal.SIGILL)\n")
    done = run(engine, compilers, folder, "bolt.sh")
    assert done.returncode != 0
    assert "cannot run the sample program (SIGILL)" in done.stderr
    assert wheel.read_bytes() == before
