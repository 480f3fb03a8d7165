"""The probes of an image; each is a process of its own, so that a crash shows which one caused it.

A probe sends records, one a line, as JSON; the host checks them against the types here.
"""

import ctypes
import glob
import json
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

TENSOR_MIB = 40
TENSORS = 8
WARM_UP = 4
PR_SET_THP_DISABLE = 41


@dataclass(frozen=True)
class Environment:
    """The container before TensorFlow is imported.

    `malloc`: the file whose mapping contains malloc; `cpus`: those that this process may use, of so many NUMA `nodes`;
    `quota`: CPU quota of the cgroup, in CPUs (None: no limit); `memory`: MiB of the machine; `packages`:
    "name==version", sorted.
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
    nodes: int = 1


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
    """A convolution that ran. `finite`: the sum of its result is, and it is not absurdly large."""

    finite: bool


@dataclass(frozen=True)
class GpuConvolution:
    """`error`: largest relative difference between a convolution on the GPU and on the CPU.

    None without a GPU, or if it is not finite or absurdly large.
    """

    gpus: int
    device: str
    error: float | None


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


class Unfit(Exception):
    """A workload cannot run here; the message is the reason that the report shows."""


def start(channel: IO[str]) -> None:
    """Send the environment, then TensorFlow: the first arrives even if TensorFlow kills the process."""
    send(channel, environment())
    send(channel, tensorflow())


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
        nodes=len(numa_nodes()),
    )


def packages(folders: list[str]) -> tuple[str, ...]:
    """Return the packages in folders by the names of theirs: numpy-1.26.4.dist-info, gast-0.2.2-py3.11.egg-info.

    Of one that is in several folders, Python imports the first.
    """
    paths = [path for folder in reversed(folders) for path in glob.glob(os.path.join(folder, "*-*.*-info"))]
    parts = [os.path.basename(path).rpartition(".")[0].split("-") for path in paths]
    versions = {re.sub("[-_.]+", "-", name.lower()): version for name, version, *_ in parts}
    return tuple(sorted(map("==".join, versions.items())))


def allocator() -> str:
    """Return the file whose mapping contains the malloc that is called.

    In a program linked to a fixed address that takes malloc's address (Debian's Python), the dynamic linker returns the
    program's own stub; posix_memalign, of which the program has none, is in the same library as the malloc behind it.
    """
    loaded, program = ctypes.CDLL(None), os.path.realpath("/proc/self/exe")
    addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in (loaded.malloc, loaded.posix_memalign))
    return next((file for file in map(mapped_file, addresses) if file != program), program)


def mapped_file(address: int | None) -> str:
    """Return the file mapped at `address`; empty if there is none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            first, last = (int(part, 16) for part in fields[0].split("-"))
            if address and first <= address < last:
                return fields[5].rstrip("\n") if len(fields) > 5 else ""
    return ""


