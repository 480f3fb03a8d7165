"""Hostile values in free text that becomes text of a file: each is refused, or stays one quoted word there.

tests/cli/test_options.py puts hostile values behind a valid one of every option.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.context.test_dockerfile import runs
from tests.plan.test_remote_options import options as options_of_remote
from tests.rows import each
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.pipeline import build_context, maker
from tfbuild.plan import Build, Request
from tfbuild.plan.remote_cache import Remote
from tfbuild.plan.tree import parse_rc

# Syntax of a shell, of Dockerfiles, YAML, HCL, GitHub's and Jinja's expressions; options; paths; and
# letters that look like others.
PRINTABLE = (
    "$(touch x)", "`touch x`", "${HOME}", "$HOME", "; touch x", "x && touch x", "x|touch x", "x>x", "a b", " x", "x ",
    "'", '"', "'\"'", "\\", "x\\", "\\'", "--privileged", "-x", "--", "../../x", "#x", "x #y", "<<EOF", "x <<'EOF'",
    "{{ x }}", "{% x %}", "${{ x }}", "%{x}", "$${x}", "%s", "*", "[x]", "~", "!x", "&x", "- x", "x: y", "@x",
    "\N{CYRILLIC SMALL LETTER ER}ython", "\N{KELVIN SIGN}", "\N{FULLWIDTH DIGIT TWO}.21", "\N{GRINNING FACE}",
)  # fmt: skip
# Two lines, a terminal's commands, the end of a C string, bytes that are not UTF-8, and what nobody sees.
UNPRINTABLE = (
    "x\ny", "x\\\nRUN touch x", "x\r", "x\ty", "\x1b[2J", "x\0y", "\udcff", "\xa0", "\u200b", "\u202e", "\u2028",
)  # fmt: skip
VALUES = (*PRINTABLE, *UNPRINTABLE)
T = TypeVar("T")
USUAL: dict[str, Any] = {"target": "cpu", "release": "2.20.0", "cpu": "x86-64-v3", "platform": "linux/amd64"}


def planned(**options: Any) -> Build:
    return plan.select(Request(**{**USUAL, **options}), None)


def made_or_refused(make: Callable[[], T]) -> T | TfbuildError:
    try:
        return make()
    except TfbuildError as error:
        return error


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder but for a repository, so that nothing of the project is found by chance."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "WORKSPACE").touch()
    return tmp_path


# --- free text --------------------------------------------------------------------------------------------------------

PATCH = "--- a/x\n+++ b/x\n"
# It is no name of a file, but a path out of the folder.
OUT = "../../x"


def free(values: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The options that take any printable text, each with all values, and files and folders of these names."""
    files = [value for value in values if value != OUT]
    (folder / "patches").mkdir()
    for name in files:
        (folder / "patches" / name).write_text(PATCH)
        (folder / "repositories" / name).mkdir(parents=True)
        (folder / "repositories" / name / "WORKSPACE").touch()
        (folder / "repositories" / name / "BUILD").touch()
    return {
        "bazel_flag": tuple(f"--x={value}" for value in values),
        "configure": tuple(f"A{number}={value}" for number, value in enumerate(values)),
        "patch": tuple(f"{folder}/patches/{value}" for value in files),
        "override_repository": tuple(f"r{number}={folder}/repositories/{value}" for number, value in enumerate(files)),
    }


@cache
def syntax(text: str) -> str:
    """A shell's text without its quoted words, and without the words that need no quotes."""
    bare = re.sub(r"""'[^']*'|"'"|(?<=[\s='"])[\w@%+=:,./-]+""", "", text, flags=re.ASCII)
    return re.sub(r"\s+", " ", bare)


def shape(build: Build) -> Iterator[tuple[str, ...]]:
    """What the files of a build consist of, whatever the values in them are."""
    files = dockerfile.files(build)
    for instruction in instructions(files["Dockerfile"]):
        word, _, rest = instruction.partition(" ")
        yield (word, syntax(rest) if word == "RUN" else "")
    yield ("bazelrc", *("#" if line.startswith("#") else line.split(" ")[0] for line in files["bazelrc"].splitlines()))
    text = files["entrypoint.sh"].replace(build.id, "ID")
    yield ("entrypoint.sh", *(line for line in text.splitlines() if not line.startswith(dockerfile.MARKER)))
    yield ("plan.json", *json.loads(files["plan.json"]))


