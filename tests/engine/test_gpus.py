"""Whether containers get a GPU, by what a container that requests them says. No real GPU is used."""

import pytest
from docker.errors import APIError

from tfbuild.engine import ContainerRun, Engine
from tfbuild.engine.faults import translated
from tfbuild.errors import UnknownImage

REFUSED = 'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'


def trial(monkeypatch: pytest.MonkeyPatch, answer: ContainerRun | Exception) -> str:
    def run(self: Engine, ref: str, *_: object, gpus: bool, **__: object) -> ContainerRun:
        assert gpus
        with translated(ref):
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(Engine, "run", run)
    return Engine.__new__(Engine).lacks_gpus("x")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ContainerRun(exit_code=0, stdout="", stderr="a warning", truncated=False), ""),
        (ContainerRun(exit_code=128, stdout="", stderr=f"{REFUSED}\n", truncated=False), REFUSED),
        (ContainerRun(exit_code=1, stdout="", stderr="", truncated=False), "it exited without output"),
        (APIError("x", explanation="cannot set both Count and DeviceIDs"), "cannot set both Count and DeviceIDs"),
        (TimeoutError("x ran longer than 1 s"), "x ran longer than 1 s"),
    ],
)
def test_gpus_are_lacking_where_a_container_with_them_does_not_start(
    answer: ContainerRun | Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = trial(monkeypatch, answer)
    assert said.startswith("no container gets a GPU here: ") if why else said == ""
    assert why in said


def test_a_missing_image_says_nothing_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownImage):
        trial(monkeypatch, UnknownImage("no image"))
