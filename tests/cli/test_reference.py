"""The generated reference: every verb, option, label and field of the real output is in it, and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commandline import invoke
from tests.cpu.machines import machine
from tfbuild.cli import output
from tfbuild.cli.verbs import VERBS
from tfbuild.context.labels import labels_of
from tfbuild.plan import Request, select
from tfbuild.publish.choose import Choice, PassedOver, Published
from tfbuild.publish.pushing import Pushed
from tools import reference

# Commands whose output, together, has every field of their verb. {folder}: recorded machines.
COMMANDS = {
    "detect": [
        "detect --cpuinfo {folder}/machines/fedora29-zen-guest",
        "detect --cpuinfo {folder}/machines/hides-avx512",
    ],
    "copts": ["copts --cpuinfo {folder}/machines/unknown-sapphirerapids --compiler gcc-9 --explain"],
    "cpus": ["cpus zen"],
    "gain": ["gain --cpuinfo {folder}/machines/unknown-sapphirerapids"],
    "fleet": ["fleet {folder}/machines"],
    "plan": [
        "plan --target cuda --cpu x86-64-v3 --platform linux/amd64",
        "build --dry-run --target mkl --wheel official",
    ],
    "dockerfile": ["dockerfile --target mkl --wheel official --output {folder}/context"],
    "matrix": ["matrix --release 2.14.1 --release 2.16.2 --python 3.12 --format json"],
}


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "mkl", "cuda"])
@pytest.mark.parametrize("wheel", ["official", ""])
def test_the_page_has_every_label_of_a_plan(target: str, wheel: str) -> None:
    request = Request(target=target, wheel=wheel, cpu="" if wheel else "x86-64-v3", platform="linux/amd64")
    text = reference.labels_page()
    for name in labels_of(select(request, None)):
        assert f"| `{name}` |" in text


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded machines, one whose cores differ and one that hides features among them."""
    folder = tmp_path_factory.mktemp("recorded")
    machines = folder / "machines"
    machines.mkdir()
    for name in ("unknown-sapphirerapids", "rhel7-haswell", "fedora29-zen-guest"):
        (machines / name).write_text(machine(name).cpuinfo())
    newest = machine("unknown-sapphirerapids")
    cores = (newest.core(number, without=("avx512f",) if number else ()) for number in (0, 1))
    (machines / "hides-avx512").write_text("\n".join(cores))
    return folder


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, set[str]]:
    return {
        verb: {field for command in commands for field in fields(output_of(command, folder))}
        for verb, commands in COMMANDS.items()
    }


def output_of(command: str, folder: Path) -> object:
    words = command.format(folder=folder).split()
    return json.loads(invoke(*words, *([] if words[0] == "matrix" else ["--json"])).stdout)


def fields(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all values, as the page writes them; an empty list or object is its own path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from fields(inner, f"{path}.{name}" if path else name)
        if not value:
            yield f"{path}{{}}"
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, f"{path}[]" if path else "")
        if not value:
            yield f"{path}[]"
    else:
        yield f"{path}?" if value is None else path


def covers(documented: str, field: str) -> bool:
    """Whether the page has this field, or an object that contains it; an empty list or null (?) shows no fields."""
    name, bare = documented.removesuffix("{}"), field.removesuffix("?")
    if field.endswith(("[]", "?")) and name.startswith((f"{bare}.", f"{bare}[")):
        return True
    return bare in (documented, name) or bare.startswith(f"{name}.")


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_fields_that_a_verb_prints_are_those_that_are_documented(verb: str, printed: dict[str, set[str]]) -> None:
    told = reference.json_fields()[verb].fields
    assert not {field for field in printed[verb] if not any(covers(name, field) for name in told)}
    assert not {name for name in told if not any(covers(name, field) for field in printed[verb])}


def test_the_fields_of_published_images_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """What these verbs print needs a registry or an engine: here they print values made by hand."""
    image = Published(
        id="id", digest="sha256:1", release="2.21.0", target="mkl", python="3.11", platform="linux/amd64",
        instruction_set="avx", features=frozenset(), created="",
    )  # fmt: skip
    passed_over = (PassedOver(id="other", reason="older"),)
    choice = Choice(passed_over=passed_over, fitting=(image,))
    output.show_pulled(choice, reference="r", image="i", signed=True)
    pushed = Pushed(ref="r", digest="d", moved=("latest-mkl",), uploaded=True, signed=True)
    shown = {"pull": json.loads(capsys.readouterr().out), "push": pushed.to_json()}
    for verb, value in shown.items():
        told, printed = set(reference.json_fields()[verb].fields), {field.removesuffix("?") for field in fields(value)}
        assert printed == told - {"there", "reason"}, verb


def test_every_verb_that_prints_json_has_its_fields() -> None:
    printing = {name for name, verb in VERBS.items() if "json" in verb.options} | {"matrix"}
    assert set(reference.json_fields()) == printing
