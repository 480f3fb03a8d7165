"""The CI matrix: what is a row, formats keep options whole, and systems' limits are kept.

A new format needs a reader in READERS: what its system makes of the text.
"""

import json
import random
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields
from ruamel.yaml import YAML

from tests.cpu.machines import machine
from tests.facts import newest
from tfbuild import plan
from tfbuild.ci import formats, matrix
from tfbuild.ci.matrix import MatrixRequest
from tfbuild.cli import many
from tfbuild.cli.verbs import VERBS
from tfbuild.context import dockerfile
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import release_table
from tfbuild.pipeline.maker import needed_disk
from tfbuild.plan import Request, options_file

ROOT = Path(__file__).parents[2]
ALL, REFUSED = matrix.select_builds(MatrixRequest())


def selected(**request: Any) -> list[str]:
    return [build.id for build in matrix.select_builds(MatrixRequest(**request))[0]]


def test_the_default_rows_are_official_wheels_and_every_level() -> None:
    identifiers = [build.id for build in ALL]
    compiled = (f"{newest.RELEASE}-mkl-py3.12-x86-64-v4", f"{newest.RELEASE}-cpu-py3.13-armv8.2-a")
    assert {newest.official(), *compiled} <= set(identifiers)
    assert len(set(identifiers)) == len(identifiers)
    assert not REFUSED
    _, refused = matrix.select_builds(MatrixRequest(releases=("2.14.1", "2.16.2"), pythons=("3.12",)))
    assert [reason for reason in refused if "Python 3.12" in reason]
    narrow: dict[str, Any] = {"targets": ("cpu",), "platforms": ("linux/amd64",), "cpus": ("avx", "x86-64-v3")}
    request = MatrixRequest(releases=("2.14.1", "2.20.0"), pythons=("3.12",), wheels=("source",), **narrow)
    assert [*matrix.select_builds(request)[1].values()] == [2]


def test_a_row_of_a_file_that_cannot_be_planned_is_refused_and_never_left_out() -> None:
    good, bad = (Request(release=release, cpu="avx", platform="linux/amd64") for release in ("2.20.0", "9.9"))
    with pytest.raises(Unsupported, match="error: build 2 of the list: "):
        selected(builds=(good, bad))


def test_a_rows_options_name_its_files_and_its_base_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    Path("p/fix.patch").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n")
    Path("p/web1").write_text(machine("rhel7-haswell").cpuinfo())
    Path("p/list.toml").write_text(
        '[[build]]\nrelease = "2.15.1"\ncpuinfo = "p/web1"\npatch = ["p/fix.patch"]\nbase = "bootstrap"\n'
    )
    builds = options_file.find_options_file("p/list.toml").builds
    (build,), _ = matrix.select_builds(MatrixRequest(builds=builds))
    assert build.instruction_set.name == "x86-64-v3"
    words = json.loads(formats.render_rows("json", [(build, "")], tmp_path))["rows"][0]["options"].split()
    again = dict(zip(words[::2], words[1::2], strict=True))
    assert (again["--patch"], again["--base"]) == ("p/fix.patch", "bootstrap")


def test_two_builds_of_a_list_with_one_identifier_are_refused() -> None:
    usual = Request(release="2.20.0", target="cpu", cpu="avx", platform="linux/amd64")
    first, second = (replace(usual, base=base) for base in ("debian:bookworm", "debian:bookworm-slim"))
    assert len(selected(builds=(first, first))) == 1
    with pytest.raises(UsageError, match=r"two builds of the list are both called 2\.20\.0-cpu-"):
        selected(builds=(first, first, second))


def test_the_order_of_rows_does_not_depend_on_the_order_of_the_request() -> None:
    request = {"releases": ("2.18.1", "2.16.2", "2.17.1"), "pythons": ("3.11", "3.12"), "targets": ("mkl", "cpu")}
    first = selected(**request)
    shuffled = {name: tuple(random.Random(7).sample(values, len(values))) for name, values in request.items()}
    assert shuffled != request
    assert selected(**shuffled) == first
    assert first[0].startswith("2.16.2-cpu")


def test_a_platform_may_be_spelled_as_a_plan_takes_it() -> None:
    kinds: dict[str, Any] = {"targets": ("cpu",), "wheels": ("official",)}
    both = selected(platforms=("linux/aarch64", "Linux/x86_64"), **kinds)
    assert both == selected(platforms=("linux/arm64", "linux/amd64"), **kinds) == selected(**kinds)


def test_only_keeps_rows_that_fit_a_glob() -> None:
    only = (f"*-mkl-py3.11-{newest.ISA}", f"*-cpu-py3.12-{newest.ISA}")
    assert selected(only=only) == [newest.official("cpu", "3.12"), newest.official()]


