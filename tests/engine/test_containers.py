"""The limits of containers."""

from tfbuild.engine import containers
from tfbuild.engine.containers import Sandbox

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
    assert containers.processes(2) < containers.processes(64) < 2000


def test_every_container_is_confined_and_a_sandboxed_one_more() -> None:
    usual, boxed = (containers.confinement(box, [], gpus=False) for box in (None, BOX))
    for options in (usual, boxed):
        assert (options["cap_drop"], options["security_opt"]) == (["ALL"], ["no-new-privileges"])
        assert (options["auto_remove"], options["log_config"]) == (True, {"Type": "none"})
    assert (usual["pids_limit"], usual["mounts"], "read_only" in usual) == (containers.MOST_PROCESSES, [], False)
    assert (boxed["pids_limit"], boxed["read_only"]) == (BOX.processes, True)
