"""The words that users add for Bazel and configure.py: refused where they contradict the plan."""

import re
from collections.abc import Iterator
from itertools import chain, pairwise

from tfbuild import facts
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UsageError
from tfbuild.plan import configuration
from tfbuild.plan import tree as source_tree
from tfbuild.plan.request import Request

FLAG = re.compile(r"--?[\w@/][\w@/:.,+~-]*", re.ASCII)
# A compiler's flag for the machine, in a word of Bazel's; what follows -march= or -mcpu= is the CPU.
MACHINE_FLAG = re.compile(r"""(?:^|(?<=[=@,:'"]))(-m(?:(?:arch|cpu)=)?([\w.+-]+))""", re.ASCII)
# Bazel's options with flags for the wheel's code. --host_copt is for tools that only run during the build. Bazel's C++
# toolchain reads BAZEL_COPT, BAZEL_CXXOPTS and BAZEL_CONLYOPTS (unix_cc_configure.bzl), also from --action_env.
FOR_COMPILER = ("--copt", "--cxxopt", "--conlyopt", "--per_file_copt", "--repo_env", "--action_env")
# The configs of TensorFlow's .bazelrc that choose a CPU, and how.
CPU_CONFIGS = {"native_arch_linux": "-march=native", "avx_linux": "-mavx", "avx2_linux": "-mavx2"}
# Where a CUDA and a cuDNN are that Bazel then does not download.
OWN_CUDA = re.compile(r"(?:--(?:action|repo)_env=)?LOCAL_(?:CUDA|CUDNN)_PATH=(.+)")
# What the configs with OpenMP set, and those without it leave out.
OPENMP = re.compile(r"--define[= ]build_with_openmp=(\w+)")


def refuse_flags(flags: tuple[str, ...]) -> None:
    """Raise UsageError for a word that Bazel would take for a target; it may be the value of the flag before it."""
    for before, flag in pairwise(("", *flags)):
        if not flag.startswith("-") and ("=" in before or not before.startswith("-")):
            raise UsageError(f"{flag!r} is not a Bazel flag", hint="--bazel-flag=--NAME or --bazel-flag=--NAME=VALUE")
        name = flag.partition("=")[0]
        if flag.startswith("-") and not FLAG.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of a Bazel flag", hint="--bazel-flag=--NAME=VALUE")


def refuse_another_cpu(request: Request, own: InstructionSet) -> None:
    """Raise UsageError for a flag, a config or an answer that compiles for another CPU than the plan says."""
    for word, flag, value in _machine_flags(request):
        if cpu := _another_cpu(flag, value, own):
            raise UsageError(
                f"{word!r} compiles for another CPU than the plan, the labels and the verification say",
                hint=f"--cpu {cpu}",
            )


def refuse_other_gpus(request: Request) -> None:
    """Raise UsageError for a word that sets other GPUs or another CUDA than the plan and the labels say."""
    for name in _configs_named(request):
        if match := source_tree.CUDA_CONFIG.fullmatch(name):
            raise UsageError(
                f"--config {name} takes another CUDA than the plan and the labels say", hint=f"--cuda {match[1]}.0"
            )
    for word in " ".join((*request.bazel_flag, *request.configure)).split():
        if (match := source_tree.CUDA_SETTING.fullmatch(word)) and match[1] == "CUDA_COMPUTE":
            raise UsageError(
                f"{word!r} compiles for other GPUs than the plan and the labels say",
                hint=f"--compute-capabilities {match[2]}",
            )
        if not request.cuda_path and (match := OWN_CUDA.fullmatch(word)):
            raise UsageError(
                f"{word!r} takes another CUDA than the plan and the labels say",
                hint=f"--cuda-path {match[1]} --cuda VERSION --cudnn VERSION",
            )


def runtimes_named(request: Request) -> Iterator[tuple[str, str]]:
    """Yield the words that choose a runtime of oneDNN, and which."""
    runtimes = configuration.runtimes()
    for name in _configs_named(request):
        if name in runtimes:
            yield f"--config {name}", runtimes[name]
    for match in OPENMP.finditer(" ".join(request.bazel_flag)):
        yield match[0], "openmp" if match[1] == "true" else "threadpool"


def _configs_named(request: Request) -> list[str]:
    """Return the configs that the user asks Bazel for."""
    return [*request.config, *re.findall(r"--config[= ](\S+)", " ".join(request.bazel_flag))]


def _machine_flags(request: Request) -> Iterator[tuple[str, str, str]]:
    """Yield the compiler's flags for the machine that the user's words contain: the word, the flag and its value."""
    for word in " ".join((*request.bazel_flag, *request.config, *request.configure)).split():
        option, _, value = word.partition("=")
        flags = [CPU_CONFIGS.get(name, "") for name in (value if option == "--config" else word).split(",")]
        if option in FOR_COMPILER or not option.startswith("--"):
            flags.append(word)
        for match in chain.from_iterable(map(MACHINE_FLAG.finditer, flags)):
            yield word, match[1], match[2]


def _another_cpu(flag: str, value: str, own: InstructionSet) -> str:
    """Return the value of --cpu that stands for a flag; "" for a flag that changes nothing about the CPU."""
    if "=" in flag:
        return "host" if value in ("native", "host") else value
    features = {row.flag: row.name for row in facts.features(own.arch)}
    if (added := features.get(flag)) and added not in own.features:
        return f"{own.option},{added}"
    if (removed := features.get(flag.replace("-mno-", "-m", 1))) and flag.startswith("-mno-"):
        smaller = [row.name for row in facts.levels(own.arch) if removed not in row.features]
        return smaller[-1] if removed in own.features else ""
    return ""
