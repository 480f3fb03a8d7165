"""The limits of containers whose image nobody trusts."""

from types import SimpleNamespace

import pytest

from tfbuild.engine import sandbox
from tfbuild.engine.sandbox import Sandbox

BOX = Sandbox(processes=288, volume="v", path="/files")


def mounts(box: Sandbox, *volumes: str) -> dict[str, tuple[str, bool, str | None]]:
    rows = box.options(volumes, gpus=False)["mounts"]
    return {row["Target"]: (row["Type"], row.get("ReadOnly", False), row["Source"]) for row in rows}


def test_memory_processes_and_disk_are_limited() -> None:
    options = BOX.options((), gpus=False)
    assert options["read_only"] is True
    assert options["mem_limit"] == options["memswap_limit"] == sandbox.MEMORY
    assert options["pids_limit"] == 288
    assert [(limit["Name"], limit["Hard"]) for limit in options["ulimits"]] == [("core", 0)]
    assert BOX.options((), gpus=True)["mem_limit"] == sandbox.GPU_MEMORY
    (scratch,) = (row for row in options["mounts"] if row["Target"] == "/tmp")
    assert scratch["TmpfsOptions"] == {"SizeBytes": sandbox.SCRATCH}


def test_files_are_read_only() -> None:
    assert mounts(BOX) == {"/files": ("volume", True, "v"), "/tmp": ("tmpfs", False, None)}


@pytest.mark.parametrize("volume", ["/data", "/var/lib/x"])
def test_a_volume_of_the_image_is_no_folder_on_the_engine_s_disk(volume: str) -> None:
    assert mounts(BOX, volume)[volume] == ("tmpfs", False, None)


@pytest.mark.parametrize("volume", ["/", "", "relative", "/proc", "/dev/", "/tmp"])
def test_a_volume_that_would_break_any_container_is_left_alone(volume: str) -> None:
    assert mounts(BOX, volume) == mounts(BOX)


def test_more_processors_may_have_more_threads() -> None:
    assert sandbox.processes(2) < sandbox.processes(64) < 2000


@pytest.mark.parametrize("config", [None, {}, {"Volumes": None}, {"Volumes": {"/data": {}}}])
def test_every_container_is_confined_and_a_sandboxed_one_more(config: object) -> None:
    image = SimpleNamespace(attrs={"Config": config})
    usual, boxed = (sandbox.confinement(image, box, [], gpus=False) for box in (None, BOX))
    for options in (usual, boxed):
        assert (options["cap_drop"], options["security_opt"]) == (["ALL"], ["no-new-privileges"])
        assert options["log_config"] == {"Type": "none"}
    assert (usual["pids_limit"], usual["mounts"], "read_only" in usual) == (sandbox.MOST_PROCESSES, [], False)
    assert (boxed["pids_limit"], boxed["read_only"]) == (BOX.processes, True)
    declared = {"/data"} if config == {"Volumes": {"/data": {}}} else set()
    assert {row["Target"] for row in boxed["mounts"]} == {"/files", "/tmp", *declared}
