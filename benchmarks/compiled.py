"""What compiling a release cost and gave, from tfbuild's own records: results/compiled-RELEASE.json.

    .venv/bin/python -m benchmarks.compiled ID [ID ...]

For each identifier (all are of one release): `build/ID/plan.json`, `build/ID/sittings.jsonl` (the builder's record of
each run), `reports/ID.json` (verification, once the image is built; for an image of the wheel file, copy its report
there), `reports/bench-ID.json` (from `invoke bench --only isa --against`, where that was run),
`reports/inspect-ID.json` (from `invoke inspect WHEEL --json`, likewise) and the wheel beside its sidecar in a folder
below `dist/` (from `invoke wheel`: a release's wheels have one file name, so each needs a folder of its own). A compile
that has not ended is recorded as under way.

`--overrides` names a file of JSON that says what each folder is that took a repository's place, such as "0.0.10 of
Debian: not the pinned 0.0.6". `--development`: the tree is of before the release, which is then written as 2.22.0.dev.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.harness import record

SLOWEST = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", nargs="+", help="identifiers of builds, as `invoke plan` prints them")
    parser.add_argument("--build", type=Path, default=Path("build"), help="tfbuild's working folder (default: build)")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="(default: reports)")
    parser.add_argument("--dist", type=Path, default=Path("dist"), help="(default: dist)")
    parser.add_argument("--commit", default="", help="of the tree, where the source is a tree without its history")
    parser.add_argument("--overrides", type=Path, help="JSON: what each overriding folder is, by the repository's name")
    parser.add_argument("--development", action="store_true", help="the source is a tree of before the release")
    options = parser.parse_args()
    builds = [read(name, options.build / name, options.reports, options.dist) for name in options.id]
    versions = optional(options.overrides) if options.overrides else {}
    for build in builds:
        build["commit"] = build["commit"] or options.commit
        build["release"] += ".dev" if options.development else ""
        build["overrides"] = {repository: versions.get(repository) for repository in build["overrides"]}
    [release] = {build["release"] for build in builds}
    print(record(f"compiled-{release}", {"builds": builds}))


def read(name: str, folder: Path, reports: Path, dist: Path) -> dict[str, Any]:
    """One build's record. Raises FileNotFoundError where it was never begun."""
    rows = recorded(folder)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    finished = [row for row in rows if row.get("why") == "done"]
    return {
        "id": name,
        "state": "compiled" if finished else "under way",
        **{key: plan[key] for key in ("release", "target", "python", "instruction_set")},
        "commit": plan["source"]["commit"],
        "source": plan["source"]["kind"],
        "patches": [{"name": Path(row["path"]).name, "sha256": row["sha256"]} for row in plan["patches"]],
        "fixes": plan["fixes"],
        "overrides": dict.fromkeys(row["name"] for row in plan["overrides"]),
        "system_libs": [row["name"] for row in plan["system_libs"]],
        **{key: plan[key] for key in ("compiler", "bazel", "copts", "configs", "bazel_flags", "configure_env")},
        "sittings": [sitting(row) for row in rows],
        "total": total(rows),
        "slowest": slowest(rows),
        "wheel": wheel(name, dist),
        "inspection": inspection(reports / f"inspect-{name}.json"),
        "verification": verification(reports / f"{name}.json"),
        "gains": gains(reports / f"bench-{name}.json"),
    }


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sittings.jsonl").read_text(encoding="utf-8").splitlines()]


def sitting(row: dict[str, Any]) -> dict[str, object]:
    """Seconds and bytes; of a sitting that was killed, until it was last seen.

    `processes` includes Bazel's internal ones (symlinks and the like) in records made before 2026-11-27.
    """
    return {
        "began": row["began"],
        "wall_seconds": wall(row),
        "why": row.get("why", "killed"),
        **{key: row.get(key) for key in ("cpu_seconds", "peak_bytes", "stages")},
        **{key: row.get(key) for key in ("actions_done", "actions_total", "processes", "from_cache")},
    }


def wall(row: dict[str, Any]) -> int | None:
    """Seconds; None for one that was killed before it was seen once. Records of earlier versions have dates alone."""
    if "seconds" in row:
        return int(row["seconds"])
    last = row.get("ended", row.get("seen"))
    return last - row["began"] if last else None


def total(rows: list[dict[str, Any]]) -> dict[str, object]:
    """Over all sittings: what each took from the cache was counted in the one that made it."""
    return {
        "sittings": len(rows),
        "wall_seconds": sum(wall(row) or 0 for row in rows),
        "cpu_seconds": round(sum(row.get("cpu_seconds") or 0 for row in rows)),
        "peak_bytes": max((row.get("peak_bytes") or 0 for row in rows), default=0),
        "stages": stages(rows),
    }


def stages(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each stage's seconds in all sittings that recorded it, and its most bytes of memory and disk."""
    results: dict[str, dict[str, float]] = {}
    for name, measured in (stage for row in rows for stage in (row.get("stages") or {}).items()):
        stage = results.setdefault(name, {})
        for key, value in measured.items():
            before = stage.get(key, 0)
            stage[key] = max(before, value) if key.endswith("bytes") else round(before + value, 1)
    return results


def slowest(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """The longest of all sittings' actions, each by its longest run."""
    results: dict[str, float] = {}
    for row in rows:
        for seconds, name in row.get("slowest", []):
            results[name] = max(seconds, results.get(name, 0.0))
    longest = sorted(results.items(), key=lambda pair: -pair[1])[:SLOWEST]
    return [{"action": name, "seconds": seconds} for name, seconds in longest]


def wheel(name: str, folder: Path) -> dict[str, object] | None:
    """The wheel's size in bytes and its digest, None where `invoke wheel` did not write it."""
    for path in sorted(folder.rglob("*.whl.json")):
        sidecar = json.loads(path.read_text(encoding="utf-8"))
        if sidecar["plan"]["id"] == name:
            return {"name": path.stem, "bytes": path.with_suffix("").stat().st_size, "sha256": sidecar["sha256"]}
    return None


def inspection(path: Path) -> dict[str, object] | None:
    """What the wheel's guard asks for, and each library's features in a thousand instructions; None where not read."""
    report = optional(path)
    if report is None:
        return None
    return {
        "guard": report["guard"]["compiled"],
        "libraries": {
            library["name"]: {name: row["per_1000"] for name, row in library["features"].items() if row["compiled"]}
            for library in report["libraries"]
        },
    }


def gains(path: Path) -> dict[str, object] | None:
    """The baseline's CPU time over this image's, case by case, with its interval; None where it was not measured."""
    report = optional(path)
    if report is None:
        return None
    cases = [case for row in report["experiments"] for case in row["cases"]]
    return {
        "created": report["created"],
        "cpu": report["host"]["cpu"],
        "against": report["image"]["against"],
        "cases": [
            {
                "name": case["name"],
                "rounds": len(case["rounds"]),
                "band": case["band"],
                **{key: arm[key] for key in ("cpu", "effect")},
            }
            for case in cases
            if not case["noisy"]
            for arm in case["arms"][1:]
            if arm["cpu"]
        ],
    }


def verification(path: Path) -> dict[str, object] | None:
    """The verdict and each check's, None where the image was not verified yet."""
    report = optional(path)
    if report is None:
        return None
    throughput = report["throughput"]
    return {
        "verdict": report["verdict"],
        "checks": {check["name"]: check["status"] for check in report["checks"]},
        "image_bytes": report["image"]["size"],
        "throughput": {name: throughput[name] for name in ("baseline", "cpu", "wall", "band")} if throughput else None,
    }


def optional(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


if __name__ == "__main__":
    main()
