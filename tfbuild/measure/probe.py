"""Run a probe in a container and read its output as untrusted: bounded in size, checked against types, printable.

The container gets this tfbuild's own copy of in_container/; the image's copy is never used. `Installation` runs the
same on a TensorFlow that is installed on this machine.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

import msgspec

from tfbuild.engine import MOST_OUTPUT, ContainerRun, Engine, Image, Sandbox, Worker
from tfbuild.errors import UsageError
from tfbuild.in_container.smoke.judge import SECONDS, TOO_LONG, Ended, Results
from tfbuild.in_container.smoke.probes import Environment, TensorFlow
from tfbuild.in_container.smoke.references import MOST_VALUE
from tfbuild.measure.records import Host, Software
from tfbuild.util.files import decode, temporary_folder
from tfbuild.util.process import Attached

T = TypeVar("T")

ROOT = "/tfbuild-bench"
FOLDER = f"{ROOT}/in_container"
MOST_LINE = 256 * 1024
FLOOD_REASON = f"it printed more than {MOST_OUTPUT // 2**20} MiB"
# Log everything, because TensorFlow's message about instructions is read from the log.
PROBE_ENV = {"TF_CPP_MIN_LOG_LEVEL": "0"}


class Installation:
    """Python environments in place of images, with the methods of Engine that measuring uses: a container is a process.

    An environment's name is the folder of a virtual environment, or a Python.
    """

    version = ""
    _root = Path()
    # Variables of processes that neither the user's environment nor the measurement sets.
    _defaults: Mapping[str, str] = {}

    @contextmanager
    def watched(self, _: str) -> Iterator[Callable[[], None]]:
        """Keep the folder that processes get their files in for the time of the block."""
        with temporary_folder() as self._root:
            yield lambda: None

    def image(self, ref: str) -> Image:
        """Describe an environment. Raises UsageError if it has no Python."""
        python = shutil.which(Path(ref, "bin", "python") if os.path.isdir(ref) else ref)
        if not python:
            raise UsageError(f"{ref} has no Python", hint="name the folder of a virtual environment, or a Python")
        env = tuple(f"{name}={value}" for name, value in os.environ.items())
        return Image(id=os.path.abspath(python), labels={}, size=0, env=env, architecture="", repo_digests=())

    def lacks_gpus(self, _: str) -> str:
        """Return why processes get no GPU, which is for TensorFlow to say."""
        return ""

    def run(
        self, ref: str, command: Sequence[str], *, timeout: float, stdin: bytes = b"", **options: Any
    ) -> ContainerRun:
        """Run a command to its end. Raises TimeoutError."""
        call, env = self._process(ref, command, **options)
        try:
            done = subprocess.run(call, input=stdin, capture_output=True, timeout=timeout, env=env, check=False)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return ContainerRun(exit_code=done.returncode, stdout=out, stderr=err, truncated=False)

    def worker(self, ref: str, command: Sequence[str], **options: Any) -> Worker:
        """Start a process that answers each line with a line."""
        with ExitStack() as stack:
            attached = stack.enter_context(closing(Attached(*self._process(ref, command, **options))))
            process = attached.process
            return Worker(str(process.pid), lambda name: process.send_signal(Signals[name]), attached, stack.pop_all())

    def _process(
        self,
        ref: str,
        command: Sequence[str],
        env: Mapping[str, str] = {},
        files: Mapping[str, bytes] = {},
        **_: object,
    ) -> tuple[list[str], dict[str, str]]:
        for path, content in files.items():
            file = Path(self._own(path))
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():  # or another process may be reading it
                file.write_bytes(content)
        # What a process leaves behind goes with the folder.
        merged = {**self._defaults, **os.environ, "TMPDIR": str(self._root), **env}
        return [ref, *map(self._own, command[1:])], {name: text for name, text in merged.items() if text}

    def _own(self, word: str) -> str:
        return word.replace(ROOT, str(self._root))


Runner = Engine | Installation


def host(environment: Environment, engine: Runner) -> Host:
    """Return where the containers ran, as a probe in one of them reported it."""
    return Host(
        cpu=environment.cpu_model,
        flags=environment.cpu_flags,
        machine=environment.machine,
        kernel=environment.kernel,
        cpus=environment.cpus,
        quota=environment.quota,
        memory=environment.memory,
        engine=engine.version,
    )


def software(environment: Environment, tensorflow: TensorFlow | None) -> Software:
    """Return what the probe `start` found; `tensorflow` is None where it did not import."""
    return Software(
        tensorflow=tensorflow.version if tensorflow else "",
        git=tensorflow.git if tensorflow else "",
        compiler=tensorflow.compiler if tensorflow else "",
        python=environment.python,
        numpy=environment.numpy,
        malloc=environment.malloc,
    )


@cache
def probe_files() -> dict[str, bytes]:
    """Return the files of the smoke benchmark and of the benchmark's inner part, by their paths in a container."""
    contents = {}
    for package in ("smoke", "bench", "bench/workloads"):
        for file in resources.files("tfbuild.in_container").joinpath(package).iterdir():
            if file.name.endswith(".py"):
                contents[f"{FOLDER}/{package}/{file.name}"] = file.read_bytes()
    return contents


