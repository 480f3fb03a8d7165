"""`--command`: profile a user's script, to find out whether it waits for its input or computes.

It runs in a container without a network, as the calling user, in a read-only folder, so it cannot change any of the
user's files; what it writes to /tmp is deleted with the container.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tfbuild.bench import findings
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError, UsageError, without_secrets
from tfbuild.in_container.bench.records import Profiled
from tfbuild.measure import experiments, probe, records
from tfbuild.measure.records import ExperimentResult, Finding
from tfbuild.util.progress import Progress

FOLDER = "/tfbuild-command"
# The user may have no home in the image; TensorFlow's info messages would hide the script's output.
ENV = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
# The first release with tf.profiler.experimental.
FIRST_RELEASE = "2.2"
# Importing TensorFlow twice and reading the traces takes at most this long, on a machine with many other users.
MOST_MORE_SECONDS = 900.0
# The share of time spent neither waiting nor computing that is worth a remark: as much as makes input a bottleneck.
MUCH_IDLE = 1 - 1 / findings.INPUT_BOUND
UNREAD = "no tf.data iterator was read"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, split into words as a shell would, and the `folder` on the engine's machine in which it runs."""

    words: tuple[str, ...]
    folder: Path

    def __str__(self) -> str:
        """Return it as text to show, without secrets."""
        return without_secrets(shlex.join(self.words))


def parse(text: str, mount: str) -> Command | None:
    """Parse --command and --mount (default: the current folder); None if neither is given.

    Raises UsageError if they are invalid.
    """
    if not text.strip():
        if mount or text:
            problem = "--mount needs --command" if mount else "--command is empty"
            raise UsageError(problem, hint="--command 'python train.py'")
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
    engine: Engine,
    image: str,
    command: Command,
    seconds: float,
    progress: Progress,
    *,
    release: str,
    gpus: bool = False,
) -> ExperimentResult:
    """Run the command for at most so many seconds, with the engine's `gpus`, and say what limits it.

    `release`: the image's TensorFlow. Raises UsageError if the engine cannot see the folder, and TfbuildError if the
    release has no profiler, if the command fails, or if the profiler recorded no step.
    """
    if not engine.local:
        raise UsageError(
            "the engine is on another machine, which does not have the folder", hint="run this on the engine's machine"
        )
    if _is_too_old(release):
        raise TfbuildError(f"TensorFlow {release} has no tf.profiler", hint=f"use {FIRST_RELEASE} or a newer release")
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


def _is_too_old(release: str) -> bool:
    try:
        return Version(release) < Version(FIRST_RELEASE)
    except InvalidVersion:
        return False


def _profile(engine: Engine, image: str, command: Command, seconds: float, *, gpus: bool) -> Profiled:
    try:
        run = engine.run(
            image,
            ["python", f"{probe.FOLDER}/bench", "--profile", f"{seconds:.0f}", FOLDER, *command.words],
            env=ENV,
            files=probe.files(),
            mounts={FOLDER: str(command.folder)},
            user=f"{os.getuid()}:{os.getgid()}",
            timeout=seconds + MOST_MORE_SECONDS,
            gpus=gpus,
        )
        profiles = probe.records(run.stdout, (Profiled,))
    except (TimeoutError, probe.UntrustedError) as error:
        raise TfbuildError(f"{command} could not be profiled: {error}", hint="give a shorter --budget") from error
    if not profiles:
        output = "\n".join(run.stderr.splitlines()[-6:])
        raise TfbuildError(
            f"{command} could not be profiled: {output}", hint="invoke verify IMAGE may show what is wrong"
        )
    profile: Profiled = profiles[0]
    return profile


def _refuse(command: Command, profile: Profiled) -> None:
    output, code = "\n".join(profile.tail), profile.exit_code
    if code:
        end = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
        raise TfbuildError(
            f"{command} {end}{f':{chr(10)}{output}' if output else ''}",
            hint="it runs without a network, in a read-only folder (--mount); /tmp is writable",
        )
    if not profile.windows:
        raise TfbuildError(
            f"TensorFlow's profiler saw no step of {command} in {profile.seconds:.0f} s"
            + (f"; it printed:\n{output}" if output else ""),
            hint="it must run TensorFlow for more than a second or two, in a Python that reads PYTHONPATH",
        )


def judge(command: object, profile: Profiled) -> Finding:
    """Say what limits the command, with the limits of the experiment on input: a step's time with and without input."""
    windows = profile.windows
    span, asked = sum(one.span for one in windows), sum(one.asked for one in windows)
    waiting, compute, gpu = (
        sum(getattr(one, part) for one in windows) / span for part in ("waiting", "compute", "gpu")
    )
    idle, slower = max(0.0, 1 - waiting - compute), _slower(waiting)
    limit = _limit(profile, slower, gpu=gpu > compute / 2, idle=idle > MUCH_IDLE) if asked else UNREAD
    remark = "; idle between the steps, in Python or other code that the profiler does not see"
    shares = f"of {span:.1f} s it waited {waiting:.0%} for input, computed {compute:.0%}, neither {idle:.0%}"
    shares += f" ({asked} batches)" if asked else ""
    shares += "; from only one window of the trace" if len(windows) == 1 else ""
    shares += "" if profile.exit_code is not None else "; stopped by the time budget"
    values = {"waiting": waiting, "compute": compute, "gpu": gpu, "neither": idle, "seconds": span}
    values |= {"real_over_synthetic": slower, "batches": float(asked)}
    return Finding(text=f"{command}: {limit}{remark if idle > MUCH_IDLE else ''}: {shares}", values=values)


def _slower(waiting: float) -> float:
    """Return how many times as long a step takes as without its input, from the share of time that it waits."""
    return 1 / max(1 - waiting, 1e-3)


def _limit(profile: Profiled, slower: float, *, gpu: bool, idle: bool) -> str:
    """Say what all windows agree on; a script that is mostly idle is not bound by computing."""
    by_window = [_slower(one.waiting / one.span) for one in profile.windows]
    limit = findings.bottleneck(min(by_window), max(by_window))
    if limit == findings.BOUNDS[0]:
        limit = "not input-bound" if idle else f"{limit} (GPU)" if gpu else limit
    ends = f" [{min(by_window):.2f} to {max(by_window):.2f} by window]" if len(by_window) > 1 else ""
    return f"{limit}, {slower:.2f}{ends} times the step without its input"
