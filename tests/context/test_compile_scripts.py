"""system.sh, repack.py and sitting.py, which run in the builder: the scripts themselves, on this system's own files."""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tfbuild.context import dockerfile
from tfbuild.errors import BadMirror, BuildFailed
from tfbuild.pipeline import diagnosis

SYSTEM = dockerfile.TEMPLATES / "system.sh"
SITTING = dockerfile.TEMPLATES / "sitting.py"
REPACK = dockerfile.TEMPLATES / "repack.py"
LOG = """Analyzing: target //:wheel (12 packages loaded)
[1 / 4] 1 action
(03:51:02) [1,218 / 3,831] 2 actions running
INFO: Elapsed time: 3600.1s, Critical Path: 80.2s
INFO: {}.
"""
# As Bazel 0.26 writes it; that one lived to the end of a line alone.
PROFILE = """[
{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"Main"}},
{"cat":"action processing","name":"Linking x [for tool]","ph":"X","ts":1,"dur":1500000,"pid":1,"tid":2},
{"cat":"action processing","name":"Compiling matrix_square_root_op.cc","ph":"X","ts":1,"dur":80200000,"pid":1,"tid":2},
{"cat":"general information","name":"other","ph":"X","ts":1,"dur":90000000,"pid":1,"tid":2},
{"cat":"action proc"""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The folder of a system whose dpkg knows two installed packages, and whose loader finds their libraries."""
    programs = tmp_path / "bin"
    programs.mkdir()
    texts = {
        "ldd": 'echo "	libgomp.so.1 => /usr/lib/libgomp.so.1 (0x1)"\n'
        'echo "	libown.so => /tmp/own/libown.so (0x2)"\necho "	libgone.so => not found"\n',
        "dpkg-query": """case "$*" in
