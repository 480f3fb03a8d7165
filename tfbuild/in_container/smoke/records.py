"""What the probes find. Each record is one line of JSON; the host checks it against these types first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Environment:
    """The container before TensorFlow is touched.

    `malloc`: file whose mapping holds the function malloc; `cpus`: those this process may use; `quota`: CPUs' worth of
    time that the cgroup grants (None: no limit); `memory`: MiB of the machine; `packages`: "name==version", sorted.
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
    """TensorFlow after an import that worked and one operation; `seconds`: the import alone."""

    version: str
    git: str
    compiler: str
    cuda_build: bool
    seconds: float
    peak_mib: float
    gpus: int


@dataclass(frozen=True)
class Faults:
    """Page faults for each 40 MiB tensor that was made and dropped, with oneDNN's own pool out of the way."""

    per_tensor: float


@dataclass(frozen=True)
class Part:
    """One numerical result: the error against its reference, relative unless judge.py says otherwise.

    `error` is None where the result was not a finite number, or, with a `note`, where there was nothing to compare.
    """

    name: str
    error: Optional[float]
    note: str = ""


@dataclass(frozen=True)
class OneDnn:
    """A convolution ran. `finite`: it gave a number; `openmp`: file of the OpenMP runtime that is loaded ("": none)."""

    finite: bool
    openmp: str


@dataclass(frozen=True)
class Cuda:
    """`error`: largest relative difference of a convolution on the GPU to the same on the CPU (None: no GPU)."""

    gpus: int
    device: str
    error: Optional[float]
