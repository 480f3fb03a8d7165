"""`install` takes the wheel that the CPU and the environment run, and a bad index leaves the environment as it was."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import broken
from tests.broken import Broken
from tests.commandline import ROOT, answer, executable, invoke
from tests.publish.wheels import cpuinfo, files, wheel
from tests.rows import each
from tfbuild.errors import UsageError
from tfbuild.oci import transport
from tfbuild.publish import installing, wheel_index, wheel_rows

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "3.9"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with two sets of 2.14.0, one of which an older release has too, and more that fits nothing here."""
    folder = tmp_path_factory.mktemp("index")
    for number, (name, release, options) in enumerate(
        [
            ("avx", "2.14.0", {"python": PYTHON}),
            ("x86-64-v4", "2.14.0", {"python": PYTHON}),
            ("x86-64-v4", "2.14.0", {"python": OTHER}),
            ("avx", "2.14.0", {"python": PYTHON, "audited": "manylinux_2_99_x86_64"}),
            ("avx", "2.14.1", {"python": OTHER}),
        ]
    ):
        wheel(folder / f"built{number}", name, release=release, **options)
        wheel_index.index(folder / "public", wheel_index.of_folder(folder / f"built{number}"), print)
    return folder / "public"


@pytest.fixture
def server(public: Path) -> Iterator[Broken]:
    with broken.serve(files(public)) as server:
        yield server


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def empty(venv: Path) -> Path:
    """That environment without TensorFlow."""
    if any(venv.glob("lib/python*/site-packages/tensorflow*")):
        subprocess.run([venv / "bin" / "python", "-m", "pip", "uninstall", "-q", "-y", "tensorflow-cpu"], check=True)
    return venv


@pytest.fixture
def v4(tmp_path: Path) -> Path:
    return cpuinfo(tmp_path / "v4", "x86-64-v4")


def rows(folder: Path) -> dict[str, str]:
    """The file of each set for this Python."""
    every = wheel_rows.read_list((folder / "choose.json").read_bytes(), "here").wheels
    return {row.instruction_set: row.file for row in every if row.python == PYTHON and row.glibc == "2.28"}


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@each("compiled", ["avx", "x86-64-v4"])
def test_the_largest_set_that_the_cpu_runs_is_chosen(compiled: str, public: Path, tmp_path: Path) -> None:
    recording = cpuinfo(tmp_path / compiled, compiled)
    done = invoke("install", "--index", public, "--dry-run", "--cpuinfo", recording)
    assert done.stdout == f"{public / rows(public)[compiled]}\n"
    assert f"for CPython {OTHER}; this is cpython {PYTHON}" in done.stderr
    assert "it needs glibc 2.99; this system has 2." in done.stderr
    assert ("this CPU lacks avx2" in done.stderr) == (compiled == "avx")
    (line,) = [line for line in done.stderr.splitlines() if "the newest release, and the largest set of it" in line]
    assert f"not avx/tensorflow_cpu-2.14.1-cp39-cp39-manylinux_2_28_x86_64.whl: for CPython {OTHER}" in line


def test_a_yanked_wheel_is_passed_over(public: Path, v4: Path, tmp_path: Path) -> None:
    shutil.copytree(public, tmp_path / "public")
    invoke("index", tmp_path / "public", "--yank", "x86-64-v4/*=crashes in MatMul")
    done = invoke("install", "--index", tmp_path / "public", "--dry-run", "--cpuinfo", v4)
    assert done.stdout == f"{tmp_path / 'public' / rows(public)['avx']}\n"
    assert "it was yanked: crashes in MatMul" in done.stderr
    invoke("index", tmp_path / "public", "--yank", "x86-64-v4/*=")
    done = invoke("install", "--index", tmp_path / "public", "--dry-run", "--cpuinfo", v4)
    assert done.stdout == f"{tmp_path / 'public' / rows(public)['x86-64-v4']}\n"


def test_a_cpu_that_runs_none_gets_27_and_the_nearest(public: Path, tmp_path: Path) -> None:
    done = invoke("install", "--index", public, "--cpuinfo", cpuinfo(tmp_path / "v2", "x86-64-v2"), code=27)
    assert "fits this CPU and this environment: not " in done.stderr
    assert "this CPU lacks avx" in done.stderr
    done = invoke("install", "--index", public, "--release", "2.15", code=27)
    assert "its releases: 2.14.1, 2.14.0" in done.stderr, "neither the CPU nor the environment is the reason"


@each(
    "words",
    [
        ("--python", "/bin/true"),
        ("--index", "http://example.com"),
        ("--index", "https://user:word@example.com"),
        ("--index", "https://example.com/?x"),
    ],
)
def test_what_is_no_interpreter_and_no_index_is_refused(words: tuple[str, str], public: Path) -> None:
    done = invoke("install", "--index", public, *words, code=2)
    assert (done.stdout, done.stderr.count("\n"), "word" in done.stderr) == ("", 2, False)


def test_the_installer_is_a_command_that_runs(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = installing.environment(str(venv))
    subprocess.run([*installing.installer(environment), "--help"], check=True, capture_output=True)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="has no pip, and there is no uv"):
        installing.installer(replace(environment, pip=False))


