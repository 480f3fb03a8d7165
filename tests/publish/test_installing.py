"""`install` takes the wheel that the CPU and the environment run, and a bad index leaves the environment as it was."""

import hashlib
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

from tests import broken
from tests.broken import Broken
from tests.commandline import ROOT, answer, invoke
from tests.publish.wheels import cpuinfo, files, wheel
from tests.rows import each
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
    assert "the newest release, and the largest set of it that this CPU runs" in done.stderr


def test_a_yanked_wheel_is_passed_over(public: Path, v4: Path, tmp_path: Path) -> None:
    shutil.copytree(public, tmp_path / "public")
    invoke("index", tmp_path / "public", "--yank", "x86-64-v4/*=crashes in MatMul")
    done = invoke("install", "--index", tmp_path / "public", "--dry-run", "--cpuinfo", v4)
    assert done.stdout == f"{tmp_path / 'public' / rows(public)['avx']}\n"
    assert "it was yanked: crashes in MatMul" in done.stderr
    invoke("index", tmp_path / "public", "--yank", "x86-64-v4/*=")
    done = invoke("install", "--index", tmp_path / "public", "--dry-run", "--cpuinfo", v4)
    assert done.stdout == f"{tmp_path / 'public' / rows(public)['x86-64-v4']}\n"


def test_what_passed_over_a_newer_release_is_said(public: Path, v4: Path) -> None:
    done = invoke("install", "--index", public, "--cpuinfo", v4, "--print-requirements")
    (line,) = [line for line in done.stderr.splitlines() if "the newest release" in line]
    assert f"not avx/tensorflow_cpu-2.14.1-cp39-cp39-manylinux_2_28_x86_64.whl: for CPython {OTHER}" in line


def test_requirements_name_the_files_of_the_set_for_every_python(server: Broken, public: Path, v4: Path) -> None:
    done = invoke("install", "--index", server.url, "--cpuinfo", v4, "--print-requirements")
    first, second, *hashes = done.stdout.splitlines()
    assert first == f"--extra-index-url {server.url}/x86-64-v4/simple/"
    assert second == "tensorflow-cpu==2.14.0 \\"
    every = [path for path in public.glob("pool/*/*.whl") if path.name.startswith("tensorflow_cpu-2.14.0")]
    known = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in every}
    named = [known[line.strip(" \\").removeprefix("--hash=sha256:")] for line in hashes]
    assert sorted(path.name.split("-")[2] for path in named) == ["cp311", "cp39"]
    document = json.loads(server.content["/choose.json"])
    document["wheels"] *= 2
    server.content["/choose.json"] = json.dumps(document).encode()
    assert invoke("install", "--index", server.url, "--cpuinfo", v4, "--print-requirements").stdout == done.stdout


@each("change", [{"yanked": "crashes"}, {"sha256": "0\n--index-url https://other.example/simple\n#"}])
def test_requirements_have_no_file_that_no_environment_would_get(
    change: dict[str, str], public: Path, v4: Path
) -> None:
    document = json.loads((public / "choose.json").read_text())
    for row in document["wheels"]:
        row.update(change if row["python"] == OTHER else {})
    with broken.serve({"/choose.json": json.dumps(document).encode()}) as server:
        done = invoke("install", "--index", server.url, "--cpuinfo", v4, "--print-requirements")
    _, version, line = done.stdout.splitlines()
    assert version == "tensorflow-cpu==2.14.0 \\"
    assert line == f"    --hash=sha256:{Path(rows(public)['x86-64-v4']).parts[1]}"


def test_a_cpu_that_runs_none_gets_27_and_the_nearest(public: Path, tmp_path: Path) -> None:
    done = invoke("install", "--index", public, "--cpuinfo", cpuinfo(tmp_path / "v2", "x86-64-v2"), code=27)
    assert "fits this CPU and this environment: not " in done.stderr
    assert "this CPU lacks avx" in done.stderr
    invoke("install", "--index", public, "--release", "2.15", code=27)


