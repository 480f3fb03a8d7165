"""`--command`: run a user's script under TensorFlow's profiler, to see whether it waits for its input or computes.

It runs in a container without a network, as the calling user, in a read-only folder, so it cannot change any of the
user's files; what it writes to /tmp is deleted with the container.
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
# The user may have no home in the image; TensorFlow's info messages would hide the script's output.
ENV = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
# This much of the budget is reserved for reading a large trace.
READING_SECONDS = 20.0
LEAST_SECONDS = 15.0
# Importing TensorFlow twice and reading the trace takes at most this long, on a machine with many other users.
MOST_MORE = 900.0
# The share of time spent neither waiting nor computing that is worth a remark: as much as makes input a bottleneck.
MUCH_IDLE = 1 - 1 / findings.INPUT_BOUND


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, split into words as a shell would, and the `folder` on the engine's machine in which it runs."""

    words: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        return shlex.join(self.words)


def parse(text: str, mount: str) -> Command | None:
    """Parse --command and --mount (default: the current folder); None if neither is given.

    Raises UsageError if they are invalid.
    """
    if not text.strip():
        if mount:
            raise UsageError("--mount needs --command", hint="--command 'python train.py'")
        if text:
            raise UsageError("--command is empty", hint="--command 'python train.py'")
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text!r}: {error}", hint="quote it as for a shell") from error
    folder = Path(mount or ".").resolve()
    if not folder.is_dir():
        raise UsageError(f"--mount {mount}: no such folder", hint="give the folder in which to run the command")
    return Command(words=tuple(words), folder=folder)


def experiment(
    engine: Engine, image: str, command: Command, budget: float, progress: Progress, *, gpus: bool = False
) -> ExperimentResult:
    """Run the command for at most `budget` seconds, with the engine's `gpus`, and say what limits it.

    Raises UsageError if the engine cannot see the folder, and CommandFailed if the command fails or TensorFlow's
    profiler recorded nothing.
    """
    if not engine.local:
        raise UsageError(
            "the engine is on another machine, which does not have the folder", hint="run this on the engine's machine"
        )
    seconds = max(LEAST_SECONDS, budget - READING_SECONDS)
    with progress.step(f"bench: {command}") as step:
        profile = _profile(engine, image, command, seconds, gpus=gpus)
        _refuse(command, profile)
        finding = judge(command, profile)
        step.outcome = finding.text.removeprefix(f"{command}: ")
    row = experiments.in_role("command")
    return ExperimentResult(
        name=row.name,
        question=row.question,
        compares=f"{command} under TensorFlow's profiler, which slows it down a little",
        changes=row.changes,
        source="https://www.tensorflow.org/guide/data_performance_analysis",
        status=records.MEASURED,
        reason="profiled, not timed in rounds",
        seconds=round(profile.seconds, 1),
        cases=(),
        findings=(finding,),
    )


@cache
def files() -> dict[str, bytes]:
    """Return the files of the benchmark's inner part, and the recorder where Python imports it."""
    recorder = resources.files("tfbuild.in_container.bench").joinpath("recorder.py").read_bytes()
    return {**workers.files(), SITE: recorder}


def _profile(engine: Engine, image: str, command: Command, seconds: float, *, gpus: bool) -> Profiled:
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
        profiles = probe.records(run.stdout, (Profiled,))
    except (TimeoutError, probe.UntrustedError) as error:
        raise CommandFailed(f"{command} could not be profiled: {error}", hint="give a shorter --budget") from error
    if not profiles:
        output = "\n".join(run.stderr.splitlines()[-6:])
        raise CommandFailed(
            f"{command} could not be profiled: {output}", hint="invoke verify IMAGE may show what is wrong"
        )
    profile: Profiled = profiles[0]
    return profile


def _refuse(command: Command, profile: Profiled) -> None:
    output, code = "\n".join(profile.tail), profile.exit_code
    if code:
        end = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
        raise CommandFailed(
            f"{command} {end}{f':{chr(10)}{output}' if output else ''}",
            hint="it runs without a network, in a read-only folder (--mount); /tmp is writable",
        )
    if not profile.span or not profile.compute + profile.waiting:
        raise CommandFailed(
            f"TensorFlow's profiler saw no step of {command} in {profile.seconds:.0f} s"
            + (f"; it printed:\n{output}" if output else ""),
            hint="it must run TensorFlow for more than a second or two, in a Python that reads PYTHONPATH",
        )


def _limit(profile: Profiled, slower: float, idle: float) -> str:
    """Say what all windows agree on; a script that is mostly idle is not bound by computing."""
    by_window = [1 / max(1 - share, 1e-3) for share in profile.waits] or [slower]
    limit = findings.bound(slower, min(*by_window, slower), max(*by_window, slower))
    if limit == findings.BOUNDS[0] and idle > MUCH_IDLE:
        limit = "not input-bound"
    ends = f" [{min(by_window):.2f} to {max(by_window):.2f} by window]" if len(by_window) > 1 else ""
    return f"{limit}, {slower:.2f}{ends} times the step without its input"


def judge(command: object, profile: Profiled) -> Finding:
    """Say what limits the command, with the limits of the experiment on input: a step's time with and without input."""
    waiting, compute = profile.waiting / profile.span, profile.compute / profile.span
    idle = max(0.0, 1 - waiting - compute)
    slower = 1 / max(1 - waiting, 1e-3)
    values = {"waiting": waiting, "compute": compute, "neither": idle, "seconds": profile.span}
    values |= {"real_over_synthetic": slower, "batches": float(profile.asked)}
    shares = f"of {profile.span:.1f} s it waited {waiting:.0%} for input, computed {compute:.0%}, neither {idle:.0%}"
    if profile.asked:
        limit = _limit(profile, slower, idle)
        shares += f" ({profile.asked} batches)"
    else:
        limit = "no tf.data iterator was read"
    if idle > MUCH_IDLE:
        limit += "; idle between the steps, in Python or other code that the profiler does not see"
    if profile.windows == 1:
        shares += "; from only one window of the trace"
    stopped = "" if profile.exit_code is not None else "; stopped by the time budget"
    return Finding(text=f"{command}: {limit}: {shares}{stopped}", values=values)
