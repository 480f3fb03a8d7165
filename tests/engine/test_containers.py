"""Whose containers a later run removes: those of processes of this boot, namespace and user that have ended."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tfbuild.engine import containers
from tfbuild.engine.containers import LABEL, has_ended


def fields() -> list[str]:
    return containers.this_process().split() or pytest.skip("this system does not say")


def ended() -> str:
    own = fields()
    with subprocess.Popen(["true"]) as process:
        return " ".join([*own[:3], str(process.pid), "1"])


def test_a_process_has_ended_once_its_id_is_gone_or_taken_by_another() -> None:
    own = fields()
    assert not has_ended(" ".join(own))
    assert has_ended(ended())
    assert has_ended(" ".join([*own[:4], "1"])), "another process has its id"


@pytest.mark.parametrize("place", range(3))
def test_nothing_is_known_of_another_machine_namespace_or_user(place: int) -> None:
    foreign = ended().split()
    foreign[place] = "0" if foreign[place] != "0" else "1"
    assert not has_ended(" ".join(foreign))


@pytest.mark.parametrize("text", ["", "x", "1 2 3 4 5", "{own} ../1 1", "{own} 1", "{own} -1 1 1"])
def test_a_label_of_any_other_text_is_left_alone(text: str) -> None:
    assert not has_ended(text.format(own=" ".join(fields()[:3])))


def test_only_named_containers_of_ended_processes_are_removed() -> None:
    rows = [
        {"Id": "dead", "Names": ["/tfbuild-1"], "Labels": {LABEL: ended()}},
        {"Id": "living", "Names": ["/tfbuild-2"], "Labels": {LABEL: containers.this_process()}},
        # Made of an image that was committed from a container of ours.
        {"Id": "child", "Names": ["/mine"], "Labels": {LABEL: ended()}},
        {"Id": "nameless", "Names": None, "Labels": {LABEL: ended()}},
    ]
    removed: list[tuple[str, bool]] = []
    api = SimpleNamespace(
        containers=lambda **_: rows, remove_container=lambda name, **options: removed.append((name, options["v"]))
    )
    client: Any = SimpleNamespace(api=api)
    containers.sweep(client)
    assert removed == [("dead", True)]