@each(
    "words",
    [
        ("--python", "/none"),
        ("--python", "/bin/true"),
        ("--index", "http://example.com"),
        ("--index", "ftp://x"),
        ("--index", "https://example.com/?page"),
    ],
)
def test_what_is_no_interpreter_and_no_index_is_refused(words: tuple[str, str], public: Path) -> None:
    done = invoke("install", "--index", public, *words, code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 2


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

Change = Callable[[Broken, str], None]


def truncated(server: Broken, file: str) -> None:
    server.content[file] = server.content[file][:-100]


def lost(server: Broken, file: str) -> None:
    del server.content[file]


def no_index(server: Broken, file: str) -> None:
    del server.content["/choose.json"]


def of_another_version(server: Broken, file: str) -> None:
    server.content["/choose.json"] = server.content["/choose.json"].replace(b"tfbuild.index/1", b"tfbuild.index/2")


def cut_index(server: Broken, file: str) -> None:
    server.content["/choose.json"] = server.content["/choose.json"][:-100]


BAD: list[tuple[Change, int, str]] = [
    (truncated, 24, "bytes with sha256"),
    (lost, 26, "cannot be read: the server answers 404"),
    (no_index, 26, "choose.json cannot be read: the server answers 404"),
    (of_another_version, 26, "its schema is 'tfbuild.index/2', not tfbuild.index/1"),
    (cut_index, 26, "choose.json cannot be used: "),
]


@each("change, code, told", BAD)
def test_a_bad_index_is_one_sentence_and_the_environment_stays(
    change: Change, code: int, told: str, public: Path, tmp_path_factory: pytest.TempPathFactory, empty: Path, v4: Path
) -> None:
    before = contents(empty)
    with broken.serve(files(public)) as server:
        change(server, f"/{rows(public)['x86-64-v4']}")
        done = answer("install", "--index", server.url, "--cpuinfo", v4, "--python", empty / "bin" / "python")
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-2:]
    assert re.search(told, last[0]), done.stderr
    assert last[1].startswith("hint: ")
    assert done.stdout == ""
    assert contents(empty) == before


def test_a_folder_with_a_pipe_or_without_end_is_one_sentence(public: Path, v4: Path, tmp_path: Path) -> None:
    """A wheel that does not end is read to its row's size, and a pipe is not waited for."""
    shutil.copytree(public, tmp_path / "public")
    os.truncate(tmp_path / "public" / rows(public)["x86-64-v4"], 1 << 40)
    words = ("install", "--index", tmp_path / "public", "--cpuinfo", v4)
    done = invoke(*words, code=24)
    most = (public / rows(public)["x86-64-v4"]).stat().st_size + 1
    assert f"has {most} bytes with sha256" in done.stderr
    (tmp_path / "public" / "choose.json").unlink()
    os.mkfifo(tmp_path / "public" / "choose.json")
    assert "choose.json cannot be read: it is not a regular file\nhint: " in invoke(*words, code=26).stderr


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


@each("address", ["http://wheels.example/choose.json", "//wheels.example/choose.json"])
def test_a_redirection_that_is_not_by_tls_is_refused_and_never_followed(
    address: str, public: Path, v4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken.serve(files(public)) as server, broken.serve({}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        server.moved = {"/x/choose.json": "/choose.json", "/y/choose.json": address}
        words = ("install", "--cpuinfo", v4, "--dry-run", "--index")
        assert answer(*words, f"{server.url}/x").returncode == 0
        done = answer(*words, f"{server.url}/y")
    assert done.returncode == 2
    assert "http://wheels.example/choose.json is not an https address" in done.stderr
    assert proxy.requested == []


@each(
    "field, value",
    [("file", "../../x.whl"), ("release", "2.99.0"), ("features", ["magic"]), ("glibc", ""), ("python", "x")],
)
def test_a_row_that_contradicts_itself_is_passed_over(field: str, value: object, public: Path, v4: Path) -> None:
    document = json.loads((public / "choose.json").read_text())
    for row in document["wheels"]:
        if row["instruction_set"] == "x86-64-v4":
            row[field] = value
    with broken.serve({"/choose.json": json.dumps(document).encode()}) as server:
        done = invoke("install", "--index", server.url, "--cpuinfo", v4, "--dry-run")
    assert done.stdout.endswith(f"{rows(public)['avx']}\n")
    assert installing.UNSOUND in done.stderr
