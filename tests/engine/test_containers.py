"""The limits of containers."""

import pytest
from docker.errors import APIError

from tfbuild.engine import ContainerRun, Engine, containers
from tfbuild.engine.containers import Sandbox
from tfbuild.engine.faults import translated
from tfbuild.errors import UnknownImage

BOX = Sandbox(processes=288, volume="v", path="/files")


def test_memory_processes_and_disk_of_a_sandbox_are_limited() -> None:
    options = BOX.options(gpus=False)
    assert options["read_only"] is True
    assert options["mem_limit"] == options["memswap_limit"] == containers.MEMORY
    assert BOX.options(gpus=True)["mem_limit"] == containers.GPU_MEMORY
    assert [(limit["Name"], limit["Hard"]) for limit in options["ulimits"]] == [("core", 0)]
    mounts = {row["Target"]: (row["Type"], row.get("ReadOnly", False), row["Source"]) for row in options["mounts"]}
    assert mounts == {"/files": ("volume", True, "v"), "/tmp": ("tmpfs", False, None)}
    assert options["mounts"][1]["TmpfsOptions"] == {"SizeBytes": containers.SCRATCH}


def test_every_container_is_confined_and_a_sandboxed_one_more() -> None:
    usual, boxed = (containers.confinement(box, [], gpus=False) for box in (None, BOX))
    for options in (usual, boxed):
        assert (options["cap_drop"], options["security_opt"]) == (["ALL"], ["no-new-privileges"])
        assert (options["auto_remove"], options["log_config"]) == (True, {"Type": "none"})
    assert (usual["pids_limit"], usual["mounts"], "read_only" in usual) == (containers.MOST_PROCESSES, [], False)
    assert (boxed["pids_limit"], boxed["read_only"]) == (BOX.processes, True)


# --- GPUs, by what a container that requests them says; no real one is used -------------------------------------------

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
