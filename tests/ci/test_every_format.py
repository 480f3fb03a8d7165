"""Every format of `invoke matrix`: rows with hostile options come out whole, and a list without rows is valid.

A new format needs a reader in READERS: what its system makes of the text.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import newest
from tfbuild import plan
from tfbuild.ci import formats, runners
from tfbuild.ci.matrix import Matrix
from tfbuild.ci.runners import Schedule
from tfbuild.cli import many
from tfbuild.cli.verbs import VERBS
from tfbuild.context import dockerfile
from tfbuild.errors import UsageError
from tfbuild.plan import Request

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
LABEL = 'my $HOME "runner"'
# Identifier, the words of its options and the machine of each row, as far as a format has them.
Read = list[tuple[str, list[str] | None, str | None]]


def read_github(text: str) -> Read:
    assert text.count("\n") == 1  # it is one line of $GITHUB_OUTPUT
    rows = json.loads(text)["include"] if text.strip() else []
    assert all(isinstance(value, str) for row in rows for value in row.values())
    return [(row["id"], shlex.split(row["options"]), row["runner"]) for row in rows]


def read_gitlab(text: str) -> Read:
    document = json.loads(text)
    if "build" not in document:
        assert [job["script"] for job in document.values()] == [["echo nothing to build"]]
        return []
    assert document["include"] == [{"local": ".gitlab-ci.yml"}]
    assert document["build"]["extends"] == ".tfbuild"
    rows = [{name: dollars(value) for name, value in row.items()} for row in document["build"]["parallel"]["matrix"]]
    return [(row["TFBUILD_ID"], shlex.split(row["TFBUILD_OPTIONS"]), row["TFBUILD_RUNNER"]) for row in rows]


def dollars(text: str) -> str:
    """What GitLab makes of a variable's value: $$ is a dollar sign, and nothing is left to expand."""
    assert "$" not in text.replace("$$", ""), text
    return text.replace("$$", "$")


def read_json(text: str) -> Read:
    return [(row["id"], shlex.split(row["options"]), None) for row in json.loads(text)["rows"]]


ESCAPE = re.compile(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\([\"\\])|([$%])\4\{")


def hcl_string(text: str) -> str:
    """What HCL reads in a quoted string; a template in it is an error. hashicorp/hcl, hclsyntax/scan_string_lit.rl."""

    def read(match: re.Match[str]) -> str:
        number = match[1] or match[2]
        return chr(int(number, 16)) if number else match[3] or match[4] + "{"

    assert not re.search(r"[$%]\{", ESCAPE.sub("", text)), text
    assert not re.search(r"\\", ESCAPE.sub("", text)), text
    return ESCAPE.sub(read, text)


def read_bake(text: str) -> Read:
    contexts = [hcl_string(found) for found in re.findall(r'context = "((?:[^"\\]|\\.)*)"', text)]
    names = [hcl_string(found) for found in re.findall(r'^target "((?:[^"\\]|\\.)*)"', text, re.M)]
    assert names == [Path(context).name.replace(".", "_") for context in contexts]
    assert all(Path(context).parent == FOLDER for context in contexts)
    return [(Path(context).name, None, None) for context in contexts]


def read_table(text: str) -> Read:
    """It shows what is built, and no identifiers: the rows are told by release and set."""
    builds = {build.instruction_set.name: build.id for build in (PLAIN, HOSTILE)}
    return [(builds[line.split()[3]], None, None) for line in text.splitlines()[1:]]


READERS: Mapping[str, Callable[[str], Read]] = {
    "table": read_table,
    "json": read_json,
    "bake": read_bake,
    "github": read_github,
    "gitlab": read_gitlab,
}
FOLDER = Path("${X}%{y} \N{LATIN SMALL LETTER E WITH ACUTE}\N{GRINNING FACE}")


def test_every_format_has_a_reader_and_is_in_the_help() -> None:
    assert READERS.keys() == formats.FORMATS.keys(), "say in READERS what the format's system makes of its text"
    *others, last = formats.FORMATS
    assert VERBS["matrix"].options["format"].help == f"output format: {', '.join(others)} or {last} (default: table)"


@pytest.mark.parametrize("name", formats.FORMATS)
def test_options_of_many_words_and_dollars_come_out_whole(name: str) -> None:
    rows = READERS[name](formats.text(name, Schedule(rows=((PLAIN, "large"), (HOSTILE, LABEL))), FOLDER))
    assert [identifier for identifier, _, _ in rows] == [PLAIN.id, HOSTILE.id]
    for (_, words, label), (build, machine) in zip(rows, ((PLAIN, "large"), (HOSTILE, LABEL)), strict=True):
        assert words is None or words == shlex.split(dockerfile.options(build))
        assert label in (None, machine)


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_list_without_rows_is_valid(name: str) -> None:
    assert READERS[name](formats.text(name, Schedule(rows=()), FOLDER)) == []


def test_bake_names_a_context_of_each_row_that_is_there(tmp_path: Path) -> None:
    rows = Matrix(rows=(PLAIN, HOSTILE), refused=())
    written: list[str] = []
    formats.write_contexts(rows.rows, tmp_path, written.append)
    assert written == [PLAIN.id, HOSTILE.id]
    assert all((tmp_path / name / "Dockerfile").is_file() for name in written)
    text = formats.text("bake", runners.unscheduled(replace(rows, rows=(PLAIN,))), tmp_path)
    assert f'tags = ["tfbuild:{PLAIN.id}-unverified"]' in text
    assert 'target = "runtime"' in text


def test_a_bake_file_cannot_hold_a_name_that_is_not_utf8() -> None:
    with pytest.raises(UsageError, match="which is not UTF-8") as refusal:
        formats.text("bake", Schedule(rows=((PLAIN, ""),)), Path("\udcff"))
    assert refusal.value.hint


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as refusal:
        many.matrix(format="jenkins", output="", changed="")
    assert all(name in refusal.value.hint for name in formats.FORMATS)
