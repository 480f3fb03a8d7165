"""The CI matrix: every row can be made again by its own options, the order is stable, systems' limits hold."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import checkout, newest
from tfbuild import facts, pipeline, plan
from tfbuild.ci import matrix
from tfbuild.ci.matrix import Asked, Schedule
from tfbuild.cli import planning
from tfbuild.context import dockerfile
from tfbuild.context.digests import recipe_digest
from tfbuild.errors import UsageError
from tfbuild.plan import Request

ROOT = Path(__file__).parent.parent
COMPILED = f"{newest.RELEASE}-mkl-py3.13-x86-64-v3"
ALL = matrix.select(Asked())
LARGE = ("source=large", "source:linux/arm64=large-arm")


def test_the_usual_rows_are_official_wheels_and_every_level() -> None:
    identifiers = [build.id for build in ALL.rows]
    assert {
        newest.official(),
        f"{newest.RELEASE}-mkl-py3.10-x86-64-v4",
        f"{newest.RELEASE}-cpu-py3.13-armv8.2-a",
    } <= set(identifiers)
    assert len(set(identifiers)) == len(identifiers)
    assert ALL.refused == ()


@pytest.mark.parametrize("build", ALL.rows, ids=lambda build: build.id)
def test_a_rows_options_plan_the_same_build_again(build: plan.Build) -> None:
    words = matrix.options(build).split()
    told: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    request = Request(**{name.removeprefix("--").replace("-", "_"): value for name, value in told.items()})
    again = plan.select(request, None)
    assert again.id == build.id
    assert replace(again, asked=build.asked) == build


def test_the_order_does_not_depend_on_the_order_of_the_question() -> None:
    asked = Asked(releases=("2.14.1", "2.9.3", "2.15.1"), pythons=("3.11", "3.10"), targets=("mkl", "cpu"))
    first = [build.id for build in matrix.select(asked).rows]
    for seed in range(5):
        shuffle = random.Random(seed).sample
        other = Asked(
            releases=tuple(shuffle(asked.releases, 3)),
            pythons=tuple(shuffle(asked.pythons, 2)),
            targets=tuple(shuffle(asked.targets, 2)),
        )
        assert [build.id for build in matrix.select(other).rows] == first
    # 2.9 comes before 2.14: versions are compared, not their letters.
    assert first[0].startswith("2.9.3-cpu")


def test_only_keeps_what_a_glob_fits() -> None:
    found = matrix.select(Asked(only=(f"*-mkl-py3.11-{newest.ISA}", f"*-cpu-py3.12-{newest.ISA}")))
    assert [build.id for build in found.rows] == [newest.official("cpu", "3.12"), newest.official()]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(only=("nothing",)), "the matrix is empty: --only nothing fits none of"),
        (Asked(wheels=("mine",)), "unknown wheel 'mine'"),
        (Asked(platforms=("linux/riscv64",)), "unknown platform 'linux/riscv64'"),
        (Asked(releases=("9.9",)), "the matrix is empty: "),
    ],
)
def test_what_gives_no_rows_is_refused(asked: Asked, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        matrix.select(asked)


def test_github_gets_one_line_of_strings() -> None:
    text = matrix.to_github(matrix.schedule(ALL, "github", LARGE))
    assert "\n" not in text
    rows = json.loads(text)["include"]
    assert [row["id"] for row in rows] == [build.id for build in ALL.rows]
    assert {(row["wheel"], row["platform"], row["runner"]) for row in rows} == {
        ("official", "linux/amd64", "ubuntu-24.04"),
        ("official", "linux/arm64", "ubuntu-24.04-arm"),
        ("source", "linux/amd64", "large"),
        ("source", "linux/arm64", "large-arm"),
    }
    assert all(isinstance(value, str) for row in rows for value in row.values())


WRITERS: tuple[tuple[Callable[[Schedule], str], int], ...] = ((matrix.to_github, 256), (matrix.to_gitlab, 200))


@pytest.mark.parametrize(("write", "most"), WRITERS)
def test_more_rows_than_a_system_takes_are_refused(write: Callable[[Schedule], str], most: int) -> None:
    rows = tuple((replace(ALL.rows[0], python=f"3.{number}"), "any") for number in range(most + 1))
    write(Schedule(rows=rows[:most], notes=()))
    with pytest.raises(UsageError, match=f"more than the {most} jobs"):
        write(Schedule(rows=rows, notes=()))


@pytest.mark.parametrize(("write", "bytes_"), [(matrix.to_github, 1_000_000), (matrix.to_gitlab, 5_000_000)])
def test_more_text_than_a_system_takes_is_refused(write: Callable[[Schedule], str], bytes_: int) -> None:
    """GitHub counts two bytes a character."""
    build = ALL.rows[0]
    write(Schedule(rows=((build, "a" * (bytes_ // 2 - 1000)),), notes=()))
    with pytest.raises(UsageError, match=f"more than the {bytes_:,} that"):
        write(Schedule(rows=((build, "a" * bytes_),), notes=()))


@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_a_row_has_a_machine_that_holds_it_or_is_left_out(system: str) -> None:
    hosted = {row.label: row for row in facts.load("matrix", matrix.MatrixTable).runner if row.system == system}
    found = matrix.schedule(ALL, system, ())
    for build, label in found.rows:
        assert hosted[label].platform == build.platform
        assert hosted[label].disk * 10**9 >= pipeline.DISK[build.wheel.kind]
    out = len(ALL.rows) - len(found.rows)
    assert out == sum(int(note.split()[0]) for note in found.notes)
    assert out > 0
    assert all("86 GB" in note and "--runner source:linux/" in note for note in found.notes)


def test_where_no_machine_holds_any_row_the_matrix_is_refused() -> None:
    compiled = matrix.select(Asked(wheels=("source",)))
    with pytest.raises(UsageError, match=r"the matrix is empty: .* rows are left out: no hosted runner of github's"):
        matrix.schedule(compiled, "github", ())
    assert len(matrix.schedule(compiled, "github", ["source=large"]).rows) == len(compiled.rows)


@pytest.mark.parametrize("word", ["large", "source=", "mine=large", "source:linux/riscv64=large", "=large"])
def test_a_runner_that_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is no runner"):
        matrix.schedule(ALL, "github", [word])


def test_gitlab_gets_a_child_pipeline_with_a_job_a_row() -> None:
    told = json.loads(matrix.to_gitlab(matrix.schedule(ALL, "gitlab", LARGE)))
    rows = told["build"]["parallel"]["matrix"]
    assert [row["TFBUILD_ID"] for row in rows] == [build.id for build in ALL.rows]
    assert told["build"]["extends"] == matrix.GITLAB_JOB


def test_where_nothing_changed_no_system_gets_a_matrix_without_rows() -> None:
    none = matrix.schedule(replace(ALL, rows=()), "github", ())
    assert matrix.to_github(none) == ""
    told = json.loads(matrix.to_gitlab(none))
    assert [list(job) for job in told.values()] == [["script"]]


def test_bake_gets_a_target_a_row_and_its_context(tmp_path: Path) -> None:
    some = matrix.select(Asked(only=(f"{newest.RELEASE}-mkl-py3.11-*",)))
    matrix.write_contexts(some, tmp_path, lambda _: None)
    text = matrix.to_bake(some, tmp_path)
    assert text.count('target "') == len(some.rows)
    for build in some.rows:
        assert f'target "{matrix.target_name(build.id)}" {{' in text
        assert f'context = "{tmp_path / build.id}"' in text
        assert (tmp_path / build.id / "Dockerfile").is_file()


def test_text_that_hcl_would_read_as_a_template_is_literal(tmp_path: Path) -> None:
    some = matrix.select(Asked(only=(newest.official(),)))
    assert f'"$${{X}}%%{{y}}/{newest.official()}"' in matrix.to_bake(some, Path("${X}%{y}"))


def test_a_row_is_changed_where_its_files_are() -> None:
    avx = matrix.select(Asked(only=(newest.official(),))).rows[0]
    digests = [recipe_digest(dockerfile.recipe(one)) for one in (avx, replace(avx), replace(avx, with_headers=True))]
    assert digests[0] == digests[1] != digests[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return checkout.copy(tmp_path / "copy", "tfbuild/", "templates/", "tasks.py")


def changed(folder: Path, ref: str, code: int = 0) -> list[str]:
    words = [f"--only={newest.official()}", f"--only={COMPILED}", f"--changed={ref}"]
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "matrix", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return [row["id"] for row in json.loads(done.stdout)["rows"]] if code == 0 else [done.stderr]


def test_changed_keeps_the_rows_whose_files_differ(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert changed(copy, "HEAD") == []
    assert list((copy / "tfbuild" / "cli" / "__pycache__").glob("planning.*.pyc")), "the next command compiles nothing"
    compile_script = copy / "templates" / "compile.sh"
    compile_script.write_text(compile_script.read_text() + "# changed\n")
    assert changed(copy, "HEAD") == [COMPILED]
    slim = copy / "templates" / "slim.sh"
    slim.write_text(slim.read_text() + "# changed\n")
    assert changed(copy, "HEAD") == [newest.official(), COMPILED]
    assert not (copy / ".git" / "worktrees").exists() or not list((copy / ".git" / "worktrees").iterdir())
    (said,) = changed(copy, "no-such-state", code=2)
    assert "no state 'no-such-state' of this repository" in said


def test_changed_without_git_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--changed needs git"):
        matrix.changed(ALL, "HEAD", [], ROOT)


def test_runners_go_with_jobs_alone() -> None:
    with pytest.raises(UsageError, match="--runner names machines of jobs"):
        planning.matrix(format="json", output="", changed="", runner=["source=large"])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="one of: github, gitlab, bake, json"):
        planning.matrix(format="jenkins", output="", changed="")
