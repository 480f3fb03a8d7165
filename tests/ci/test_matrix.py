"""The CI matrix: each row's options plan the same build again, the order is stable, and systems' limits are kept."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import checkout
from tests.facts import newest
from tests.rows import each
from tfbuild import facts, plan
from tfbuild.ci import formats, matrix, runners
from tfbuild.ci.matrix import MatrixRequest, Refused
from tfbuild.ci.runners import Schedule
from tfbuild.cli import many
from tfbuild.context import dockerfile
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import release_table
from tfbuild.pipeline.maker import needed_disk
from tfbuild.plan import Request

ROOT = Path(__file__).parents[2]
COMPILED = f"{newest.RELEASE}-mkl-py3.13-x86-64-v3"
ALL = matrix.select(MatrixRequest())
ONE = matrix.select(MatrixRequest(only=(newest.official(),)))
(BUILD,) = ONE.rows
ROW = {
    "id": BUILD.id, "release": newest.RELEASE, "target": "mkl", "python": "3.11", "platform": "linux/amd64",
    "instruction_set": newest.ISA, "wheel": "official", "options": dockerfile.options(BUILD),
}  # fmt: skip


def written(name: str, rows: matrix.Matrix) -> str:
    return formats.text(name, runners.unscheduled(rows), Path())


def test_the_default_rows_are_official_wheels_and_every_level() -> None:
    identifiers = [build.id for build in ALL.rows]
    assert {
        newest.official(),
        f"{newest.RELEASE}-mkl-py3.12-x86-64-v4",
        f"{newest.RELEASE}-cpu-py3.13-armv8.2-a",
    } <= set(identifiers)
    assert len(set(identifiers)) == len(identifiers)
    assert ALL.refused == ()


def test_json_has_the_digest_of_each_row_and_what_each_refusal_was_asked() -> None:
    """`--changed` compares the digests with those that another commit prints."""
    asked: dict[str, Any] = {
        "release": "2.20.0", "target": "mkl", "python": "3.11", "platform": "linux/amd64", "cpu": "avx"
    }  # fmt: skip
    no = Refused(request=Request(**asked), reason="why")
    assert json.loads(written("json", replace(ONE, refused=(no,)))) == {
        "schema": "tfbuild.matrix/1",
        "rows": [{**ROW, "features": [*BUILD.instruction_set.features], "context": matrix.recipe_digest_of(BUILD)}],
        "refused": [{**asked, "wheel": "source", "reason": "why"}],
    }


def test_a_row_of_a_file_that_cannot_be_planned_is_refused_and_never_left_out() -> None:
    good, bad = (Request(release=release, cpu="avx", platform="linux/amd64") for release in ("2.20.0", "9.9"))
    with pytest.raises(Unsupported, match="error: build 2 of the list: "):
        matrix.select(MatrixRequest(builds=(good, bad)))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("source", ("{}/one", "{}/two"), "source {}/one, and {}/two"),
        ("base", ("debian:bookworm", "debian:trixie"), "base debian:bookworm, and debian:trixie"),
    ],
)
def test_two_builds_of_a_list_with_one_identifier_are_refused(
    name: str, values: tuple[str, str], said: str, tmp_path: Path
) -> None:
    """One of them was left out without a word."""
    for folder in ("one", "two"):
        shutil.copytree(ROOT / "tests" / "data" / "double", tmp_path / folder)
    usual: dict[str, Any] = {"release": "2.20.0", "target": "cpu", "cpu": "avx", "platform": "linux/amd64"}
    first, second = (Request(**{**usual, name: value.format(tmp_path)}) for value in values)
    with pytest.raises(UsageError, match=r"builds 1 and 3 of the list are both called 2\.20\.0-cpu-") as refusal:
        matrix.select(MatrixRequest(builds=(first, first, second)))
    assert refusal.value.reason.endswith(f": {said.replace('{}', str(tmp_path))}")


@each("build", ALL.rows)
def test_a_rows_options_plan_the_same_build_again(build: plan.Build) -> None:
    words = dockerfile.options(build).split()
    options: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    request = Request(**{name.removeprefix("--").replace("-", "_"): value for name, value in options.items()})
    again = plan.select(request, None)
    assert again.id == build.id
    assert replace(again, request=build.request) == build


def test_the_order_of_rows_does_not_depend_on_the_order_of_the_request() -> None:
    request = MatrixRequest(releases=("2.18.1", "2.16.2", "2.17.1"), pythons=("3.11", "3.12"), targets=("mkl", "cpu"))
    first = [build.id for build in matrix.select(request).rows]
    for seed in range(5):
        shuffle = random.Random(seed).sample
        shuffled = MatrixRequest(
            releases=tuple(shuffle(request.releases, 3)),
            pythons=tuple(shuffle(request.pythons, 2)),
            targets=tuple(shuffle(request.targets, 2)),
        )
        assert [build.id for build in matrix.select(shuffled).rows] == first
    assert first[0].startswith("2.16.2-cpu")


def test_only_keeps_rows_that_fit_a_glob() -> None:
    kept = matrix.select(MatrixRequest(only=(f"*-mkl-py3.11-{newest.ISA}", f"*-cpu-py3.12-{newest.ISA}")))
    assert [build.id for build in kept.rows] == [newest.official("cpu", "3.12"), newest.official()]


@pytest.mark.parametrize(
    ("matrix_request", "message"),
    [
        (MatrixRequest(only=("nothing",)), "the matrix is empty: --only nothing matches none of"),
        (MatrixRequest(wheels=("mine",)), "unknown wheel 'mine'"),
        (MatrixRequest(platforms=("linux/riscv64",)), "unknown platform 'linux/riscv64'"),
        (MatrixRequest(releases=("9.9",), images=(("linux/amd64", "avx"),)), "the matrix is empty: "),
    ],
)
def test_an_empty_matrix_is_refused(matrix_request: MatrixRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        matrix.select(matrix_request)


SYSTEMS = {row.name: row for row in matrix.table().system}


@pytest.mark.parametrize("name", SYSTEMS)
def test_more_than_a_system_accepts_is_refused(name: str) -> None:
    """GitHub counts two bytes per character."""
    build, most, size, encoding = ALL.rows[0], SYSTEMS[name].jobs, SYSTEMS[name].bytes, SYSTEMS[name].encoding
    rows = tuple((replace(build, python=f"3.{number}"), "any") for number in range(most + 1))

    def text(*rows: tuple[plan.Build, str]) -> str:
        return formats.text(name, Schedule(rows=rows), Path())

    text(*rows[:most])
    with pytest.raises(UsageError, match=f"more than the {most} jobs"):
        text(*rows)
    left = size - len(text((build, "")).encode(encoding))
    longest = "a" * (left // len("a".encode(encoding)))
    text((build, longest))
    with pytest.raises(UsageError, match=f"more than the {size:,} that"):
        text((build, f"{longest}a"))


def test_the_limits_of_systems_are_those_of_their_documentation() -> None:
    assert {(row.name, row.jobs, row.bytes) for row in SYSTEMS.values()} == {
        ("github", 256, 1_000_000), ("gitlab", 200, 5_000_000),
    }  # fmt: skip
    assert SYSTEMS.keys() == {name for name, form in formats.FORMATS.items() if form.ci}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_row_without_a_machine_that_can_hold_it_is_left_out(system: str) -> None:
    hosted = {row.label: row for row in facts.load("matrix", matrix.MatrixTable).runner if row.system == system}
    schedule = runners.schedule(ALL, system, ())
    for build, label in schedule.rows:
        assert hosted[label].platform == build.platform
        assert hosted[label].room(build.wheel.kind) >= needed_disk(build)
    left_out = len(ALL.rows) - len(schedule.rows)
    assert left_out == sum(int(note.split()[0]) for note in schedule.notes)
    assert all("--runner source:linux/" in note for note in schedule.notes)
    needs = {note.partition(" GB that --wheel source needs")[0].rpartition(" ")[2] for note in schedule.notes}
    assert needs == {"github": {"20"}, "gitlab": set()}[system]


def test_a_matrix_is_refused_if_no_machine_can_hold_any_row() -> None:
    compiled = matrix.select(MatrixRequest(wheels=("source",), platforms=("linux/arm64",)))
    with pytest.raises(UsageError, match=r"the matrix is empty: .* rows left out: no .* runner hosted by github"):
        runners.schedule(compiled, "github", ())
    assert len(runners.schedule(compiled, "github", ["source=large"]).rows) == len(compiled.rows)


@pytest.mark.parametrize("option", ["large", "source=", "mine=large", "source:linux/riscv64=large", "=large"])
def test_a_runner_that_cannot_be_parsed_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=r"is not WHEEL\[:PLATFORM\]=LABEL"):
        runners.schedule(ALL, "github", [option])


def test_a_row_is_changed_if_its_files_are() -> None:
    rows = (BUILD, replace(BUILD), replace(BUILD, with_headers=True))
    digests = [matrix.recipe_digest_of(row) for row in rows]
    assert digests[0] == digests[1] != digests[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return checkout.copy(tmp_path / "copy", "tfbuild/", "templates/", "tasks.py", "tools/", compiled=False)


def commit_change(folder: Path, script: str) -> None:
    path = folder / "templates" / script
    path.write_text(path.read_text() + "# changed\n")
    checkout.git(folder, "commit", "--quiet", "--all", "--message", script)


@pytest.mark.slow
def test_changed_keeps_the_rows_whose_files_differ(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    rows = matrix.select(MatrixRequest(only=(newest.official(), COMPILED)))
    options = [f"--only={newest.official()}", f"--only={COMPILED}"]

    def changed() -> list[str]:
        """The rows of this project that differ from the copy's last commit."""
        return [build.id for build in matrix.changed(rows, "HEAD", options, copy).rows]

    done = subprocess.run(
        [sys.executable, "-m", "invoke", "matrix", "--format=json", "--changed=HEAD", *options],
        cwd=copy, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"] == []
    assert list((copy / "tfbuild" / "cli" / "__pycache__").glob("planning.*.pyc")), "the next command compiles nothing"
    commit_change(copy, "compile.sh")
    assert changed() == [COMPILED]
    commit_change(copy, "slim.sh")
    assert changed() == [newest.official(), COMPILED]
    assert not (copy / ".git" / "worktrees").exists() or not list((copy / ".git" / "worktrees").iterdir())


# Taken for options of git, the last two would leave the worktree there, or make every row a changed one.
@pytest.mark.parametrize("commit", ["no-such-commit", "--lock", "--no-checkout"])
def test_a_commit_that_does_not_exist_is_refused(commit: str, tmp_path: Path) -> None:
    checkout.git(tmp_path, "init", "--quiet")
    checkout.git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    with pytest.raises(UsageError, match=f"this repository has no commit '{commit}': fatal: "):
        matrix.changed(ALL, commit, [], tmp_path)
    assert not (tmp_path / ".git" / "worktrees").exists()


def test_a_commit_without_the_verb_has_none_of_the_rows(tmp_path: Path) -> None:
    checkout.git(tmp_path, "init", "--quiet")
    checkout.git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    assert matrix.changed(ONE, "HEAD", [], tmp_path) == ONE
    assert not (tmp_path / ".git" / "worktrees").exists()


PRINTING = """
from invoke import task
@task
def matrix(_, format, only):
    assert (format, only) == ("json", "x")
    print(open("rows.json").read())
"""


def test_a_row_is_changed_if_the_commit_prints_another_digest(tmp_path: Path) -> None:
    two = matrix.select(MatrixRequest(only=(newest.official(), newest.official("cpu"))))
    printed: Any = json.loads(written("json", two))
    printed["rows"][0]["context"] = "another"
    (tmp_path / "rows.json").write_text(json.dumps(printed))
    (tmp_path / "tasks.py").write_text(PRINTING)
    checkout.git(tmp_path, "init", "--quiet")
    checkout.git(tmp_path, "add", ".")
    checkout.git(tmp_path, "commit", "--quiet", "--message", "first")
    assert matrix.changed(two, "HEAD", ["--only=x"], tmp_path).rows == two.rows[:1]


def test_changed_without_git_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--changed needs git"):
        matrix.changed(ALL, "HEAD", [], ROOT)


def test_runners_are_refused_for_formats_without_jobs() -> None:
    with pytest.raises(UsageError, match="--runner applies to CI jobs only"):
        many.matrix(format="json", output="", changed="", runner=["source=large"])


def test_what_rows_take_is_said_before_they_start() -> None:
    selected = matrix.select(MatrixRequest(releases=("2.14.1", "2.20.0"), targets=("mkl",)))
    lines = runners.schedule(selected, "github", ["source=large"]).summary()
    kinds = Counter(build.wheel.kind for build in selected.rows)
    assert set(kinds) == {"official", "source"}
    free = "on ubuntu-24.04: free in public repositories, else of the account's minutes"
    assert any(line.endswith(free) for line in lines)
    assert f"{kinds['source']} rows on large: a machine of your own, or one that you pay for" in lines
    assert lines[-2:] == [
        "a compile of 2.14.1: 13.9 hours of one processor, 7.5 GB of disk, 6.5 GB of memory, recorded for 2.14.1 on "
        "two processors of an Intel Xeon, without CUDA",
        "a compile of 2.20.0: 13.9 hours of one processor, 7.5 GB of disk, 6.5 GB of memory, recorded for 2.14.1 on "
        "two processors of an Intel Xeon, without CUDA",
    ]


def test_recorded_compiles_are_those_of_the_project() -> None:
    for row in release_table.table().compile:
        path = Path(__file__).parents[2] / "benchmarks" / "results" / f"compiled-{row.recorded}.json"
        builds = json.loads(path.read_text())["results"]["builds"]
        hours = [sum(one["cpu_seconds"] or 0 for one in build["sittings"]) / 3600 for build in builds]
        assert row.cpu_hours == round(max(hours), 1)
        peaks = [one["peak_bytes"] or 0 for build in builds for one in build["sittings"]]
        assert row.memory == round(max(peaks) / 10**9, 1)
        assert row.covers(row.recorded)
