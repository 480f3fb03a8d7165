"""Reading Bazel's output and the options of a compile, and running compile.sh."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.clock import Stopped
from tests.rows import each
from tfbuild.context import dockerfile
from tfbuild.errors import UsageError
from tfbuild.facts import toolchains
from tfbuild.pipeline import bazel
from tfbuild.pipeline.bazel import BazelWatch
from tfbuild.pipeline.run import run_of
from tfbuild.plan import RunRequest
from tfbuild.util.progress import Step

RELAY = dockerfile.TEMPLATES / "relay.py"


def test_progress_has_an_eta_by_the_usual_rate_of_the_last_minutes() -> None:
    clock, done = Stopped(), 1_000
    watch = BazelWatch(clock.monotonic)

    def after(minutes: int, actions: int) -> str:
        """Return what is shown after some minutes of so many actions each."""
        nonlocal done
        for _ in range(2 * minutes):
            clock.now += 30
            done += actions // 2
            text = watch(f"[{done:,} / 20,000] x")
        return text

    assert watch("[1,000 / 20,000] 8 actions running") == "1,000 / 20,000 actions, 5 %: 8 actions running"
    # What a cache has comes first, perhaps for most of the time; it says nothing of the rest.
    assert after(10, 1_000) == "11,000 / 20,000 actions, 55 %: x"
    assert "left" not in after(4, 40)
    assert after(1, 40) == "11,200 / 20,000 actions, 56 %, about 1 h 34 min left: x"
    # A minute of Bazel's own actions, which end at once, is no usual one.
    after(1, 1_000)
    assert "about 1 h 03 min left" in after(5, 60)
    # Only the last half hour counts.
    assert "about 1 h 35 min left" in after(30, 60)
    assert "left" not in after(20, 0)
    done = 0  # Bazel begins again
    assert "about 2 h 55 min left" in after(30, 100)


def test_warnings_do_not_replace_the_progress_and_what_follows_the_compile_does() -> None:
    watch, step, shown = BazelWatch(), Step("build"), []
    for line in ("Starting Bazel", "[9 / 10] x", "warning: y", "tfbuild: bolt: train", "Epoch 1"):
        watch.show(step, line)
        shown.append(step.detail)
    assert shown == ["Starting Bazel", *2 * ["9 / 10 actions, 90 %: x"], *2 * ["bolt: train"]]


CRASHED = "clang: error: clang frontend command failed due to signal (use -v to see invocation)"


@each("line", ["", "INFO: Found 1 target...", "[Prepa] x", "a[1]", "Loading: 0 packages loaded", CRASHED])
def test_other_lines_show_nothing(line: str) -> None:
    watch = BazelWatch()
    assert watch(line) == ""
    assert not any([watch.killed, watch.out_of_time, watch.no_remote, watch.no_use, watch.alone])
    assert watch.began == line.startswith("Loading")


def test_a_count_is_shown_without_what_is_not_known_and_without_the_time_in_front() -> None:
    assert BazelWatch()("(11:02:03) [1,234 / 20,345] 8 running") == "1,234 / 20,345 actions, 6 %: 8 running"
    assert BazelWatch()("[1 / 2] ") == "1 / 2 actions, 50 %"
    assert BazelWatch()("[0 / 0] x") == "0 / 0 actions: x"


def test_a_failed_action_is_counted_when_it_fails() -> None:
    watch = BazelWatch()
    for line in (
        "ERROR: /src/BUILD:12:3: Compiling a.cc failed: (Exit 1): clang failed",
        "a.cc:1: error: b failed: (c)",
    ):
        watch(line)
    assert watch("[1 / 4] x") == "1 / 4 actions, 25 %, 1 failed: x"


@pytest.mark.parametrize(
    "line",
    [
        "gcc: fatal error: Killed signal terminated program cc1plus",
        "clang: error: unable to execute command: Killed",
        "Server terminated abruptly (error code: 14, error message: 'Socket closed', log file: '/x/server/jvm.out')",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "java.lang.OutOfMemoryError: Java heap space",
        "virtual memory exhausted: Cannot allocate memory",
        "cc1plus: out of memory allocating 65536 bytes after a total of 27373568 bytes",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "/usr/bin/ld.gold: out of memory",
        "/usr/bin/ld: final link failed: memory exhausted",
        "LLVM ERROR: out of memory",
        "ERROR: /src/BUILD:36:1: Executing genrule //x:y failed (Killed): bash failed: error executing command",
        "ERROR: /src/BUILD:36:8: Executing genrule //x:y failed: (Exit 137): bash failed: error executing command",
    ],
)
def test_a_lack_of_memory_is_recognised(line: str) -> None:
    watch = BazelWatch()
    watch(line)
    assert watch.killed


INVALID = (
    *(("time_limit", text) for text in ("5", "5x", "m", "0m", "-1h", "9999999999999h")),
    *(("jobs", text) for text in ("0", "08", "1000000", "8 cores", "²")),
    *(("mirror", text) for text in ("ftp://example.org", "file:///srv", "http://")),
    ("reuse", "x\ny"),
    ("network", "bridge2"),
)


@pytest.mark.parametrize(("name", "text"), INVALID)
def test_invalid_options_are_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_of(RunRequest(**{name: text}), None)  # type: ignore[arg-type]
    assert repr(text) in caught.value.reason
    assert caught.value.hint


@each("own", ["false", "true"])
def test_the_flags_for_host_tools_go_to_each_bazel_that_knows_them(own: str) -> None:
    assert toolchains.host_configuration("5.3.0", own) == (f"--distinct_host_configuration={own}",)
    assert [toolchains.host_configuration(version, own) for version in ("6.0.0", "7.4.1")] == [(), ()]


# --- compile.sh, with a script in place of Bazel that writes the same files -------------------------------------------

BAZEL = """#!/bin/sh
case "$*" in
*" build "*) ;;
--version) echo "bazel 7.7.1- (@non-git)"; exit 0 ;;
*) exit 0 ;;
esac
echo "[1 / 2] compiling"
profile=$(sed -n 's/^build --profile=//p' ROOT/mnt/all.bazelrc)
echo '[]' > "$profile"
PROFILE
exit CODE
"""
NAME = "2.0.0-cpu-py3.7-avx"


def compile_in(
    root: Path, *, code: int = 0, profile: str = "", secrets: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run compile.sh with its folders below `root`; `profile`: shell code run before Bazel ends."""
    for name in ("mnt", "src", "opt/tfbuild", "wheel", "var/tmp/bazel"):
        (root / name).mkdir(parents=True, exist_ok=True)
    texts = {
        "mnt/network.sh": (dockerfile.TEMPLATES / "network.sh").read_text(),
        "mnt/bazelrc": "build --copt=-mavx\n",
        "src/configure.py": "",
        "opt/tfbuild/builder": "b1\n",
        "opt/tfbuild/source": "source_commit=\n",
        "bin/bazel": BAZEL.replace("PROFILE", profile).replace("ROOT", str(root)).replace("CODE", str(code)),
        "compile.sh": (dockerfile.TEMPLATES / "compile.sh").read_text(),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "bin/bazel").chmod(0o755)
    # A version manager's `python3` takes eight times as long to start.
    (root / "bin/python3").unlink(missing_ok=True)
    (root / "bin/python3").symlink_to(sys.executable)
    for name in ("relay.py", "remote.py", "repack.py", "sitting.py", "system.sh"):
        (root / "mnt" / name).write_bytes((dockerfile.TEMPLATES / name).read_bytes())
    for name, text in (secrets or {}).items():
        (root / "mnt" / name).write_text(text)
    env = os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}", "PYTHON_BIN_PATH": sys.executable, "CC": "true"}
    env["TFBUILD_ROOT"] = str(root)
    collect = [sys.executable, "-m", "zipfile", "--create", f"{root}/wheel/thing.whl", "compile.sh"]
    command = ["sh", "compile.sh", NAME, "//:wheel", *collect]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def test_bazel_s_files_are_kept_by_the_digest_of_its_flags(tmp_path: Path) -> None:
    for code, why in ((0, "done"), (7, "failed"), (8, "interrupted")):
        completed = compile_in(tmp_path, code=code)
        assert completed.returncode == code, completed.stderr
        kept = tmp_path / "mnt/cache/runs" / hashlib.sha256(b"build --copt=-mavx\n").hexdigest()
        assert {file.name for file in kept.iterdir()} == {"bazel.log", "profile.json.gz", "sittings.jsonl"}
        last = (kept / "sittings.jsonl").read_text().splitlines()[-1]
        assert json.loads(last)["why"] == why