"--search /usr/lib/libgomp.so.1") echo "libgomp1:amd64: /usr/lib/libgomp.so.1" ;;
*--showformat*libgomp1) printf installed ;;
*) exit 1 ;;
esac
""",
        "apt-get": f'echo "$@" >> {tmp_path}/apt\n',
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    (tmp_path / "network.sh").write_text("")
    return tmp_path


def run(system: Path, *arguments: str, code: int = 0, inside: tuple[str, ...] = ()) -> str:
    script = SYSTEM.read_text().replace("/mnt/network.sh", f"{system}/network.sh")
    # The script removes files of the system that it is in.
    script = script.replace("rm -f /var/lib/dpkg", f"rm -f {system}/none")
    env = {"PATH": f"{system}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        [*inside, "sh", "-c", script, "system.sh", *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_packages_of_a_wheels_libraries_are_listed_and_nothing_else(system: Path) -> None:
    with zipfile.ZipFile(system / "x.whl", "w") as wheel:
        wheel.writestr("tensorflow/libtensorflow_framework.so.2", "x")
        wheel.writestr("tensorflow/__init__.py", "")
    assert run(system, "list", str(system / "x.whl")) == "libgomp1\n"


def test_only_packages_that_lack_are_installed(system: Path) -> None:
    (system / "packages.txt").write_text("libcurl4\nlibgomp1\nlibhwloc15\n")
    run(system, "install", str(system / "packages.txt"))
    assert (system / "apt").read_text().splitlines() == [
        "update",
        "install --yes --no-install-recommends libcurl4 libhwloc15",
    ]


def test_without_a_network_what_lacks_is_named(system: Path) -> None:
    """As in a build from a bundle."""
    inside = ("unshare", "--user", "--map-root-user", "--net")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace of one's own needs rights")
    (system / "packages.txt").write_text("libcurl4\nlibgomp1\nlibhwloc15\n")
    said = run(system, "install", str(system / "packages.txt"), code=1, inside=inside)
    assert said == "tfbuild: the bundle's system lacks libcurl4 libhwloc15\n"
    error = diagnosis.explain(BuildFailed(f"the image could not be built\n  {said}", hint="the log"))
    assert (type(error), "libcurl4 libhwloc15" in error.reason) == (BadMirror, True)


def test_where_nothing_lacks_no_list_of_packages_is_fetched(system: Path) -> None:
    (system / "packages.txt").write_text("libgomp1\n")
    run(system, "install", str(system / "packages.txt"))
    assert not (system / "apt").exists()


def sitting(*arguments: object) -> None:
    subprocess.run([sys.executable, SITTING, *map(str, arguments)], check=True)


@pytest.mark.parametrize(
    ("said", "processes", "hits"),
    [
        ("1,300 processes: 82 remote cache hit, 1,218 local", 1300, 82),
        ("9 processes: 4 disk cache hit, 5 linux-sandbox", 9, 4),
        ("3,731 processes: 3,178 disk cache hit, 354 internal, 199 local", 3377, 3178),
        ("20 processes: 4 disk cache hit, 6 remote cache hit, 2 internal, 8 local", 18, 10),
        ("1 process: 1 local", 1, 0),
        ("0 processes", 0, 0),
    ],
)
def test_each_sitting_has_a_line_of_what_bazels_log_says(said: str, processes: int, hits: int, tmp_path: Path) -> None:
    log, file = tmp_path / "bazel.log", tmp_path / "sittings.jsonl"
    log.write_text(LOG.format(said))
    file.write_text('{"began": 1}\n')  # killed at once
    sitting("begin", file)
    profile = tmp_path / "profile.json"
    profile.write_text(PROFILE)
    sitting("end", file, log, profile, "time limit")
    first, last = map(json.loads, file.read_text().splitlines())
    assert first == {"began": 1}
    assert last["ended"] >= last["began"] > 1
    assert last["why"] == "time limit"
    assert (last["actions_done"], last["actions_total"]) == (1218, 3831)
    assert (last["processes"], last["from_cache"]) == (processes, hits)
    assert last["slowest"] == [[80.2, "Compiling matrix_square_root_op.cc"], [1.5, "Linking x [for tool]"]]
    assert (last["action_seconds"], last["tool_seconds"]) == (82, 2)


def test_a_sitting_without_a_log_is_one_that_did_nothing(tmp_path: Path) -> None:
    file = tmp_path / "sittings.jsonl"
    sitting("begin", file)
    sitting("end", file, tmp_path / "none", tmp_path / "none", "failed")
    row = json.loads(file.read_text())
    assert (row["actions_done"], row["processes"], row["from_cache"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("left", "lines"),
    [
        (b'{"began": 1}\n{"began": 2, "se', 1),
        (b'{"began": 1}\n' + bytes(40), 1),
        (b'{"began": 1}\n\xff\x80\n[]\n{"began": 3}\n', 2),
        (b'{"began": 1}\n' + b"[" * 100_000 + b"\n" + b"9" * 5000 + b'\n"\\ud800"\nNaN\n', 1),
        (b"", 0),
    ],
)
def test_what_a_power_failure_left_of_sittings_stops_no_compile(left: bytes, lines: int, tmp_path: Path) -> None:
    file = tmp_path / "sittings.jsonl"
    file.write_bytes(left)
    sitting("begin", file)
    sitting("end", file, tmp_path / "none", tmp_path / "none", "done")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["began"] for row in rows[:-1]] == [1, 3][:lines]
    assert rows[-1]["why"] == "done"


def test_a_sitting_that_is_killed_leaves_its_time_and_memory(tmp_path: Path) -> None:
    file, stage = tmp_path / "sittings.jsonl", tmp_path / "stage"
    stage.write_text("analysis\n")
    sitting("begin", file)
    with subprocess.Popen([sys.executable, SITTING, "watch", file, stage]) as watch:
        while "peak_bytes" not in file.read_text() and watch.poll() is None:
            time.sleep(0.02)
        watch.kill()
    sitting("begin", file)
    killed, next_one = map(json.loads, file.read_text().splitlines())
    assert killed["seen"] >= killed["began"]
    assert {"cpu_seconds", "peak_bytes"} < killed.keys()
    assert killed["stages"].keys() == {"analysis"}
    assert "why" not in killed
    assert next_one.keys() == {"began"}


SPIN = "import time\nwhile time.process_time() < SECONDS: pass\ntime.sleep(600)"


def test_without_a_container_a_sitting_is_what_bazel_and_its_compilers_take(tmp_path: Path) -> None:
    """Bazel's server is no child of the script; what else runs on the machine does not count."""
    file, stage, server = tmp_path / "sittings.jsonl", tmp_path / "stage", tmp_path / "bazel" / "1" / "server"
    stage.write_text("compile\n")
    server.mkdir(parents=True)
    sitting("begin", file)
    code = SPIN.replace("SECONDS", "0.6")
    compiler = code[: code.index("time.sleep")]
    main = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {compiler!r}])\n{code}"
    env = {**os.environ, "TFBUILD_ROOT": str(tmp_path)}
    script = tmp_path / "sitting.py"
    script.write_text(SITTING.read_text().replace("SAMPLE_SECONDS = 5", "SAMPLE_SECONDS = 0.1"))
    # The server has another parent than the script that watches it.
    shell = ["sh", "-c", f'"{sys.executable}" "{script}" watch {file} {stage} {tmp_path}/bazel; true']
    with (
        subprocess.Popen([sys.executable, "-c", SPIN.replace("SECONDS", "5")]) as other,
        subprocess.Popen(shell, env=env) as watch,
        subprocess.Popen([sys.executable, "-c", main]) as bazel,
    ):
        (server / "server.pid.txt").write_text(str(bazel.pid))
        end = time.monotonic() + 300
        while time.monotonic() < end and json.loads(file.read_text()).get("cpu_seconds", 0) < 1.2:
            time.sleep(0.05)
        row = json.loads(file.read_text())
        bazel.kill()
        bazel.wait()
        time.sleep(0.5)
        after = json.loads(file.read_text())
        subprocess.run(["pkill", "-TERM", "-P", str(watch.pid)], check=True)
        other.kill()
    assert 1.2 <= row["cpu_seconds"] < 3
    assert 1 << 20 < row["peak_bytes"] < 100 << 20
    assert after["cpu_seconds"] >= row["cpu_seconds"], "what a server used is not forgotten when it ends"


