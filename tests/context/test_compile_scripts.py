"""system.sh, repack.py and sitting.py, which run in the builder: the scripts themselves, on this system's own files."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.commandline import executable
from tfbuild.context import dockerfile
from tfbuild.errors import BadMirror, BuildFailed
from tfbuild.pipeline import diagnosis

SYSTEM = dockerfile.TEMPLATES / "system.sh"
SITTING = dockerfile.TEMPLATES / "sitting.py"
PROFILE = Path(__file__).parents[1] / "data" / "bazel" / "double-7.7.1.profile.json.gz"
REPACK = dockerfile.TEMPLATES / "repack.py"
LOG = """Analyzing: target //:wheel (12 packages loaded)
[1 / 4] 1 action
(03:51:02) [1,218 / 3,831] 2 actions running
INFO: Elapsed time: 3600.1s, Critical Path: 80.2s
INFO: {}.
"""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The folder of a system whose dpkg knows two installed packages, and whose loader finds their libraries."""
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
        executable(tmp_path / "bin" / name, text)
    (tmp_path / "mnt").mkdir()
    return tmp_path


def run(system: Path, *arguments: str, code: int = 0, inside: tuple[str, ...] = ()) -> str:
    script = SYSTEM.read_text().replace("/mnt/network.sh", str(dockerfile.TEMPLATES / "network.sh"))
    # The script removes files of the system that it is in.
    script = script.replace("rm -f /var/lib/dpkg", f"rm -f {system}/none")
    env = {"PATH": f"{system}/bin:{os.environ['PATH']}", "TFBUILD_ROOT": str(system)}
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
    (system / "packages.txt").write_text("libgomp1\n")
    (system / "apt").unlink()
    run(system, "install", str(system / "packages.txt"))
    assert not (system / "apt").exists(), "where nothing lacks, no list is fetched"


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
        ("nothing", 0, 0),
        ("0 processes", 0, 0),
    ],
)
def test_each_sitting_has_a_line_of_what_bazels_log_says(said: str, processes: int, hits: int, tmp_path: Path) -> None:
    log, file = tmp_path / "bazel.log", tmp_path / "sittings.jsonl"
    log.write_text(LOG.format(said))
    file.write_text('{"began": 1}\n')  # killed at once
    sitting("begin", file)
    sitting("end", file, log, tmp_path / "none", "time limit")
    first, last = map(json.loads, file.read_text().splitlines())
    assert first == {"began": 1}
    assert last["ended"] >= last["began"] > 1
    assert last["why"] == "time limit"
    assert (last["actions_done"], last["actions_total"]) == (1218, 3831)
    assert (last["processes"], last["from_cache"]) == (processes, hits)


def test_a_sitting_that_is_killed_leaves_its_time_and_memory_and_one_that_ends_is_counted_to_its_end(
    tmp_path: Path,
) -> None:
    file, profile, cache = tmp_path / "sittings.jsonl", tmp_path / "profile.json", tmp_path / "cache"
    cache.mkdir()
    file.write_text('{"began": 1, "se')  # a power failure's
    for signal_, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        sitting("begin", file)
        with subprocess.Popen([sys.executable, SITTING, "watch", file, profile, "wheel", cache, "none"]) as watch:
            while "peak_bytes" not in (seen := file.read_text().splitlines()[-1]) and watch.poll() is None:
                time.sleep(0.02)
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
            profile.touch()
            (cache / "object").write_bytes(bytes(1 << 20))
            watch.send_signal(signal_)
        assert watch.returncode == code
        profile.unlink()
    sitting("begin", file)
    damaged, killed, ended, next_one = file.read_text().splitlines()
    assert damaged == '{"began": 1, "se'
    assert {"seen", "cpu_seconds", "peak_bytes"} < json.loads(killed).keys()
    row = json.loads(ended)
    assert row["seen"] >= row["began"]
    assert row["cpu_seconds"] >= json.loads(seen)["cpu_seconds"] + 0.2
    assert row["peak_bytes"] > 1 << 20
    assert "why" not in row
    # What was compiled was there when the analysis, and when the compile, ended.
    assert {name: stage["disk_bytes"] >= 1 << 20 for name, stage in row["stages"].items()} == {
        "analysis": True, "compile": True
    }  # fmt: skip
    for key in ("seconds", "cpu_seconds"):
        assert sum(stage[key] for stage in row["stages"].values()) == pytest.approx(row[key], abs=0.1)
    assert row["stages"]["compile"]["cpu_seconds"] >= 0.2
    assert json.loads(next_one).keys() == {"began"}


def test_the_slowest_actions_are_those_of_bazels_profile_however_it_ended(tmp_path: Path) -> None:
    file, profile = tmp_path / "sittings.jsonl", tmp_path / "profile.json"
    text = gzip.decompress(PROFILE.read_bytes()).decode()
    quoted = '{"cat":"action processing","name":"Executing \\"x\\"","ph":"X","ts":1,"dur":9000000000},'
    head, rest = text[: text.rindex('"dur"')].split("\n", 1)
    profile.write_text(f"{head}\n{quoted}\n{rest}")
    sitting("begin", file)
    sitting("end", file, tmp_path / "none", profile, "failed")
    slowest = json.loads(file.read_text())["slowest"]
    # All but the last event, of which only half is there.
    events = [json.loads(line.strip().rstrip(",")) for line in text.splitlines()[1:-3]]
    longest = sorted((event["dur"] for event in events if event["cat"] == "action processing"), reverse=True)
    assert slowest[0] == [9000.0, 'Executing "x"']
    assert [seconds for seconds, _ in slowest[1:]] == [round(time / 1e6, 1) for time in longest[:9]]
    assert slowest[1][1].startswith("Compiling tensorflow/double/")


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