@pytest.mark.parametrize(("rules", "begins"), [("True", False), ("False", False), ("", True)])
def test_rules_that_make_no_c_library_are_named_before_the_compile(
    rules: str, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIBTENSORFLOW", "1")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/.bazelrc").write_text(f"common --repo_env=USE_PYWRAP_RULES={rules}\n")
    completed = compile_in(tmp_path)
    assert ("compiling" in completed.stdout, "make no C library" in completed.stderr) == (begins, not begins)


@each("fails", [False, True])
def test_bolt_gets_the_wheel_before_it_is_packed(fails: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "mnt").mkdir()
    (root / "mnt/bolt.py").write_text(f"""import sys, zipfile
open("seen", "w").write(" ".join(sys.argv[1:]))
with zipfile.ZipFile(sys.argv[1], "a") as wheel:
    wheel.writestr(zipfile.ZipInfo("laid out", (2026, 1, 1, 0, 0, 0)), "")
sys.exit({int(fails)})
""")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOLT", "bolt-19")
        completed = compile_in(root)
    assert (completed.returncode, "could not be packed" in completed.stdout) == (int(fails), fails)
    assert (root / "src/seen").read_text() == f"{root}/wheel/thing.whl {root}/mnt/constraints.txt 19"
    with zipfile.ZipFile(root / "wheel/thing.whl") as wheel:
        assert wheel.getinfo("laid out").date_time[0] == (2026 if fails else 1980)