def test_what_a_short_sitting_took_is_counted_to_its_end(tmp_path: Path) -> None:
    """It was 0 for a run that ended before the second sample, or all of the machine's for an empty server.pid.txt."""
    file, stage, server = tmp_path / "sittings.jsonl", tmp_path / "stage", tmp_path / "bazel" / "1" / "server"
    stage.write_text("compile\n")
    server.mkdir(parents=True)
    (server / "server.pid.txt").touch()
    sitting("begin", file)
    script = tmp_path / "sitting.py"
    script.write_text(SITTING.read_text().replace("SAMPLE_SECONDS = 5", "SAMPLE_SECONDS = 600"))
    watching = [sys.executable, str(script), "watch", *map(str, (file, stage, tmp_path / "bazel"))]
    with subprocess.Popen(watching, env={**os.environ, "TFBUILD_ROOT": str(tmp_path)}) as watch:
        while "cpu_seconds" not in file.read_text() and watch.poll() is None:
            time.sleep(0.02)
        assert json.loads(file.read_text())["stages"]["compile"]["cpu_seconds"] < 0.5
        spin = SPIN.replace("time.sleep", "print(flush=True); time.sleep").replace("SECONDS", "0.6")
        with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as bazel:
            assert bazel.stdout
            (server / "server.pid.txt").write_text(str(bazel.pid))
            bazel.stdout.readline()
            watch.terminate()
            watch.wait()
            bazel.kill()
    row = json.loads(file.read_text())
    assert 0.6 <= row["cpu_seconds"] < 3
    assert row["stages"]["compile"]["cpu_seconds"] == row["cpu_seconds"]
    assert row["peak_bytes"] > 1 << 20
    assert watch.returncode == 0


# Somebody sets the clock back by an hour whenever it is read.
SET_BACK = "hours = iter(range(9**9))\ntime.time = lambda: 1e9 - 3600 * next(hours)\n"


def test_a_sitting_is_divided_into_its_stages_whatever_is_done_to_the_clock(tmp_path: Path) -> None:
    file, stage, made = tmp_path / "sittings.jsonl", tmp_path / "stage", tmp_path / "made"
    script = tmp_path / "sitting.py"
    quick = SITTING.read_text().replace("SAMPLE_SECONDS = 5", "SAMPLE_SECONDS = 0.02")
    script.write_text(quick.replace("import time\n", f"import time\n{SET_BACK}"))
    made.mkdir()
    sitting("begin", file)

    def until(text: str) -> None:
        while text not in file.read_text() and watch.poll() is None:
            time.sleep(0.02)

    stage.write_text("analysis\n")
    with subprocess.Popen([sys.executable, script, "watch", file, stage, made, tmp_path / "none"]) as watch:
        until("analysis")
        (made / "a.o").write_bytes(bytes(range(256)) * 4096)
        os.link(made / "a.o", made / "the same file")
        stage.write_text("compile\n")
        until("compile")
        (made / "b.o").write_bytes(bytes(range(256)) * 4096)
        watch.terminate()
    row = json.loads(file.read_text())
    stages = row["stages"]
    assert list(stages) == ["analysis", "compile"]
    assert all(0 <= each["seconds"] < 3600 for each in (row, *stages.values()))
    assert all(row.keys() == {"seconds", "cpu_seconds", "peak_bytes", "disk_bytes"} for row in stages.values())
    analysis, compile_ = stages["analysis"]["disk_bytes"], stages["compile"]["disk_bytes"]
    assert 2**20 <= analysis < 2 * 2**20 <= compile_ < 3 * 2**20
    assert watch.returncode == 0


# --- repack.py --------------------------------------------------------------------------------------------------------


def packed(wheel: Path, year: int, modes: dict[str, int]) -> Path:
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode in modes.items():
            entry = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            entry.external_attr = mode << 16
            archive.writestr(entry, name * 100, zipfile.ZIP_DEFLATED)
    return wheel


def test_equal_files_make_equal_wheels_whenever_and_wherever_they_were_packed(tmp_path: Path) -> None:
    wheels = [
        packed(tmp_path / "compiled.whl", 2024, {"t/lib.so": 0o100755, "t/a.py": 0o100644, "t/tool": 0o100555}),
        packed(tmp_path / "cached.whl", 2025, {"t/lib.so": 0o100744, "t/a.py": 0o100664, "t/tool": 0o100544}),
    ]
    subprocess.run([sys.executable, REPACK, *wheels], check=True)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
        assert modes == {"t/lib.so": 0o100755, "t/a.py": 0o100644, "t/tool": 0o100755}
        assert archive.read("t/a.py") == b"t/a.py" * 100
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cached.whl", "compiled.whl"]
