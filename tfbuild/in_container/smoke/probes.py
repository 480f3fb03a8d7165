"""The probes of an image; each is a process of its own, so that a crash shows which one caused it."""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import IO, Any

from .isolated import site_packages
from .records import (
    ABSENT,
    Bytecode,
    Challenge,
    Environment,
    Faults,
    GpuConvolution,
    OneDnnConvolution,
    OperationAnswer,
    TensorFlow,
    numbers,
    open_channel,
    read_challenge,
    send,
)

TENSOR_MIB = 40
TENSORS = 8
WARM_UP = 4


def main(arguments: list[str]) -> int:
    channel = open_channel()
    PROBES[arguments[0]](channel, read_challenge(sys.stdin.readline()))
    return 0


def start(channel: IO[str], challenge: Challenge | None) -> None:
    """Send the environment, then TensorFlow, on a line each: the first arrives even if TensorFlow kills the process.

    A challenge is a product of matrices: rows, inner, columns. The process then stays until stdin ends, so that it can
    be looked at.
    """
    send(channel, environment())
    send(channel, tensorflow())
    if challenge:
        import tensorflow as tf

        rows, inner, columns = challenge.sizes
        drawn = numbers(challenge.seed, rows * inner + inner * columns)
        left = tf.reshape(tf.constant(drawn[: rows * inner]), [rows, inner])
        right = tf.reshape(tf.constant(drawn[rows * inner :]), [inner, columns])
        send_answer(channel, "product", tf.matmul(left, right))
        sys.stdin.read()


def send_answer(channel: IO[str], name: str, result: Any, positions: tuple[int, ...] = ()) -> None:
    """Send a result, flattened, or its numbers at these positions; None: this build has none."""
    import numpy as np

    if result is None:
        send(channel, OperationAnswer(name, (), ABSENT))
        return
    flat = np.asarray(result, np.float64).ravel()
    chosen = flat[list(positions)] if positions else flat
    if not np.isfinite(chosen).all():
        send(channel, OperationAnswer(name, (), "something that is not a number"))
        return
    send(channel, OperationAnswer(name, tuple(chosen.tolist())))


def environment() -> Environment:
    names = packages(sys.path)
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


def packages(folders: list[str]) -> tuple[str, ...]:
    """Return the packages in folders by the names of theirs: numpy-1.18.5.dist-info, gast-0.2.2-py3.11.egg-info."""
    paths = [path for folder in folders for path in glob.glob(os.path.join(folder, "*-*.*-info"))]
    parts = [os.path.basename(path).rpartition(".")[0].split("-") for path in paths]
    return tuple(sorted({f"{re.sub('[-_.]+', '-', name.lower())}=={version}" for name, version, *_ in parts}))


def allocator() -> str:
    """Return the file whose mapping contains the malloc that is called.

    In a program linked to a fixed address that takes malloc's address (Debian's Python), the dynamic linker returns the
    program's own stub; posix_memalign, of which the program has none, is in the same library as the malloc behind it.
    """
    loaded, program = ctypes.CDLL(None), os.path.realpath("/proc/self/exe")
    addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in (loaded.malloc, loaded.posix_memalign))
    return next((file for file in map(owner, addresses) if file != program), program)


