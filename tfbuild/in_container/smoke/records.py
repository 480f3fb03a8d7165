"""What the host asks of a probe, and what a probe answers: lines of JSON, which the host checks against these types.

A challenge is what only the host knows beforehand: numbers and sizes on which a probe has to compute. Both sides draw
the same numbers from its seed; the host computes its own answers, in tfbuild/verify/challenges.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from typing import IO, Any

HALF = 1 << 15
# The note of an answer that a build cannot give.
ABSENT = "not in this build"


@dataclass(frozen=True)
class Challenge:
    """`sizes`: of the operation, in the order that its probe documents; `positions`: in its flattened result."""

    seed: int
    sizes: tuple[int, ...]
    positions: tuple[int, ...] = ()


def numbers(seed: int, count: int) -> list[float]:
    """Return numbers from -1 to 1 that float32 represents exactly; the same on every Python."""
    draw = random.Random(seed).getrandbits
    return [draw(16) / HALF - 1 for _ in range(count)]


def eight_bits(number: float) -> int:
    """Return the 8-bit number that stands for one from -1 to 1."""
    return int((number + 1) * 127)


def read_challenge(line: str) -> Challenge | None:
    """Return the challenge in a line of JSON; None for an empty line, which `tfbuild-smoke` sends."""
    if not line.strip():
        return None
    fields = json.loads(line)
    return Challenge(fields["seed"], tuple(fields["sizes"]), tuple(fields["positions"]))


def open_channel() -> IO[str]:
    """Reserve stdout for records; call this once, before importing TensorFlow.

    ONEDNN_VERBOSE and others write to file descriptor 1 itself, so that descriptor is redirected to stderr.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(stdout, "w", buffering=1)


def send(channel: IO[str], record: Any) -> None:
    """Send one record as one line. Raises ValueError for NaN, which JSON does not have."""
    channel.write(json.dumps(asdict(record), allow_nan=False) + "\n")
    channel.flush()


# --- the records of the probes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """The container before TensorFlow is imported.

    `malloc`: the file whose mapping contains malloc; `cpus`: those that this process may use; `quota`: CPU quota of the
    cgroup, in CPUs (None: no limit); `memory`: MiB of the machine; `packages`: "name==version", sorted.
    """

    python: str
    numpy: str
    malloc: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    kernel: str
    machine: str
    cpus: int
    quota: float | None
    memory: int
    packages: tuple[str, ...]


@dataclass(frozen=True)
class TensorFlow:
    """TensorFlow after a successful import and one operation; `seconds`: of the import only."""

    version: str
    git: str
    compiler: str
    cuda_build: bool
    seconds: float
    peak_mib: float
    gpus: int


@dataclass(frozen=True)
class OperationAnswer:
    """TensorFlow's results for a challenge; `name`: of the operation. Without `values`, `note` says why."""

    name: str
    values: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Bytecode:
    """How many `files` of bytecode Python would load, and which of them are `wrong`: not compiled from their source."""

    files: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Faults:
    """Page faults for each 40 MiB tensor that was made and dropped, without oneDNN's own pool."""

    per_tensor: float


@dataclass(frozen=True)
class Part:
    """One numerical result: its error against a reference, relative unless numerics.py says otherwise.

    `error` is None if the result was not finite or, with a `note`, if there was nothing to compare.
    """

    name: str
    error: float | None
    note: str = ""


@dataclass(frozen=True)
class OneDnnConvolution:
    """A convolution that ran. `finite`: its result is; `openmp`: file of the loaded OpenMP runtime ("": none)."""

    finite: bool
    openmp: str


@dataclass(frozen=True)
class GpuConvolution:
    """`error`: largest relative difference between a convolution on the GPU and on the CPU (None: no GPU)."""

    gpus: int
    device: str
    error: float | None