def test_a_record_or_profile_that_cannot_be_written_ends_no_compile(tmp_path: Path) -> None:
    record = tmp_path / f"mnt/cache/b1/sittings/{NAME}.jsonl"
    completed = compile_in(tmp_path, profile=f'rm {record}; mkdir {record}; echo other > "$profile.gz"')
    assert completed.returncode == 0, completed.stderr
    assert "tfbuild: note: there is no record of what this run cost\n" in completed.stdout
    # As Debian's Bazel says it.
    assert "\nbazel=7.7.1\n" in (tmp_path / "wheel/build.txt").read_text()


# Once Bazel has begun, its remote cache is one that does not answer, or did not for a while.
DIES = "echo build --remote_cache=grpc://127.0.0.1:1 > ROOT/mnt/remote"
HANGS = "echo 'tfbuild: the remote cache x does not answer: timed out' > ROOT/mnt/remote.lost"


@pytest.mark.parametrize(("trouble", "deadline", "goes_on"), [(DIES, "9999999999", True), (HANGS, "1", False)])
def test_a_compile_goes_on_without_a_remote_cache_that_is_lost_but_not_beyond_the_time_limit(
    deadline: str, goes_on: bool, trouble: str, tmp_path: Path
) -> None:
    completed = compile_in(
        tmp_path, code=7, profile=trouble, secrets={"remote": "build --x\n", "deadline": f"{deadline}\n"}
    )
    assert completed.returncode != 0
    assert (bazel.ALONE in completed.stdout) == goes_on
    assert (bazel.TIME_LIMIT in completed.stdout) != goes_on