def owner(address: int | None) -> str:
    """Return the file mapped at `address`; empty if there is none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            first, last = (int(part, 16) for part in fields[0].split("-"))
            if address and first <= address < last:
                return fields[5] if len(fields) > 5 else ""
    return ""


def cpu() -> tuple[tuple[str, ...], str]:
    """Return the features that every core has, in the kernel's names, and the model."""
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":") for line in file]
    lists = [set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")]
    model = next((value.strip() for key, _, value in lines if key.strip() in ("model name", "CPU part")), "")
    return tuple(sorted(set.intersection(*lists))) if lists else (), model


def quota() -> float | None:
    """Return the CPU quota of the cgroup (version 2, else 1), in CPUs; TensorFlow ignores it."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            limit, period = " ".join(_text_of(f"/sys/fs/cgroup/{name}") for name in names).split()
            return None if limit in ("max", "-1") else float(limit) / float(period)
        except (OSError, ValueError):
            continue
    return None


def _text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


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


def gpus(tf: Any) -> list[Any]:
    """List GPUs; every release has the function under this name, though since 2.1 it is no longer experimental."""
    return list(tf.config.experimental.list_physical_devices("GPU"))


def faults(channel: IO[str], challenge: Challenge | None) -> None:
    """Count page faults, with judge.NO_ONEDNN: with oneDNN on, TensorFlow's own pool hides what malloc does.

    A challenge is the tensor's step, in 1/64: its last product has this multiple of each position.
    """
    import tensorflow as tf

    tensor = tf.range(TENSOR_MIB * 2**20 // 4, dtype=tf.float32)
    scale = tf.function(lambda x, factor: x * factor)
    for turn in range(WARM_UP):
        scale(tensor, tf.constant(float(turn)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for turn in range(TENSORS):
        scale(tensor, tf.constant(float(turn)))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    send(channel, Faults(per_tensor=(after - before) / TENSORS))
    if challenge:
        result = scale(tensor, tf.constant(challenge.sizes[0] / 64.0))
        send_answer(channel, "scale", result, challenge.positions)


def onednn(channel: IO[str], challenge: Challenge | None) -> None:
    """Run a convolution; judge.TALKATIVE makes oneDNN print on stderr which implementation ran.

    It runs in a graph, because up to 2.4 TensorFlow uses oneDNN's operations only there. A challenge has the sizes of
    `convolution_inputs`; oneDNN prints them, so that its lines answer too.
    """
    import tensorflow as tf

    image, kernel = convolution_inputs(challenge)
    convolve = tf.function(lambda x, w: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME")))
    result = convolve(image, kernel)
    total = float(tf.reduce_sum(result))
    send(channel, OneDnnConvolution(finite=total == total, openmp=openmp()))
    if challenge:
        send_answer(channel, "convolution", result, challenge.positions)


def convolution_inputs(challenge: Challenge | None) -> tuple[Any, Any]:
    """Return images and a kernel of 3 by 3: random ones, or the challenge's of [count, height, width, input, output].

    The challenge's kernel is divided by 16, so that results stay near 1.
    """
    import tensorflow as tf

    if not challenge:
        return tf.random.normal([4, 16, 16, 32]), tf.random.normal([3, 3, 32, 32])
    count, height, width, inputs, outputs = challenge.sizes
    size = count * height * width * inputs
    drawn = numbers(challenge.seed, size + 9 * inputs * outputs)
    image = tf.reshape(tf.constant(drawn[:size]), [count, height, width, inputs])
    return image, tf.reshape(tf.constant(drawn[size:]), [3, 3, inputs, outputs]) / 16.0


def openmp() -> str:
    """Return the file of the loaded OpenMP runtime: libiomp5.so, libgomp.so.1 or libomp.so.5."""
    with open("/proc/self/maps") as maps:
        files = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
    return next((name for name in sorted(files) if name.startswith(("libiomp", "libgomp", "libomp"))), "")


def bytecode(channel: IO[str], challenge: Challenge | None) -> None:
    from .bytecode import compared

    send(channel, Bytecode(*compared([*sys.path, site_packages()])))


def numerics(channel: IO[str], challenge: Challenge | None) -> None:
    from . import numerics as checks

    for part in checks.parts():
        send(channel, part)
    for name, result in checks.answers(challenge) if challenge else ():
        send_answer(channel, name, result)


def cuda(channel: IO[str], challenge: Challenge | None) -> None:
    """Run the same convolution on the first GPU, if any, and on the CPU; a challenge is that of `onednn`."""
    import tensorflow as tf

    from .numerics import relative

    devices = gpus(tf)
    if not devices:
        send(channel, GpuConvolution(gpus=0, device="", error=None))
        return
    # TensorFloat-32 keeps only ten bits of the mantissa, which would hide a wrong kernel. (Unused before 2.4.)
    if hasattr(tf.config.experimental, "enable_tensor_float_32_execution"):
        tf.config.experimental.enable_tensor_float_32_execution(False)
    image, kernel = convolution_inputs(challenge)

    def on(device: str) -> Any:
        with tf.device(device):
            return tf.nn.conv2d(image, kernel, 1, "SAME")

    on_gpu = on("/GPU:0")
    error = relative(on_gpu, on("/CPU:0").numpy())
    send(channel, GpuConvolution(gpus=len(devices), device=on_gpu.device, error=error if error == error else None))
    if challenge:
        send_answer(channel, "convolution", tf.nn.relu(on_gpu), challenge.positions)


PROBES: dict[str, Callable[[IO[str], Challenge | None], None]] = {
    "start": start,
    "bytecode": bytecode,
    "faults": faults,
    "onednn": onednn,
    "numerics": numerics,
    "cuda": cuda,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
