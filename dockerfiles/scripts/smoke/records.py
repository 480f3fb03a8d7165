"""The records of the probes. Each is one line of JSON, which the host checks against these types first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


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
    cpu_flags: Tuple[str, ...]
    kernel: str
    machine: str
    cpus: int
    quota: Optional[float]
    memory: int
    packages: Tuple[str, ...]


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
    values: Tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Bytecode:
    """How many `files` of bytecode Python would load, and which of them are `wrong`: not a compile of their source."""

    files: int
    wrong: Tuple[str, ...]


@dataclass(frozen=True)
class Faults:
    """Page faults for each 40 MiB tensor that was made and dropped, without oneDNN's own pool."""

    per_tensor: float


@dataclass(frozen=True)
class Part:
    """One numerical result: its error against a reference, relative unless numerics.py says otherwise.

    `error` is None where the result was not finite or, with a `note`, where there was nothing to compare.
    """

    name: str
    error: Optional[float]
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
    error: Optional[float]