# An executor's rc, and a Bazel that fails where the probe is its target, for one reason or another.
EXECUTOR = "build --remote_executor=grpc://127.0.0.1:1\n"
PROBED = 'case "$*" in *tfbuild_probe*) WHAT; exit 1 ;; esac'
REFUSED, ELSEWHERE = "echo FAILED_PRECONDITION", "echo tfbuild: not the builder, 1"
WHYS = [(REFUSED, "it runs no action"), (ELSEWHERE, "its worker runs in another image than this builder's")]


@each("what, why", WHYS)
def test_an_executor_is_tried_before_the_compile(what: str, why: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "mnt").mkdir()
    # Once Bazel has begun: the address answers nobody.
    begins = f"echo '{EXECUTOR}' >> ROOT/mnt/all.bazelrc; touch ROOT/mnt/remote.lost; rm ROOT/mnt/remote.lost"
    completed = compile_in(root, profile=f"{begins}\n{PROBED.replace('WHAT', what)}")
    assert completed.returncode != 0
    assert f"{bazel.NO_USE}{why}" in completed.stdout
    assert (root / "src/tfbuild_probe/BUILD").read_text().count("b1 ") == 1
    assert not (root / "wheel").exists() or not list((root / "wheel").iterdir())


# Bazel fails for as long as a file in its cache is not what its name says, as 7.7.1 does.
REFUSES = """
for file in ROOT/mnt/cache/b1/disk/cas/*/*; do
    digest=$(sha256sum "$file" | cut -d ' ' -f 1)
    [ "$digest" = "${file##*/}" ] ||
        { echo "ERROR: Expected digest '${file##*/}/5' does not match received digest '$digest/5'."; exit 39; }
done
"""


@pytest.mark.parametrize(("deadline", "goes_on"), [("", True), ("1", False)])
def test_damaged_files_in_bazel_s_cache_are_removed_and_the_compile_goes_on(
    deadline: str, goes_on: bool, tmp_path: Path
) -> None:
    sound, damaged, action = (hashlib.sha256(content).hexdigest() for content in (b"sound", b"damaged", b"action"))
    root = tmp_path / "ac"  # named as the folder that is left out
    disk = root / "mnt/cache/b1/disk"
    for name, content in ((f"cas/aa/{sound}", b"sound"), (f"cas/bb/{damaged}", b"x"), (f"ac/cc/{action}", b"result")):
        (disk / name).parent.mkdir(parents=True)
        (disk / name).write_bytes(content)
    completed = compile_in(root, profile=REFUSES, secrets={"deadline": f"{deadline}\n"} if deadline else {})
    assert (completed.returncode == 0) == goes_on, completed.stdout + completed.stderr
    assert "tfbuild: note: removing damaged files from the compile cache" in completed.stdout
    assert {path.name for path in disk.rglob("*") if path.is_file()} == {sound, action}


# --- the log of a long compile ----------------------------------------------------------------------------------------


# However long the script takes, it sees all of its lines within the same second.
AT_ONCE = """
import runpy, sys, time
time.monotonic = lambda: 1000.0
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def relay(text: str, log: Path) -> str:
    command = [sys.executable, "-c", AT_ONCE, str(RELAY), str(log)]
    completed = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    assert log.read_bytes() == text.encode()
    return completed.stdout.decode()


def test_a_short_log_passes_as_it_is(tmp_path: Path) -> None:
    text = "Loading:\n[1 / 2] Compiling a.cc\nERROR: x\nwithout an end"
    assert relay(text, tmp_path / "log") == text


def test_the_end_of_a_flood_is_shown_and_the_rest_is_in_the_log(tmp_path: Path) -> None:
    flood = [f"a.cc:{number}: warning: something unimportant" for number in range(60000)]
    end = ["a.cc:7:1: error: no such thing", "  int x = y;", "  ^", "ERROR: Build did NOT complete successfully"]
    output = relay("\n".join([*flood, *end]) + "\n", tmp_path / "log")
    # BuildKit limits the output per second, and in total.
    assert len(output) < 200 << 10
    assert output.splitlines()[-4:] == end
    assert "lines are in Bazel's own log alone" in output