def cpu() -> tuple[tuple[str, ...], str]:
    """Return the features that every core has, in the kernel's names, and the model."""
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":") for line in file]
    lists = [set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")]
    model = next((value.strip() for key, _, value in lines if key.strip() in ("model name", "CPU part")), "")
    return tuple(sorted(set.intersection(*lists))) if lists else (), model


def quota() -> float | None:
    """Return the CPU quota of the cgroup in CPUs, which TensorFlow ignores; None without one."""
    version_1 = map("{} {}".format, of_cgroup("cpu/cpu.cfs_quota_us"), of_cgroup("cpu/cpu.cfs_period_us"))
    texts = of_cgroup("cpu.max") or version_1
    pairs = (words for words in map(str.split, texts) if len(words) == 2 and words[0] not in ("max", "-1"))
    return min((float(most) / float(period) for most, period in pairs), default=None)


def numa_nodes(folder: str = "/sys/devices/system/node") -> list[set[int]]:
    """Return, for each NUMA node, its CPUs that this process may use; none where the kernel does not tell."""
    own, links = os.sched_getaffinity(0), (os.listdir(node) for node in sorted(glob.glob(folder + "/node[0-9]*")))
    nodes = (own & {int(name[3:]) for name in names if re.fullmatch("cpu[0-9]+", name)} for names in links)
    return [cpus for cpus in nodes if cpus]


def used(*kinds: str) -> float:
    """Return this process's memory in MiB: "VmRSS" and "HugetlbPages", counted apart, or "VmHWM", its most so far."""
    with open("/proc/self/status") as file:
        return sum(int(line.split()[1]) for line in file if line.split(":")[0] in kinds) / 1024


def memory() -> float:
    """Return the MiB that this container may use: the machine's memory, or a lower cgroup limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    limits = map(str.strip, of_cgroup("memory.max", "memory/memory.limit_in_bytes"))
    return min([whole, *(int(limit) / 2**20 for limit in limits if limit.isdigit())])


def of_cgroup(*names: str) -> list[str]:
    """Return the texts of the first of the cgroup's files (version 2, then "CONTROLLER/FILE" of 1) that can be read:
    this process's own, and those of the cgroups around it, whose limits hold for it too. Some containers see the host's
    path, but their own files at the top."""
    lines = (line.split(":", 2) for line in text_of("/proc/self/cgroup").splitlines())
    own = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    for name in names:
        controller, _, file = name.rpartition("/")
        parts = [part for part in (controller, *own.get(controller, "").split("/")) if part not in ("", "..")]
        folders = ("/".join(("/sys/fs/cgroup", *parts[:count])) for count in range(len(parts), -1, -1))
        if found := [text for folder in folders if (text := text_of(f"{folder}/{file}"))]:
            return found
    return []


def text_of(path: str) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def tensorflow() -> TensorFlow:
    begin = time.perf_counter()
    import tensorflow as tf

    seconds = time.perf_counter() - begin
    tf.constant(1.0).numpy()
    return TensorFlow(
        version=tf.__version__,
        git=str(tf.version.GIT_VERSION),
        compiler=str(tf.version.COMPILER_VERSION),
        cuda_build=bool(tf.sysconfig.get_build_info()["is_cuda_build"]),
        seconds=seconds,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        gpus=len(tf.config.list_physical_devices("GPU")),
    )


def faults(channel: IO[str]) -> None:
    """Count page faults, with judge.NO_ONEDNN: with oneDNN on, TensorFlow's own pool hides what malloc does.

    So do a GPU, and huge pages, of which one stands for 512 others. The median leaves out what happens once: a return
    of memory to the kernel, or its look at which NUMA node uses a page.
    """
    import tensorflow as tf

    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    scale = tf.function(lambda x, factor: x * factor)
    counts = []
    with tf.device("/CPU:0"):
        tensor = tf.range(TENSOR_MIB * 2**20 // 4, dtype=tf.float32)
        for turn in range(WARM_UP + TENSORS):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            scale(tensor, tf.constant(float(turn)))
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    send(channel, Faults(per_tensor=sorted(counts[WARM_UP:])[TENSORS // 2]))


def onednn(channel: IO[str]) -> None:
    """Run a convolution; judge.ONEDNN_LOGGING makes oneDNN print on stderr which implementation ran."""
    import tensorflow as tf

    from .references import usable

    # Without a ReLU: oneDNN's makes 0 of what is not a number.
    convolve = tf.function(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))
    total = float(tf.reduce_sum(convolve(*convolution_inputs())))
    send(channel, OneDnnConvolution(finite=usable(total)))


def convolution_inputs() -> tuple[Any, Any]:
    """Return images and a kernel. oneDNN takes 32 channels; TensorFlow leaves smaller convolutions to Eigen."""
    import tensorflow as tf

    return tf.random.normal([4, 16, 16, 32]), tf.random.normal([3, 3, 32, 32])


def numerics(channel: IO[str]) -> None:
    from .numerics import computed
    from .references import PARTS

    for name in PARTS:
        send(channel, Computed(name, *computed(name)))


def cuda(channel: IO[str]) -> None:
    """Run the same convolution on the first GPU, if any, and on the CPU."""
    import tensorflow as tf

    from .references import usable

    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        send(channel, GpuConvolution(gpus=0, device="", error=None))
        return
    # TensorFloat-32 keeps only ten bits of the mantissa, which would hide a wrong kernel.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    image, kernel = convolution_inputs()

    def on(device: str) -> Any:
        with tf.device(device):
            return tf.nn.conv2d(image, kernel, 1, "SAME")

    on_gpu, on_cpu = on("/GPU:0"), on("/CPU:0").numpy()
    error = float(abs(on_gpu.numpy() - on_cpu).max() / abs(on_cpu).max())
    send(channel, GpuConvolution(gpus=len(devices), device=on_gpu.device, error=error if usable(error) else None))


PROBES: Mapping[str, Callable[[IO[str]], None]] = {
    "start": start,
    "faults": faults,
    "onednn": onednn,
    "numerics": numerics,
    "cuda": cuda,
}
