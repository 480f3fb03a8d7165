"""Declare options as fields of frozen dataclasses: each once, beside its field; everything else is derived.

A command line, a file of options, help pages, generated pages and the commands that tfbuild writes all read `Option`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tfbuild.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")
# The group of options that has no title of its own: the first ones in a help.
COMMON = ""
# Text that needs no quotes in a shell, a Dockerfile, a bazelrc or a URL, and that is not an option itself.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,:+/@-]*")
# In place of a pattern: any text that can be printed. Whatever renders it quotes it.
TEXT = None
# In place of a pattern: a plan or a run looks the value up, or reads it, and refuses what it does not know.
LOOKED_UP = None


@dataclass(frozen=True)
class Option:
    """What an option is besides its name.

    `default`: False for a switch, () for an option that may be repeated, else text. `value`: what stands for its value
    in a help. `pattern`: what a value must match, WORD unless something else is declared; `what` and `form` say in a
    refusal what it must be. `compiles`: it only matters to a compile. `written`: gives its value in the command that
    makes a build again; by default that is what was requested. `always`: that command has it even where it has the
    default value. `rare`: few builds need it, so a help lists it last.
    """

    default: Any
    help: str
    value: str = ""
    group: str = COMMON
    pattern: re.Pattern[str] | None = WORD
    what: str = "a plain word"
    form: str = "VALUE, of letters, digits and . _ , : + / @ -"
    compiles: bool = False
    # In a build's identifier: part of the fingerprint; a word, or what one is chosen by; nothing, for the same image.
    identifier: Literal["fingerprint", "word", "neutral"] = "fingerprint"
    written: Callable[[Any], Any] | None = None
    always: bool = False
    rare: bool = False

    @property
    def switch(self) -> bool:
        return isinstance(self.default, bool)

    def stands_for(self, name: str) -> str:
        """Return what stands for the value of the option of that name: VERSION."""
        return self.value or name.rpartition("-")[2].upper()

    @property
    def repeatable(self) -> bool:
        return isinstance(self.default, tuple | list)


Options = Mapping[str, Option]


def option(default: T, *declared: Any, **more: Any) -> T:
    """Declare a field of a dataclass as an option, with the fields of `Option`."""
    return field(default=default, metadata={"option": Option(default, *declared, **more)})


@cache
def declared(kind: "type[DataclassInstance]") -> Options:
    """Return the options that are the fields of a dataclass, by their names on a command line."""
    return {row.name.replace("_", "-"): row.metadata["option"] for row in fields(kind)}


def of_groups(kind: "type[DataclassInstance]", *groups: str) -> Options:
    """Return the options of a dataclass that are in one of these groups."""
    return {name: row for name, row in declared(kind).items() if row.group in groups}


def make(kind: type[D], values: Mapping[str, Any]) -> D:
    """Make a dataclass of those values that are its fields, with tuples in place of lists."""
    own = {row.name: values[row.name] for row in fields(kind) if row.name in values}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in own.items()})


def given(request: "DataclassInstance") -> Iterator[tuple[str, Option, Any]]:
    """Yield name, option and value of each option that does not have its default value."""
    for name, row in declared(type(request)).items():
        value = getattr(request, name.replace("-", "_"))
        if value != row.default:
            yield name, row, value


def given_to_compile(request: "DataclassInstance") -> list[str]:
    """Return the given options that only matter to a compile: ["--jobs"]."""
    return [f"--{name}" for name, row, _ in given(request) if row.compiles]


def texts(value: Any) -> Sequence[str]:
    """Return the texts in an option's value; none for a switch."""
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def refuse_invalid(request: "DataclassInstance") -> None:
    """Raise UsageError for values that have control characters, or do not match their pattern."""
    for name, row, value in given(request):
        for text in texts(value):
            if not text.isprintable():
                raise UsageError(f"--{name} has control characters in it: {text!r}", hint="one line of plain text")
            if row.pattern and not row.pattern.fullmatch(text):
                shown = repr(text) if text.isascii() else f"{text!r}, which is {text!a},"
                raise UsageError(f"{shown} is not {row.what}", hint=f"--{name} {row.form}")


def words(request: "DataclassInstance") -> list[str]:
    """Return the words of a command line for this request, without those for default values."""
    line: list[str] = []
    for name, row in declared(type(request)).items():
        value = getattr(request, name.replace("-", "_"))
        if value == row.default and not row.always:
            continue
        if row.switch:
            line.append(f"--{name}")
        else:
            # A value that looks like an option must be attached to its own option.
            pairs = ([f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text] for text in texts(value))
            line += [word for pair in pairs for word in pair]
    return line


# --- values in files -------------------------------------------------------------------------------------------------


def unknown(name: str, known: Collection[str], where: str) -> UsageError:
    """Return the error for an option that does not exist; `where`: what has it, for the message."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), known)
    return UsageError(f"{where}: there is no option {name!r}", hint=near[0] if near else f"one of: {', '.join(known)}")


def of_file(name: str, row: Option, value: object, where: str) -> Any:
    """Return the value of an option from that of a TOML file. Raises UsageError for one of another type."""
    if isinstance(value, int) and not isinstance(value, bool) and not row.switch:
        value = str(value)
    word = row.stands_for(name)
    if row.switch:
        good, wanted, form = isinstance(value, bool), "true or false", "true"
    elif row.repeatable:
        good = isinstance(value, list) and bool(value) and all(isinstance(text, str) and text.strip() for text in value)
        wanted, form = "a list of texts", f'["{word}"]'
    else:
        # Fractions are not taken: 3.10 would be 3.1.
        good, wanted, form = isinstance(value, str) and bool(value.strip()), "text in quotes", f'"{word}"'
    if not good:
        raise UsageError(f"{where}: {name} must be {wanted}", hint=f"{name} = {form}, or leave it out")
    return tuple(value) if isinstance(value, list) else value
