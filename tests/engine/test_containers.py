"""The limits of containers, and what workers say and do not."""

import os
from contextlib import ExitStack, closing, nullcontext

import pytest
from docker.errors import APIError

from tests.rows import each
from tfbuild.engine import ContainerRun, Engine, Sandbox, Worker, WorkerDied, containers
from tfbuild.engine.faults import translated
from tfbuild.errors import UnknownImage
from tfbuild.util.process import Attached

BOX = Sandbox(processes=288, volume="v", path="/files")


def test_memory_processes_and_disk_of_a_sandbox_are_limited() -> None:
    options = BOX.options(gpus=False)
    assert options["read_only"] is True
    assert options["mem_limit"] == options["memswap_limit"] == 4 << 30
    assert BOX.options(gpus=True)["mem_limit"] == 16 << 30
    assert [(limit["Name"], limit["Hard"]) for limit in options["ulimits"]] == [("core", 0)]
    mounts = {row["Target"]: (row["Type"], row.get("ReadOnly", False), row["Source"]) for row in options["mounts"]}
    assert mounts == {"/files": ("volume", True, "v"), "/tmp": ("tmpfs", False, None)}
    assert options["mounts"][1]["TmpfsOptions"] == {"SizeBytes": containers.SCRATCH}


def test_every_container_is_confined_and_a_sandboxed_one_more() -> None:
    usual, boxed = (containers.confinement(box, [], gpus=False) for box in (None, BOX))
    for options in (usual, boxed):
        assert (options["cap_drop"], options["security_opt"]) == (["ALL"], ["no-new-privileges"])
        assert (options["auto_remove"], options["log_config"]) == (True, {"Type": "none"})
        assert options["init"] is False, "a worker is paused by signals to the container's first process"
    assert (usual["pids_limit"], usual["mounts"], "read_only" in usual) == (containers.MOST_PROCESSES, [], False)
    assert (boxed["pids_limit"], boxed["read_only"]) == (BOX.processes, True)


# --- workers, as processes of this machine in place of attached containers --------------------------------------------


def worker(script: str, ended: list[str]) -> Worker:
    cleanup = ExitStack()
    cleanup.callback(ended.append, "removed")
    attached = cleanup.enter_context(closing(Attached(["sh", "-c", script], os.environ)))
    return Worker("w", ended.append, attached, cleanup)


def test_a_worker_answers_line_by_line_until_its_block_ends() -> None:
    ended = list[str]()
    with worker('while read -r line; do echo "got $line"; echo and >&2; done', ended) as running:
        assert [running.ask(line, 60) for line in ("a", "b")] == ["got a", "got b"]
        running.pause()
        running.resume()
        assert ended == ["SIGSTOP", "SIGCONT"]
    running.close()
    assert ended[2:] == ["removed"]
    with pytest.raises(WorkerDied, match="the worker was closed"):
        running.ask("c", 60)


@each(
    "script, error, why",
    [
        ("read x; echo last words >&2; exit 4", WorkerDied, "ended with exit code 4 before it answered:\nlast words"),
        ("cat /dev/zero", WorkerDied, "answer is longer than 1048576 bytes"),
        ("read x; exec sleep 600", TimeoutError, "the worker did not answer within 0.5 s"),
    ],
)
def test_a_worker_that_does_not_answer_is_lost(script: str, error: type[Exception], why: str) -> None:
    with worker(script, []) as lost:
        with pytest.raises(error, match=why) as raised:
            lost.ask("a", 0.5 if error is TimeoutError else 60)
        assert getattr(raised.value, "code", None) == (4 if "exit code" in why else None)
        with pytest.raises(WorkerDied, match=why.partition(":")[0]):
            lost.ask("b", 60)


# --- GPUs, by what a container that requests them says; no real one is used -------------------------------------------

REFUSED = 'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'


@each(
    "answer, why",
    [
        (ContainerRun(exit_code=0, stdout="", stderr="a warning", truncated=False), ""),
        (ContainerRun(exit_code=128, stdout="", stderr=f"{REFUSED}\n", truncated=False), REFUSED),
        (ContainerRun(exit_code=1, stdout="", stderr="", truncated=False), "it exited without output"),
        (APIError("x", explanation="cannot set both Count and DeviceIDs"), "cannot set both Count and DeviceIDs"),
        (TimeoutError("x ran longer than 1 s"), "x ran longer than 1 s"),
        (UnknownImage("no image x"), None),
    ],
)
def test_gpus_are_lacking_where_a_container_with_them_does_not_start(
    answer: ContainerRun | Exception, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Engine, ref: str, *_: object, gpus: bool, **__: object) -> ContainerRun:
        assert gpus
        with translated(ref):
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(Engine, "run", run)
    with pytest.raises(UnknownImage) if why is None else nullcontext():
        said = Engine.__new__(Engine).lacks_gpus("x")
        assert why is not None
        assert said.startswith("no container gets a GPU here: ") if why else said == ""
        assert why in said