def instructions(text: str) -> Iterator[str]:
    """The instructions of a Dockerfile: Docker leaves out comments, then it joins lines that end in a `\\`."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return iter(re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return planned(**free(PRINTABLE, tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The same build with as many values, of letters alone."""
    names = tuple(f"harmless{number}" if value != OUT else OUT for number, value in enumerate(PRINTABLE))
    return planned(**free(names, tmp_path_factory.mktemp("harmless")))


def test_hostile_text_leaves_every_file_its_structure(hostile: Build, harmless: Build) -> None:
    for have, want in zip(shape(hostile), shape(harmless), strict=True):
        assert have == want


def test_a_shell_gets_every_answer_to_configure_as_it_was_given(hostile: Build, tmp_path: Path) -> None:
    """By a real shell: the compile's own command, with a program that prints in place of the one that compiles."""
    command = next(run for run in runs(dockerfile.files(hostile)["Dockerfile"]) if "compile.sh" in run)
    exports, _, _ = command.partition("&& sh /mnt/compile.sh")
    names = " ".join(f'"$A{number}"' for number in range(len(PRINTABLE)))
    script = f"{exports}; printf '%s\\0' {names}"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(PRINTABLE)
    assert not (tmp_path / "x").exists()


def test_bazel_gets_every_flag_as_it_was_given(hostile: Build) -> None:
    flags = parse_rc(dockerfile.files(hostile)["bazelrc"])["build"]
    assert [flag[4:] for flag in flags if flag.startswith("--x=")] == list(PRINTABLE)


def test_files_in_a_context_have_plain_names_whatever_the_user_s_are_called(hostile: Build, tmp_path: Path) -> None:
    context = build_context.write_context(hostile, tmp_path / "context").folder
    names = [path.name for path in (*context.glob("patches/*"), *context.glob("overrides/*"))]
    assert len(names) == 2 * (len(PRINTABLE) - 1)
    assert [name for name in names if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name)] == []
    assert {path.parent.name for path in context.glob("*/*")} >= {"patches", "overrides", "scripts"}


@each("value", UNPRINTABLE)
@each("name", ["bazel_flag", "configure", "patch", "override_repository"])
def test_free_text_is_one_line_that_can_be_printed(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="control characters"):
        planned(**{name: (f"A={value}",)})


# --- text of files and of the environment, which can hold what no command line can ------------------------------------


@each("value", VALUES)
@each("pattern", ["Authorization={}", "{}=x"])
def test_a_header_of_a_remote_cache_is_refused_or_one_flag(pattern: str, value: str, folder: Path) -> None:
    line = pattern.format(value)
    (folder / "headers").write_bytes(line.encode(errors="surrogateescape"))
    path = str(folder / "headers")
    made = made_or_refused(lambda: options_of_remote(cache="grpcs://cache", header_file=path))
    if isinstance(made, UsageError):
        assert value not in str(made)
        return
    assert isinstance(made, Remote)
    flags = [flag for flag in parse_rc(made.bazelrc("7.4.1"))["build"] if "header" in flag]
    assert flags == [f"--remote_header={text}" for text in line.splitlines()]


# What no variable of the environment can hold is left out.
@each("value", [value for value in VALUES if "\0" not in value])
@each("address", ["{}", "https://x/{}", "https://ci-token:{}@x/y"])
def test_the_address_of_the_source_is_refused_or_can_be_a_label(address: str, value: str) -> None:
    source = address.format(value)
    made = made_or_refused(lambda: maker.given_at_build({maker.SOURCE_VARIABLE: source}))
    if isinstance(made, UsageError):
        assert made.hint
        return
    assert (made, "ci-token" in source) == ({maker.SOURCE: source}, False)
    assert shlex.split(source) == [source]
    assert source.isprintable()
