"""Options that are fields of a dataclass: what a command line and a file refuse, and a field that was not declared."""

from dataclasses import dataclass

import pytest

from tests.rows import each
from tfbuild.errors import UsageError
from tfbuild.util import options
from tfbuild.util.options import option


@dataclass(frozen=True)
class Example:
    user_id: str = option("", "the user", value="NUMBER")
    fast: bool = option(False, "a switch")
    my_patch: tuple[str, ...] = option((), "repeatable")
    cud_nn: str = option("", "rare", rare=True, compiles=True)
    debug: bool = option(False, "a rare switch", rare=True, group="odd")
    base: str = option("auto", "always written", always=True, pattern=options.TEXT)


def test_a_command_line_has_what_is_not_the_default_and_is_read_back() -> None:
    request = Example(user_id="-1", fast=True, my_patch=("a", "b"), cud_nn="9", debug=True)
    line = ["--user-id=-1", "--fast", "--my-patch", "a", "--my-patch", "b", "--cud-nn", "9", "--debug"]
    assert options.words(request) == [*line, "--base", "auto"]
    assert options.words(Example()) == ["--base", "auto"]
    assert [name for name, _, _ in options.given(request)] == ["user-id", "fast", "my-patch", "cud-nn", "debug"]
    assert options.given_to_compile(request) == ["--cud-nn"]
    assert [*options.of_groups(Example, "odd")] == ["debug"]
    values = {"user_id": "-1", "fast": True, "my_patch": ["a", "b"], "other": 1}
    assert options.make(Example, values) == Example(user_id="-1", fast=True, my_patch=("a", "b"))


@each(
    "request_, reason, hint",
    [
        (Example(base="a\tb"), "--base has control characters in it: 'a\\tb'", "one line of plain text"),
        (Example(user_id="-x"), "'-x' is not a plain word", "--user-id VALUE, of"),
        (Example(my_patch=("a", "b c")), "'b c' is not a plain word", "--my-patch VALUE, of"),
        (
            Example(cud_nn="\N{CYRILLIC SMALL LETTER A}"),
            "'\N{CYRILLIC SMALL LETTER A}', which is '\\u0430', is not a plain word",
            "--cud-nn VALUE, of",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_the_reason(request_: Example, reason: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        options.refuse_invalid(request_)
    assert refusal.value.reason == reason
    assert refusal.value.hint.startswith(hint)
    options.refuse_invalid(Example(user_id="x" * 10_000, fast=True, my_patch=("a", "b"), base="any text", debug=True))


@each(
    "name, value, read",
    [
        ("user-id", "1", "1"),
        ("user-id", 1, "1"),
        ("fast", False, False),
        ("my-patch", ["a", "b"], ("a", "b")),
        ("user-id", 1.5, 'text in quotes; user-id = "NUMBER"'),
        ("user-id", True, 'text in quotes; user-id = "NUMBER"'),
        ("user-id", " ", 'text in quotes; user-id = "NUMBER"'),
        ("fast", 1, "true or false; fast = true"),
        ("my-patch", "a", 'a list of texts; my-patch = ["PATCH"]'),
        ("my-patch", [], 'a list of texts; my-patch = ["PATCH"]'),
        ("my-patch", ["a", 1], 'a list of texts; my-patch = ["PATCH"]'),
        ("my-patch", ["a", " "], 'a list of texts; my-patch = ["PATCH"]'),
    ],
)
def test_a_value_of_a_file_is_read_or_refused(name: str, value: object, read: object) -> None:
    row = options.declared(Example)[name]
    if not isinstance(read, str) or ";" not in read:
        assert options.of_file(name, row, value, "x.toml") == read
        return
    wanted, _, form = read.partition("; ")
    with pytest.raises(UsageError) as refusal:
        options.of_file(name, row, value, "x.toml")
    assert refusal.value.reason == f"x.toml: {name} must be {wanted}"
    assert refusal.value.hint == f"{form}, or leave it out"


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    known = ("release", "releases", "target")
    assert options.unknown("relase", known, "x.toml").hint == "release"
    assert options.unknown("z", known, "x.toml").hint == "one of: release, releases, target"