def sandbox(engine: Engine, ref: str, more: Mapping[str, bytes] = {}) -> AbstractContextManager[Sandbox]:
    """Make a sandbox that has probe_files(), and `more` in ROOT."""
    own = {path.removeprefix(f"{ROOT}/"): content for path, content in probe_files().items()}
    return engine.sandbox(ref, own | {**more}, ROOT)


def ask(
    engine: Runner,
    ref: str,
    name: str,
    kinds: Sequence[type],
    env: Mapping[str, str] = {},
    *,
    gpus: bool = False,
    sandbox: Sandbox | None = None,
) -> Results:
    """Run the probe `name` through the image's own entry point; it sends one record of each of `kinds`, in order.

    `sandbox`: one with probe_files(), for an image that is not trusted.
    """
    command = ["python", f"{FOLDER}/smoke", "probe", name]
    own = {} if sandbox else probe_files()
    try:
        run = engine.run(ref, command, env={**PROBE_ENV, **env}, files=own, timeout=SECONDS, gpus=gpus, sandbox=sandbox)
    except TimeoutError:
        return Results((), Ended(1, "", TOO_LONG))
    if run.truncated:
        return Results((), Ended(run.exit_code, run.stderr, FLOOD_REASON))
    try:
        return Results(parse_records(run.stdout, kinds), Ended(run.exit_code, run.stderr))
    except ValueError as error:
        broken = f"the probe's output cannot be trusted: {error}"
        return Results((), Ended(run.exit_code, run.stderr, broken))


def parse_records(text: str, kinds: Sequence[type]) -> tuple[Any, ...]:
    """Return the records in a probe's output, at most one of each of `kinds`; raise ValueError with the reason."""
    lines = text.split("\n")
    if lines.pop():
        raise ValueError("its last line is cut off")
    if lines and not lines[0].startswith("{"):
        raise ValueError(f"the image's entry point prints on stdout: {lines[0][:60]!r}")
    if len(lines) > len(kinds):
        raise ValueError(f"{len(lines)} lines instead of at most {len(kinds)}")
    return tuple(parse_record(line, kind) for line, kind in zip(lines, kinds, strict=False))


def parse_record(line: str, kind: type[T]) -> T:
    """Return the record of `kind` in one line of JSON; raise ValueError with the reason."""
    if len(line) > MOST_LINE:
        raise ValueError(f"a line has {len(line)} characters")
    value = decode(line, kind)
    _refuse_absurd(msgspec.to_builtins(value))
    return value


def _refuse_absurd(value: object) -> None:
    if isinstance(value, float | int) and abs(value) > MOST_VALUE:
        raise ValueError(f"an absurd number: {str(value)[:40]}")
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("a text that is not printable")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _refuse_absurd(item)
