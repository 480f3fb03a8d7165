"""A trace of the test double, written by Bazel, and the tables made from them."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tfbuild.facts import toolchains
from tfbuild.pipeline import bazel
from tfbuild.pipeline.bazel import Action, Profile

RECORDED = Path(__file__).parents[1] / "data" / "bazel" / "double-7.7.1.json.gz"
RELAY = Path(__file__).parents[2] / "templates" / "relay.py"
KERNEL = "Compiling tensorflow/double/kernel.cc"


def test_the_kernels_are_what_took_the_time() -> None:
    profile = bazel.read_profile(RECORDED)
    assert profile.complete
    assert [(action.name, action.mnemonic) for action in profile.actions[:6]] == [(KERNEL, "CppCompile")] * 6
    times = [action.seconds for action in profile.actions]
    assert times == sorted(times, reverse=True)
    kinds = {name: (count, seconds) for name, count, seconds in profile.by_mnemonic()}
    assert next(iter(kinds)) == "CppCompile"
    assert kinds["CppCompile"][0] == 8
    assert kinds["CppLink"][0] == 2
    assert kinds["Genrule"][0] == kinds["TfWheel"][0] == 1
    assert sum(seconds for _, seconds in kinds.values()) == pytest.approx(profile.seconds)


def test_a_trace_without_its_end_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole, text = bazel.read_profile(RECORDED), gzip.decompress(RECORDED.read_bytes())
    path = tmp_path / "profile.json"
    path.write_bytes(text)
    assert bazel.read_profile(path) == whole
    # In the middle of the tenth action's line.
    parts = text.split(b"action processing", 10)
    path.write_bytes(b"action processing".join(parts[:10]) + b"action proc")
    profile = bazel.read_profile(path)
    assert not profile.complete
    assert len(profile.actions) == 9
    assert "Bazel was killed before it wrote the end" in bazel.profile_table(profile)
    path.write_bytes(b"")
    assert bazel.read_profile(path) == Profile(actions=(), complete=False)


def test_odd_events_are_read_as_far_as_they_make_sense(tmp_path: Path) -> None:
    lines = [
        b'{"cat": "action processing", "name": "Creating a\\u0007\xff", "dur": 1' + b"0" * 400 + b"},",
        b'{"cat": "action processing", "name": "Writing b", "dur": 2500000, "args": 1},',
        b'{"cat": "action processing", "name": "Symlinking c", "dur": 1.5e6, "args": {}},',
        b'{"cat": "action processing", "name": "d", "dur": "long", "args": {"mnemonic": "D"}},',
        b'{"cat": "action processing", "dur": 0},',
        b'{"cat": "action processing", "name": "e"}, ',
        b'{"cat": "other", "name": "f", "dur": 1},',
        b"[1],",
    ]
    (tmp_path / "profile").write_bytes(b"\n".join(lines))
    found = [
        (action.name, action.mnemonic, action.seconds) for action in bazel.read_profile(tmp_path / "profile").actions
    ]
    assert found == [
        ("Creating a\N{REPLACEMENT CHARACTER}", "other", 1e10),
        ("Writing b", "other", 2.5),
        ("Symlinking c", "other", 1.5),
        ("", "other", 0.0),
        ("d", "D", 0.0),
    ]


def test_the_table_has_kinds_and_the_slowest() -> None:
    profile = Profile(
        actions=(
            Action(name="Compiling a.cc", mnemonic="CppCompile", seconds=3725.0),
            Action(name="Linking a.so", mnemonic="CppLink", seconds=61.0),
            Action(name="Compiling b.cc", mnemonic="CppCompile", seconds=0.5),
        ),
        complete=True,
    )
    assert bazel.profile_table(profile) == (
        "3 actions, 1 h 03 min in total\n"
        "\n"
        "by kind:\n"
        "  1 h 02 min  CppCompile                   2\n"
        "  1 min 01 s  CppLink                      1\n"
        "\n"
        "the slowest:\n"
        "  1 h 02 min  CppCompile  Compiling a.cc\n"
        "  1 min 01 s  CppLink     Linking a.so\n"
        "       0.5 s  CppCompile  Compiling b.cc\n"
    )
    assert bazel.slowest(profile, 1) == ["  1 h 02 min  CppCompile  Compiling a.cc"]


def test_the_table_lists_the_fifty_slowest_actions() -> None:
    actions = tuple(Action(name=f"Compiling {n}.cc", mnemonic="CppCompile", seconds=100.0 - n) for n in range(60))
    lines = bazel.profile_table(Profile(actions=actions, complete=True)).splitlines()
    assert len(lines[lines.index("the slowest:") + 1 :]) == 50


@pytest.mark.parametrize(
    ("version", "once", "apart"),
    [
        ("5.3.0", ("--distinct_host_configuration=false",), ("--distinct_host_configuration=true",)),
        ("6.0.0", (), ()),
        ("7.4.1", (), ()),
    ],
)
def test_the_flags_for_host_tools_go_to_each_bazel_that_knows_them(
    version: str, once: tuple[str, ...], apart: tuple[str, ...]
) -> None:
    assert toolchains.bazel_flags(toolchains.table().compile_once, version) == once
    assert toolchains.bazel_flags(toolchains.table().host_apart, version) == apart


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