# --- formats ----------------------------------------------------------------------------------------------------------

PLAIN = plan.select(Request(target="mkl", wheel="official", platform="linux/amd64", release=newest.RELEASE), None)
HOSTILE = plan.select(
    Request(
        target="mkl",
        platform="linux/amd64",
        cpu="x86-64-v3",
        release=newest.RELEASE,
        bazel_flag=("--copt=-DA=many words", "--copt=-DB=$HOME", "--copt=-DC=${X}%{y}`id`\\'\"\N{GRINNING FACE}"),
    ),
    None,
)
ROWS = [(PLAIN, "large"), (HOSTILE, 'my $HOME "runner"')]
FOLDER = Path("${X}%{y} \N{LATIN SMALL LETTER E WITH ACUTE}\N{GRINNING FACE}")
# Identifier, the words of its options and the machine of each row, as far as a format has them.
Read = list[tuple[str, list[str] | None, str | None]]


def read_github(text: str) -> Read:
    assert text.count("\n") == 1  # it is one line of $GITHUB_OUTPUT
    rows = json.loads(text)["include"]
    assert [value for row in rows for value in row.values() if not isinstance(value, str)] == []
    return [(row["id"], shlex.split(row["options"]), row["runner"]) for row in rows]


def read_gitlab(text: str) -> Read:
    rows: Read = []
    for name, job in YAML(typ="safe").load(text).items():
        if name != "include":
            (label,), options = job["tags"], job["variables"]["TFBUILD_OPTIONS"]
            assert (job["extends"], job["variables"]["TFBUILD_ID"]) == (".tfbuild", name)
            rows.append((name, shlex.split(dollars(options)), dollars(label)))
    return rows


def dollars(text: str) -> str:
    """What GitLab makes of a variable's value: $$ is a dollar sign, and nothing is left to expand."""
    assert "$" not in text.replace("$$", ""), text
    return text.replace("$$", "$")


def read_json(text: str) -> Read:
    rows = json.loads(text)["rows"]
    assert [row["features"] for row in rows] == [[*build.instruction_set.features] for build, _ in ROWS]
    return [(row["id"], shlex.split(row["options"]), None) for row in rows]


def read_bake(text: str) -> Read:
    assert not re.search(r"[$%]", text)  # they would begin a template
    assert '\ngroup "default" {' in text  # what bake builds without a target
    contexts = [Path(json.loads(found)) for found in re.findall(r'context = (".*")', text)]
    names = re.findall(r'^target "(.*)" {', text, re.MULTILINE)
    assert names == [context.name.replace(".", "_") for context in contexts]
    assert [context for context in contexts if context.parent != FOLDER] == []
    assert f'tags = ["tfbuild:{PLAIN.id}-unverified"]' in text
    return [(context.name, None, None) for context in contexts]


def read_table(text: str) -> Read:
    """It shows what is built, and no identifiers: the rows are told by release and set."""
    builds = {build.instruction_set.name: build.id for build in (PLAIN, HOSTILE)}
    head, *lines = text.splitlines()
    assert head.split() == ["release", "target", "platform", "compiled", "for", "wheel", "Python"]
    return [(builds[line.split()[3]], None, None) for line in lines]


READERS: Mapping[str, Callable[[str], Read]] = {
    "table": read_table, "json": read_json, "bake": read_bake, "github": read_github, "gitlab": read_gitlab,
}  # fmt: skip


@pytest.mark.parametrize("name", formats.FORMATS)
def test_options_of_many_words_and_dollars_come_out_whole(name: str) -> None:
    assert name in READERS, "say in READERS what the format's system makes of its text"
    rows = READERS[name](formats.render_rows(name, ROWS, FOLDER))
    assert [identifier for identifier, _, _ in rows] == [PLAIN.id, HOSTILE.id]
    for (_, words, label), (build, runner) in zip(rows, ROWS, strict=True):
        assert words is None or words == shlex.split(dockerfile.build_options(build))
        assert label in (None, runner)


def test_bake_names_a_context_of_each_row_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many.matrix(format="bake", output=str(tmp_path), **EMPTY | {"only": [newest.official()]})
    assert f'context = "{tmp_path / newest.official()}"' in capsys.readouterr().out
    assert (tmp_path / newest.official() / "Dockerfile").is_file()


EMPTY: dict[str, Any] = {name: [] for name in ("release", "target", "python", "cpu", "platform", "wheel")}


def test_formats_are_in_the_help() -> None:
    *others, last = formats.FORMATS
    assert VERBS["matrix"].options["format"].help == f"output format: {', '.join(others)} or {last} (default: table)"


# --- CI systems -------------------------------------------------------------------------------------------------------

SYSTEMS = {row.name: row for row in matrix.matrix_table().system}