def test_the_environment_is_the_named_one_else_the_active_one(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = f"{venv}/bin/python"
    for virtual, conda in ((str(venv), "/nothing"), ("", str(venv))):
        monkeypatch.setenv("VIRTUAL_ENV", virtual)
        monkeypatch.setenv("CONDA_PREFIX", conda)
        for named, used in (("", python), (sys.executable, sys.executable), (str(venv), python)):
            assert installing.environment(named).interpreter == used
    monkeypatch.delenv("CONDA_PREFIX")
    assert installing.environment().interpreter == sys.executable
    monkeypatch.setenv("PATH", f"{venv}/bin")
    assert installing.environment("python").interpreter == python, "uv takes a name for any Python"


def test_a_python_of_32_bits_is_none_that_wheels_are_for(tmp_path: Path, public: Path) -> None:
    """As on a Raspberry Pi, where the kernel has 64."""
    code = "import os, sys; sys.maxsize = (1 << 31) - 1; exec(os.environ['CODE'])"
    python = executable(tmp_path / "python", f'CODE=$2 exec {sys.executable} -c "{code}"')
    assert installing.environment(str(python)).kind == "32-bit cpython"
    done = answer("install", "--index", public, "--python", python, "--dry-run")
    assert (done.returncode, "this is 32-bit cpython" in done.stderr) == (27, True)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@each("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_installer_ends_before_tfbuild(
    number: signal.Signals, venv: Path, v4: Path, tmp_path: Path
) -> None:
    """pip waits for a server that says nothing of what the wheel depends on."""
    wheel(tmp_path / "built", "avx", python=PYTHON, release="2.13.0", requires="dependency")
    wheel_index.index(tmp_path / "public", wheel_index.of_folder(tmp_path / "built"), print)
    before = contents(venv)
    with broken.serve({}) as server:
        server.fault = "silence"
        env = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{server.url}/simple/", "NO_PROXY": "*"}
        words = ["install", "--index", str(tmp_path / "public"), "--cpuinfo", str(v4), "--python", str(venv)]
        command = [sys.executable, "-m", "invoke", *words]
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=-1, stderr=-1, text=True) as process:
            while not server.requested:
                assert process.poll() is None
                time.sleep(0.05)
            (installer,) = children(process.pid)
            assert os.getsid(installer) == installer, "a terminal's Ctrl-C would interrupt its clean-up"
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("may be incomplete\nhint: the same command completes it\n")
    assert stdout == ""
    assert contents(venv) == before


# --- bad indexes ------------------------------------------------------------------------------------------------------

# A file of the index, or "" for the wheel; what becomes of it, None if it is lost; the code, and what is said.
BAD: list[tuple[str, Callable[[bytes], bytes] | None, int, str]] = [
    ("", lambda content: content[:-100], 24, "bytes with sha256"),
    ("", None, 26, "cannot be read: the server answers 404"),
    ("choose.json", None, 26, "choose.json cannot be read: the server answers 404"),
    ("choose.json", lambda content: content.replace(b"index/1", b"index/2"), 26, "its schema is 'tfbuild.index/2'"),
    ("choose.json", lambda content: content[:-100], 26, "choose.json cannot be used: "),
    ("choose.json", lambda _: b'{"schema": "tfbuild.index/1"}', 26, "choose.json cannot be used: "),
]


@each("file, change, code, told", BAD)
def test_a_bad_index_is_one_sentence_and_the_environment_stays(
    file: str, change: Callable[[bytes], bytes] | None, code: int, told: str, public: Path, empty: Path, v4: Path
) -> None:
    before = contents(empty)
    with broken.serve(files(public)) as server:
        content = server.content.pop(path := f"/{file or rows(public)['x86-64-v4']}")
        if change is not None:
            server.content[path] = change(content)
        done = answer("install", "--index", server.url, "--cpuinfo", v4, "--python", empty / "bin" / "python")
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-2:]
    assert re.search(told, last[0]), done.stderr
    assert last[1].startswith("hint: ")
    assert done.stdout == ""
    assert contents(empty) == before


@each("fault", ["short", "reset", "stall", "drip", "500"])
def test_a_server_in_trouble_is_one_sentence(
    fault: str, server: Broken, empty: Path, v4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SECONDS", 0.5)
    monkeypatch.setattr(transport, "PATIENCE", 1.0)
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    before = contents(empty)
    server.fault, server.sound = fault, len(server.requested) + 1
    done = answer("install", "--index", server.url, "--cpuinfo", v4, "--python", empty / "bin" / "python")
    server.fault = ""
    assert done.returncode == 26, done.stderr
    assert re.search(r"\n.+\nhint: .+\n\Z", done.stderr), done.stderr
    assert ("sent only" in done.stderr) == (fault == "drip")
    assert contents(empty) == before


@each(
    "field, value",
    [("file", "../../x.whl"), ("release", "2.99.0"), ("features", ["magic"]), ("glibc", ""), ("python", "x"),
     ("file", f"tensorflow_cpu-{5000 * '9'}-cp311-cp311-manylinux_2_17_x86_64.whl")],
)  # fmt: skip
def test_a_row_that_contradicts_itself_is_passed_over(field: str, value: object, public: Path, v4: Path) -> None:
    document = json.loads((public / "choose.json").read_text())
    for row in document["wheels"]:
        if row["instruction_set"] == "x86-64-v4":
            row[field] = value
    with broken.serve({"/choose.json": json.dumps(document).encode()}) as server:
        done = invoke("install", "--index", server.url, "--cpuinfo", v4, "--dry-run")
    assert done.stdout.endswith(f"{rows(public)['avx']}\n")
