"""`--command`: a script of the user's own, watched by TensorFlow's profiler: does it wait for its input or compute?

It runs in a container without a network, as the user who asks, in a folder that it can only read: nothing of the
user's can be changed by it, and what it writes below /tmp goes with the container.
"""

import os
import shlex
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from tfbuild.bench import findings
from tfbuild.engine import Engine
from tfbuild.errors import CommandFailed, UsageError
from tfbuild.in_container.bench.records import Profiled
from tfbuild.measure import experiments, probe, records, workers
from tfbuild.measure.records import ExperimentResult, Finding
from tfbuild.util.progress import Progress

FOLDER = "/tfbuild-command"
SITE = "/tfbuild-bench/site/sitecustomize.py"
# As the script's user, who may have no home in the image; the profiler's own messages would hide the script's.
ENV = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
# A large trace takes as long to be read; so much of the budget is left for it.
READING_SECONDS = 20.0
LEAST_SECONDS = 15.0
# TensorFlow's import, twice, and the trace, on a machine that many others use.
MOST_MORE = 900.0
# Of a step's time, where it is neither the input's nor an operation's: as much as makes a pipeline the bottleneck.
MUCH_IDLE = 1 - 1 / findings.INPUT_BOUND


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run, split as a shell would, in a `folder` of the engine's machine."""

    words: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        return shlex.join(self.words)


def parse(text: str, mount: str) -> Command | None:
    """The command of --command and --mount (default: the current folder); None where there is none. UsageError."""
    if not text.strip():
        if mount or text:
            raise UsageError("--mount is for --command, which is empty", hint="--command 'python train.py'")
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text!r}: {error}", hint="quote it as for a shell") from error
    folder = Path(mount or ".").resolve()
    if not folder.is_dir():
        raise UsageError(f"--mount {mount}: no such folder", hint="name the folder that the command is to run in")
    return Command(words=tuple(words), folder=folder)


def experiment(
    engine: Engine, image: str, command: Command, budget: float, progress: Progress, *, gpus: bool = False
) -> ExperimentResult:
    """Runs the command, for `budget` seconds at most, with the engine's `gpus`, and says what limits it.

    Raises UsageError where the engine cannot see the folder, and CommandFailed where the command fails or TensorFlow's
    profiler saw nothing of it.
    """
    if not engine.local:
        raise UsageError(
            "the engine is on another machine, which has no such folder", hint="run this on the engine's machine"
        )
    seconds = max(LEAST_SECONDS, budget - READING_SECONDS)
    with progress.step(f"bench: {command}") as step:
        found = _watch(engine, image, command, seconds, gpus=gpus)
        _refuse(command, found)
        finding = judge(command, found)
        step.outcome = finding.text.removeprefix(f"{command}: ")
    row = experiments.in_role("command")
    return ExperimentResult(
        name=row.name,
        question=row.question,
        compares=f"{command}, watched by TensorFlow's profiler, which costs some of its speed",
        changes=row.changes,
        source="https://www.tensorflow.org/guide/data_performance_analysis",
        status=records.MEASURED,
        reason="watched, not timed in rounds",
        seconds=round(found.seconds, 1),
        cases=(),
        findings=(finding,),
    )


@cache
def files() -> dict[str, bytes]:
    """The benchmark's inner part, and the recorder where Python looks for it."""
    recorder = resources.files("tfbuild.in_container.bench").joinpath("recorder.py").read_bytes()
    return {**workers.files(), SITE: recorder}


def _watch(engine: Engine, image: str, command: Command, seconds: float, *, gpus: bool) -> Profiled:
    try:
        run = engine.run(
            image,
            ["python", f"{workers.FOLDER}/bench", "--profile", f"{seconds:.0f}", FOLDER, *command.words],
            env=ENV,
            files=files(),
            mounts={FOLDER: str(command.folder)},
            user=f"{os.getuid()}:{os.getgid()}",
            timeout=seconds + MOST_MORE,
            gpus=gpus,
        )
        found = probe.records(run.stdout, (Profiled,))
    except (TimeoutError, probe.UntrustedError) as error:
        raise CommandFailed(f"{command} could not be watched: {error}", hint="a shorter --budget") from error
    if not found:
        told = "\n".join(run.stderr.splitlines()[-6:])
        raise CommandFailed(
            f"{command} could not be watched: {told}", hint="invoke verify IMAGE says more of the image"
        )
    first: Profiled = found[0]
    return first


def _refuse(command: Command, found: Profiled) -> None:
    told = "\n".join(found.tail)
    if found.exit_code:
        how = f"ended with exit code {found.exit_code}" if found.exit_code > 0 else f"died of signal {-found.exit_code}"
        raise CommandFailed(
            f"{command} {how}{f':{chr(10)}{told}' if told else ''}",
            hint="it runs without a network, in a folder that it can only read (--mount); /tmp is writable",
        )
    if not found.span or not found.compute + found.waiting:
        raise CommandFailed(
            f"TensorFlow's profiler saw no step of {command} in {found.seconds:.0f} s"
            + (f"; it printed:\n{told}" if told else ""),
            hint="it must run TensorFlow, in a Python that reads PYTHONPATH, for more than a second or two",
        )


def _limit(found: Profiled, slower: float, idle: float) -> str:
    """What all windows agree on; who neither waits nor computes for long is not bound by computing."""
    each = [1 / max(1 - share, 1e-3) for share in found.waits] or [slower]
    word = findings.bound(slower, min(*each, slower), max(*each, slower))
    if word == findings.BOUNDS[0] and idle > MUCH_IDLE:
        word = "not input-bound"
    ends = f" [{min(each):.2f} to {max(each):.2f} by window]" if len(each) > 1 else ""
    return f"{word}, {slower:.2f}{ends} times the step without its input"


def judge(command: object, found: Profiled) -> Finding:
    """The verdict, by the limits of the built-in one: a step's time over what it would be without the input."""
    waiting, compute = found.waiting / found.span, found.compute / found.span
    idle = max(0.0, 1 - waiting - compute)
    slower = 1 / max(1 - waiting, 1e-3)
    values = {"waiting": waiting, "compute": compute, "neither": idle, "seconds": found.span}
    values |= {"real_over_synthetic": slower, "batches": float(found.asked)}
    told = f"of {found.span:.1f} s it waited {waiting:.0%} for input, computed {compute:.0%}, did neither {idle:.0%}"
    if found.asked:
        word = _limit(found, slower, idle)
        told += f" ({found.asked} batches)"
    else:
        word = "no tf.data iterator was read"
    if idle > MUCH_IDLE:
        word += "; held up between the steps, by Python or what else the profiler does not see"
    if found.windows == 1:
        told += "; seen in one window of the trace alone"
    ended = "" if found.exit_code is not None else "; stopped when its time was over"
    return Finding(text=f"{command}: {word}: {told}{ended}", values=values)
