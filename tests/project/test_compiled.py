"""benchmarks.compiled: what it makes of the files that a compile leaves, whole or under way."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compiled
from benchmarks.harness import RESULTS

PLAN = {
    "release": "2.0.4", "target": "mkl", "python": "3.7", "instruction_set": "x86-64-v3",
    "source": {"kind": "git", "commit": "cdf2c54"}, "compiler": "gcc-9", "bazel": "0.26.1",
    "patches": [{"path": "/tmp/a.patch", "sha256": "ab"}], "copts": ["--copt=-mavx2"], "configs": ["mkl"],
    "bazel_flags": [], "configure_env": {"TF_ENABLE_XLA": "0"}, "fixes": ["grpc-gettid"],
    "overrides": [{"name": "icu", "path": "/tmp/icu"}], "system_libs": [{"name": "curl", "packages": ["libcurl-dev"]}],
}  # fmt: skip
STOPPED = {
    "began": 100, "ended": 1100, "why": "time limit", "cpu_seconds": 1500.0, "peak_bytes": 3, "actions_done": 40,
    "actions_total": 90, "processes": 40, "from_cache": 0, "slowest": [[9.0, "a"], [2.0, "b"]],
}  # fmt: skip
DONE = STOPPED | {"began": 2000, "ended": 2500, "why": "done", "cpu_seconds": 600.0, "peak_bytes": 5, "from_cache": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    return tmp_path


def read(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (folder / "sittings.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return compiled.read("ID", folder, folder, folder)


def test_what_has_no_end_is_under_way_and_has_no_verdict(folder: Path) -> None:
    report = read(folder, STOPPED, {"began": 1500})
    assert (report["state"], report["verification"], report["gains"], report["wheel"]) == (
        "under way",
        None,
        None,
        None,
    )
    assert [row["why"] for row in report["sittings"]] == ["time limit", "killed"]
    assert report["sittings"][1]["wall_seconds"] is None


def test_the_total_is_of_all_sittings_and_the_slowest_actions_are_each_named_once(folder: Path) -> None:
    report = read(folder, STOPPED, DONE)
    assert report["state"] == "compiled"
    assert report["total"] == {
        "sittings": 2, "wall_seconds": 1500, "cpu_seconds": 2100, "peak_bytes": 5, "stages": {},
    }  # fmt: skip
    assert report["slowest"] == [{"action": "a", "seconds": 9.0}, {"action": "b", "seconds": 2.0}]
    assert (report["commit"], report["patches"]) == ("cdf2c54", [{"name": "a.patch", "sha256": "ab"}])
    assert (report["fixes"], report["overrides"], report["system_libs"]) == (["grpc-gettid"], {"icu": None}, ["curl"])
    assert "/tmp" not in json.dumps(report), "no folder of the machine that compiled"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("compiled-*.json")), ids=lambda path: path.stem)
def test_a_committed_record_says_what_was_compiled_and_adds_up(path: Path) -> None:
    for build in json.loads(path.read_text())["results"]["builds"]:
        sittings = build["sittings"]
        assert path.stem == f"compiled-{build['release']}"
        assert [name for name in ("commit", "bazel", "compiler", "copts") if not build[name]] == []
        assert build["total"]["sittings"] == len(sittings)
        assert build["total"]["cpu_seconds"] == round(sum(row["cpu_seconds"] or 0 for row in sittings))
        assert build["total"]["peak_bytes"] == max(row["peak_bytes"] or 0 for row in sittings)
        done = any(row["why"] == "done" for row in sittings)
        assert build["state"] == ("compiled" if done else "under way")
        assert bool(build["wheel"]) == bool(build["inspection"]) == done
        verified = build["verification"] if done else None
        assert (build["verification"], build["gains"]) == (verified, build["gains"] if done else None)
        if verified and verified["verdict"] in ("pass", "warn"):
            skipped = {name for name, status in verified["checks"].items() if status not in ("pass", "warn")}
            assert skipped <= {"cuda"}
