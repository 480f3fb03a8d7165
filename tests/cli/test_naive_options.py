"""A careless new option does no harm, or test_options.py finds it: such options are planted in a copy of the project.

The option is `--user-id`, added the way `--with-headers` is: a field of `Request`, one of `Build`, and a word of the
Dockerfile's template that nobody quoted.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import checkout
from tests.checkout import Copy
from tfbuild.errors import UsageError

USUAL = ("--target", "mkl", "--release", "2.20.0", "--cpu", "x86-64-v3", "--platform", "linux/amd64")
HOSTILE = "1; rm -rf /"
PLACES = (
    ("tfbuild/plan/request.py", "    with_headers: bool = option(", "    user_id: str = {declaration}\n{old}"),
    ("tfbuild/plan/build.py", "    with_headers: bool\n", '{old}    user_id: str = ""\n'),
    (
        "tfbuild/plan/decision.py",
        '        "with_headers": request.with_headers,\n',
        '{old}        "user_id": request.user_id,\n',
    ),
    ("templates/Dockerfile.j2", "useradd --non-unique", "useradd --comment {{{{ build.user_id }}}} --non-unique"),
)


def plant(folder: Path, declaration: str, *more: tuple[str, str, str], with_tests: bool = True) -> Path:
    """Copy the project, with this declaration of the option in it."""
    beginnings = ("tfbuild/", "templates/", "tasks.py", "pyproject.toml", *(("tests/",) if with_tests else ()))
    copy = checkout.copy(folder, *beginnings)
    for name, old, new in (*PLACES, *more):
        old = old.replace("{{", "{").replace("}}", "}")
        path = copy / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new.format(old=old, declaration=declaration)), encoding="utf-8")
    return copy


def outcome(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run test_options.py of a copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "tests/cli/test_options.py",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


OWN_PATTERN = 'option("", "time zone", pattern=re.compile("[A-Z][a-z]+/.+"))'
VALID = ("tests/cli/test_options.py", '"target": "cpu", ', '{old}"user_id": "Europe/Rome", ')
IN_ENV = ("templates/Dockerfile.j2", "ENV PATH={{{{ venv }}}}", "ENV TZ={{{{ build.user_id }}}} PATH={{{{ venv }}}}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declaration", "complaint", "more"),
    [
        ('""', "Request.user_id is not declared as an option", ()),
        ('option("", "number of the user", pattern=TEXT)', "a template does not quote", ()),
        (OWN_PATTERN, "a template does not quote 'Europe/Rome; touch x'", (VALID,)),
        (OWN_PATTERN, "a template does not quote 'Europe/Rome LD_PRELOAD=/tmp/evil.so'", (VALID, IN_ENV)),
        ('option("", "number of the user", identifier=Identifier.WORD)', "name=user_id", ()),
        ('option("", "number of the user", identifier=Identifier.NEUTRAL)', "changes_no_file", ()),
        ('option("", "number of the user", written=lambda build: "")', "name=user_id", ()),
    ],
    ids=["undeclared", "any text", "own pattern in RUN", "own pattern in ENV", "no word of the identifier", "neutral",
         "lost from the command"],
)  # fmt: skip
def test_a_careless_option_is_found(
    declaration: str, complaint: str, more: tuple[tuple[str, str, str], ...], tmp_path: Path
) -> None:
    done = outcome(plant(tmp_path / "copy", declaration, *more))
    assert done.returncode != 0
    assert complaint in done.stdout


@pytest.mark.slow
def test_an_option_with_nothing_but_its_help_passes(tmp_path: Path) -> None:
    done = outcome(plant(tmp_path / "copy", 'option("", "number of the user")'))
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy in which nothing but the option's help is declared."""
    folder = tmp_path_factory.mktemp("naive") / "copy"
    with checkout.serving(plant(folder, 'option("", "number of the user")', with_tests=False)) as served:
        yield served


def test_a_naive_option_refuses_what_would_break_out(naive: Copy) -> None:
    refused = naive.invoke("plan", *USUAL, "--user-id", HOSTILE, code=UsageError.exit_code).stderr
    assert refused.startswith(f"error: {HOSTILE!r} is not a plain word\nhint: --user-id VALUE, of letters")


@pytest.mark.parametrize("wheel", [(), ("--wheel", "official")], ids=["source", "official"])
def test_a_naive_option_is_in_the_identifier_the_command_and_the_help(naive: Copy, wheel: tuple[str, ...]) -> None:
    words = [word for word in USUAL if not wheel or word not in ("--cpu", "x86-64-v3")]
    identifiers: dict[str, str] = {}
    for user in ("1", "2"):
        options = [*words, *wheel, "--user-id", user]
        made = json.loads(naive.invoke("dockerfile", *options, "--json", "--output", f"context{user}").stdout)
        identifiers[user] = made["id"]
        head = (naive.folder / made["folder"] / "Dockerfile").read_text().splitlines()[0]
        command = shlex.split(head.partition(": invoke ")[2])
        assert command[command.index("--user-id") + 1] == user
        again = json.loads(naive.invoke(*command, "--json", "--output", f"again{user}").stdout)
        assert (again["id"], again["digest"]) == (made["id"], made["digest"])
    assert identifiers["1"] != identifiers["2"]
    assert "number of the user" in naive.invoke("--help", "build").stdout