def test_a_format_for_ci_has_its_system_s_limits_and_machines() -> None:
    """Else each of its rows would be left out: "no runner hosted by ..."."""
    systems = {name for name, row in formats.FORMATS.items() if row.ci}
    assert systems == {*SYSTEMS} == {row.system for row in matrix.matrix_table().runner}


@pytest.mark.parametrize("name", SYSTEMS)
def test_more_than_a_system_accepts_is_refused(name: str) -> None:
    """GitHub counts two bytes per character."""
    build, most, size, encoding = ALL[0], SYSTEMS[name].jobs, SYSTEMS[name].bytes, SYSTEMS[name].encoding
    rows = [(replace(build, python=f"3.{number}"), "any") for number in range(most + 1)]
    formats.render_rows(name, rows[:most], Path())
    with pytest.raises(UsageError, match=f"more than the {most} jobs"):
        formats.render_rows(name, rows, Path())
    left = size - len(formats.render_rows(name, [(build, "")], Path()).encode(encoding))
    longest = "a" * (left // len("a".encode(encoding)))
    formats.render_rows(name, [(build, longest)], Path())
    with pytest.raises(UsageError, match=f"more than the {size:,} that"):
        formats.render_rows(name, [(build, f"{longest}a")], Path())


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_row_without_a_machine_that_can_hold_it_is_left_out(system: str) -> None:
    hosted = {row.label: row for row in matrix.matrix_table().runner if row.system == system}
    rows, notes = matrix.schedule(ALL, system, ())
    for build, label in rows:
        fitting = [row for row in hosted.values() if row.platform == build.platform]
        assert hosted[label] == fitting[-1 if build.wheel.kind == "source" else 0]
        assert "avx512f" not in build.instruction_set.features  # neither system promises it
        room = hosted[label].disk + (hosted[label].removable if build.wheel.kind == "source" else 0)
        assert room * 10**9 >= needed_disk(build)
    assert len(ALL) - len(rows) == sum(int(note.split()[0]) for note in notes)
    assert {note.partition(" GB and the CPU that --wheel source needs")[0].rpartition(" ")[2] for note in notes} == {
        "31"
    }


def test_a_machine_holds_what_it_can_run_and_has_the_disk_for_and_removes_software_for_a_compile_alone() -> None:
    for build in (PLAIN, HOSTILE):
        need = -(-needed_disk(build) // 10**9)
        for disk, removable, fits in ((need, 0, True), (need - 1, 0, False), (need - 1, 1, build is HOSTILE)):
            kind: dict[str, Any] = {"system": "x", "platform": build.platform, "label": "x", "cpu": "x86-64-v3"}
            runner = matrix.Runner(disk=disk, removable=removable, **kind)
            assert runner.holds(build) == fits
            assert not replace_fields(runner, platform="linux/arm64", cpu="armv8.2-a").holds(build)
            assert not replace_fields(runner, cpu="x86-64-v2").holds(HOSTILE)


def test_own_machines_hold_every_row() -> None:
    compiled, _ = matrix.select_builds(MatrixRequest(wheels=("source",), platforms=("linux/arm64",)))
    with pytest.raises(UsageError, match=r"the matrix is empty: .* rows left out: no .* runner hosted by github"):
        matrix.schedule(compiled, "github", ())
    rows, notes = matrix.schedule(compiled, "github", ["source=large", "source:linux/arm64=arm"])
    assert ({label for _, label in rows}, len(rows), notes) == ({"arm"}, len(compiled), [])
    assert {label for _, label in matrix.schedule(compiled, "github", ["source=large"])[0]} == {"large"}
    ready = replace(compiled[0], wheel=replace(compiled[0].wheel, kind="file"))
    with pytest.raises(UsageError, match="name one: --runner file:linux/arm64=LABEL"):
        matrix.schedule([replace(ready, instruction_set=HOSTILE.instruction_set)], "github", ())
    assert matrix.schedule([ready], "github", ["file:linux/arm64=own"])[0] == [(ready, "own")]


def test_recorded_compiles_are_those_of_the_project() -> None:
    for row in release_table.table().compile:
        path = ROOT / "benchmarks" / "results" / f"compiled-{row.recorded}.json"
        builds = json.loads(path.read_text())["results"]["builds"]
        hours = [sum(one["cpu_seconds"] or 0 for one in build["sittings"]) / 3600 for build in builds]
        assert row.cpu_hours == round(max(hours), 1)
        peaks = [one["peak_bytes"] or 0 for build in builds for one in build["sittings"]]
        assert row.memory == round(max(peaks) / 10**9, 1)
        assert row.actions == max(one["actions_done"] or 0 for build in builds for one in build["sittings"])
        assert row.covers(row.recorded)
