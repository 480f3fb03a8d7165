"""What is asked of an image; each probe is a process of its own, so that its death says what it died of."""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import resource
import sys
import time
from typing import IO, Any, Callable, Dict, List, Optional, Tuple

from . import channel as channels
from .records import Cuda, Environment, Faults, OneDnn, TensorFlow

TENSOR_MIB = 40
TENSORS = 8
WARM_UP = 4
# Makes 1.15 behave as 2.x; from 2.0 on this is the default.
EAGER = ("TF2_BEHAVIOR", "1")


def main(arguments: List[str]) -> int:
    channel = channels.open_channel()
    os.environ.setdefault(*EAGER)
    PROBES[arguments[0]](channel)
    return 0


def start(channel: IO[str]) -> None:
    """The environment, then TensorFlow: a line each, so that the first is there where the second kills the process."""
    channels.send(channel, environment())
    channels.send(channel, tensorflow())


def environment() -> Environment:
    names = packages()
    flags, model = cpu()
    return Environment(
        python=platform.python_version(),
        numpy=next((name.partition("==")[2] for name in names if name.startswith("numpy==")), ""),
        malloc=allocator(),
        cpu_model=model,
        cpu_flags=flags,
        kernel=platform.release(),
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        quota=quota(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        packages=names,
    )


def packages() -> Tuple[str, ...]:
    try:
        from importlib import metadata  # novm
    except ImportError:  # Python 3.7
        listed = installed(sys.path)
    else:
        listed = [(str(found.metadata["Name"]), found.version) for found in metadata.distributions()]
    versions = {name.lower().replace("_", "-"): version for name, version in listed}
    return tuple(sorted("{}=={}".format(name, version) for name, version in versions.items()))


def installed(folders: List[str]) -> List[Tuple[str, str]]:
    """Packages and versions by the names of their folders: numpy-1.18.5.dist-info, gast-0.2.2-py3.7.egg-info."""
    paths = [path for folder in folders for path in glob.glob(os.path.join(folder, "*-*.*-info"))]
    parts = [os.path.basename(path).rpartition(".")[0].split("-") for path in paths]
    return [(name, version) for name, version, *_ in parts]


def allocator() -> str:
    """The file whose mapping holds the malloc that calls go to.

    In a program that is linked to a fixed address and uses malloc's address (Debian's Python), the dynamic linker's
    answer is the program's own stub: that one is followed, on x86-64; elsewhere posix_memalign stands for it.
    """
    program = os.path.realpath("/proc/self/exe")
    address = resolved("malloc")
    if owner(address) == program and platform.machine() == "x86_64":
        address = behind_stub(address)
    if owner(address) == program:
        address = resolved("posix_memalign")
    return owner(address)


def resolved(function: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0


def behind_stub(address: int) -> int:
    """The target of `[endbr64] [bnd] jmp *offset(%rip)`; the address itself where there is no such stub."""
    code = ctypes.string_at(address, 16)
    start = (4 if code.startswith(b"\xf3\x0f\x1e\xfa") else 0) + (1 if b"\xf2\xff\x25" in code[:7] else 0)
    if code[start : start + 2] != b"\xff\x25":
        return address
    offset = int.from_bytes(code[start + 2 : start + 6], "little", signed=True)
    return ctypes.c_uint64.from_address(address + start + 6 + offset).value


def owner(address: int) -> str:
    """The file mapped at `address`; empty where there is none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            first, last = (int(part, 16) for part in fields[0].split("-"))
            if first <= address < last:
                return fields[5] if len(fields) > 5 else ""
    return ""


def cpu() -> Tuple[Tuple[str, ...], str]:
    """The kernel's feature names that every core has, and the model."""
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":") for line in file]
    lists = [set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")]
    model = next((value.strip() for key, _, value in lines if key.strip() in ("model name", "CPU part")), "")
    return tuple(sorted(set.intersection(*lists))) if lists else (), model


def quota() -> Optional[float]:
    """CPUs' worth of time that the cgroup grants (version 2, then 1); TensorFlow does not look at it."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            given, period = file.read().split()
        return None if given == "max" else float(given) / float(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
            return limit / int(file.read()) if limit > 0 else None
    except (OSError, ValueError):
        return None


def tensorflow() -> TensorFlow:
    begin = time.perf_counter()
    import tensorflow as tf

    seconds = time.perf_counter() - begin
    # Up to 2.9 the "rebuild TensorFlow" message comes with the first operation.
    tf.constant(1.0).numpy()
    info = tf.sysconfig.get_build_info() if hasattr(tf.sysconfig, "get_build_info") else {}
    return TensorFlow(
        version=tf.__version__,
        git=str(tf.version.GIT_VERSION),
        compiler=str(tf.version.COMPILER_VERSION),
        cuda_build=bool(info.get("is_cuda_build", tf.test.is_built_with_cuda())),
        seconds=seconds,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        gpus=len(gpus(tf)),
    )


def gpus(tf: Any) -> List[Any]:
    """Every release has the function under this name; since 2.1 it is no longer experimental."""
    return list(tf.config.experimental.list_physical_devices("GPU"))


def faults(channel: IO[str]) -> None:
    """With oneDNN on TensorFlow's own pool hides what malloc does, so this one runs with judge.NO_ONEDNN."""
    import tensorflow as tf

    tensor = tf.ones([TENSOR_MIB * 2**20 // 4])
    scale = tf.function(lambda x, factor: x * factor)
    for turn in range(WARM_UP):
        scale(tensor, tf.constant(float(turn)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for turn in range(TENSORS):
        scale(tensor, tf.constant(float(turn)))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    channels.send(channel, Faults(per_tensor=(after - before) / TENSORS))


def onednn(channel: IO[str]) -> None:
    """A convolution; judge.TALKATIVE makes oneDNN say on stderr which implementation ran.

    In a graph: up to 2.4 TensorFlow puts oneDNN's operations into graphs alone.
    """
    import tensorflow as tf

    image, kernel = tf.random.normal([4, 16, 16, 32]), tf.random.normal([3, 3, 32, 32])
    convolve = tf.function(lambda x, w: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")))
    result = float(tf.reduce_sum(convolve(image, kernel)))
    channels.send(channel, OneDnn(finite=result == result, openmp=openmp()))


def openmp() -> str:
    """The OpenMP runtime that is loaded, by its file: libiomp5.so, libgomp.so.1 or libomp.so.5."""
    with open("/proc/self/maps") as maps:
        files = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
    return next((name for name in sorted(files) if name.startswith(("libiomp", "libgomp", "libomp"))), "")


def numerics(channel: IO[str]) -> None:
    from . import numerics as checks

    for part in checks.parts():
        channels.send(channel, part)


def cuda(channel: IO[str]) -> None:
    """The same convolution on the first GPU, where there is one, and on the CPU."""
    import numpy as np
    import tensorflow as tf

    found = gpus(tf)
    if not found:
        channels.send(channel, Cuda(gpus=0, device="", error=None))
        return
    # TensorFloat-32 keeps ten bits of the mantissa: it would hide a wrong kernel. (Before 2.4 nothing uses it.)
    if hasattr(tf.config.experimental, "enable_tensor_float_32_execution"):
        tf.config.experimental.enable_tensor_float_32_execution(False)
    image, kernel = tf.random.normal([4, 16, 16, 32]), tf.random.normal([3, 3, 32, 32])

    def on(device: str) -> Any:
        with tf.device(device):
            return tf.nn.conv2d(image, kernel, 1, "SAME")

    there, here = on("/GPU:0"), on("/CPU:0").numpy()
    error = float(np.abs(there.numpy() - here).max() / np.abs(here).max())
    channels.send(channel, Cuda(gpus=len(found), device=there.device, error=error if error == error else None))


PROBES: Dict[str, Callable[[IO[str]], None]] = {
    "start": start,
    "faults": faults,
    "onednn": onednn,
    "numerics": numerics,
    "cuda": cuda,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
