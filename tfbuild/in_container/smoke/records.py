"""What a probe sends: one record a line, as JSON, which the host checks against these types."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import IO, Any


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
class Faults:
    """Page faults for each 40 MiB tensor that was made and dropped, without oneDNN's own pool."""

    per_tensor: float


@dataclass(frozen=True)
class Computed:
    """The numbers that a part of the check `numerics` computed; without numbers, `note` says why."""

    name: str
    values: tuple[float, ...]
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
