"""Options that are fields of a dataclass: what --set refuses, and a field that was not declared."""

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


def test_settings_become_the_values_of_their_options() -> None:
    known = options.declared(Example)
    values = options.of_settings(["user-id=1=2", "fast=true", "my-patch=a", "my-patch=b"], known)
    assert values == {"user-id": "1=2", "fast": True, "my-patch": ("a", "b")}
    assert options.of_settings(["fast=false"], known) == {"fast": False}


@each(
    "settings, reason, hint",
    [
        (["user-id"], "--set user-id: user-id has no value", "--set user-id=NUMBER"),
        (["user-id= "], "--set user-id= : user-id has no value", "--set user-id=NUMBER"),
        (["fast"], "--set fast: fast has no value", "--set fast=true"),
        (["fast=yes"], "--set fast=yes: fast is a switch", "--set fast=true"),
        (["my-patch="], "--set my-patch=: my-patch has no value", "--set my-patch=PATCH"),
        (["user-id=1", "user-id=2"], "--set user-id is given more than once", "give it once"),
        (["User_ID=1"], "--set User_ID=1: there is no option 'User_ID'", "user-id"),
        (["x=1"], "--set x=1: there is no option 'x'", "one of: user-id, fast, my-patch"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_with_what_to_type(
    settings: list[str], reason: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        options.of_settings(settings, options.declared(Example))
    assert (refusal.value.reason, refusal.value.hint) == (reason, hint)


def test_a_field_without_a_declaration_is_a_programming_error() -> None:
    @dataclass(frozen=True)
    class Careless:
        new: str = ""

    with pytest.raises(TypeError, match=r"Careless\.new is not declared"):
        options.declared(Careless)
