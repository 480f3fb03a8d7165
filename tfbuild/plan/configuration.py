"""How a release's tree is configured and compiled: configs, answers to configure.py, Bazel's flags, the toolchain.

Words that users add for Bazel and configure.py are refused where they contradict the plan.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import table
from tfbuild.plan import failures
from tfbuild.plan.build import BUILD_PYTHON, MACHINES, OVERRIDES, PLATFORMS, Build, Toolchain
from tfbuild.plan.cuda import Capability
from tfbuild.plan.request import Request
from tfbuild.plan.source import OwnFile
from tfbuild.plan.tree import CUDA_CONFIG

# Host tools are compiled for any machine that may build. Only --copt has the target's features.
GENERIC_MARCH = {"x86_64": "-march=x86-64", "aarch64": "-march=armv8-a"}
TOOLS = ("bzip2", "ca-certificates", "curl", "git", "patchelf", "python3", "rsync", "unzip", "xz-utils", "zip")
# Where an image with CUDA has it (up to 2.17).
CUDA_PATH = "/usr/local/cuda"


# --- configs ----------------------------------------------------------------------------------------------------------


def threading(release: str, arch: str, requested: str = "") -> str:
    """Return the runtime of oneDNN in a build that promises it: the `requested` one, else "threadpool"."""
    fact = releases.row(table().threading, release, arch)
    possible = [name for name, config in (("openmp", fact.openmp), ("threadpool", fact.threadpool)) if config]
    if requested and requested not in ("openmp", "threadpool"):
        raise UsageError(f"unknown threading {requested!r}", hint="one of: openmp, threadpool")
    if requested and requested not in possible:
        raise Unsupported(
            f"TensorFlow {release} has no {arch} build with oneDNN on {requested}{fact.note and f': {fact.note}'}",
            hint=f"it has: {', '.join(possible)}",
        )
    return requested or "threadpool"


def requested_threading(request: Request, target: str, release: str, arch: str) -> str:
    """Return the runtime of oneDNN. Raises UsageError for a --config of another one."""
    if not targets.get(target).onednn:
        if request.threading:
            raise UsageError(
                f"--threading is for oneDNN, which --target {target} does not guarantee",
                hint=targets.choosing("onednn"),
            )
        return "threadpool"
    chosen = threading(release, arch, request.threading)
    openmp, threadpool = ({getattr(row, name) for row in table().threading} for name in ("openmp", "threadpool"))
    for name in _configs_named(request):
        runtime = "openmp" if name in openmp else "threadpool" if name in threadpool else chosen
        if threading(release, arch, runtime) != chosen:
            raise UsageError(
                f"--config {name} runs oneDNN on {runtime}, but the plan has {chosen}", hint=f"--threading {runtime}"
            )
    return chosen


def configs(release: str, target: str, arch: str, threading: str) -> tuple[str, ...]:
    """Return the configs that make `target`; raises Unsupported if the release lacks one."""
    row = targets.get(target)
    onednn: tuple[str, ...] = ()
    if row.onednn:
        fact = releases.row(table().threading, release, arch)
        onednn = (fact.openmp if threading == "openmp" else fact.threadpool,)
        # x86-64 builds have oneDNN without it, and from 2.22 on no config.
        if not releases.config(onednn[0], release) and releases.row(table().onednn, release, arch).compiled:
            onednn = ()
    for name in (*onednn, *row.configs):
        if not releases.config(name, release):
            other = next((other for other in releases.others(release) if releases.config(name, other)), "")
            hint = f"--release {other} has it" if other else ""
            raise Unsupported(f"TensorFlow {release} has no --config={name}", hint=hint)
    optional = (name for name in row.configs_unless_gone if releases.config(name, release))
    return (*onednn, *row.configs, *optional)


# --- configure.py -----------------------------------------------------------------------------------------------------


def configure_env(
    release: str, target: str, compiler: str, gpus: tuple[Capability, ...], cuda: str, cudnn: str
) -> tuple[tuple[str, str], ...]:
    """Return the variables that answer every question of configure.py, in the order of its questions."""
    program, row, own = f"/usr/bin/{compiler}", targets.get(target), releases.cuda(release)
    # Up to 2.17 configure.py looks for the library by its major version: a CUDA image may not be more precise.
    exact = own.hermetic or cudnn != own.cudnn
    values = {
        "python": BUILD_PYTHON,
        "clang": program,
        "gcc": program,
        "cuda_path": CUDA_PATH,
        "cuda": cuda,
        "cudnn": cudnn if exact else cudnn.partition(".")[0],
        "capabilities": ",".join(gpu.code for gpu in gpus),
    }
    return tuple(
        (question.variable, row.answers.get(question.variable, question.value).format(**values))
        for question in releases.rows(table().configure, release)
        if question.cuda in (None, row.cuda) and question.compiler in ("", compiler.partition("-")[0])
    )


def repo_env(release: str, env: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the Bazel flags for those variables of `env` that a config of the tree would override."""
    overridden = {question.variable for question in releases.rows(table().configure, release) if question.overridden}
    return tuple(f"--repo_env={variable}={value}" for variable, value in env if variable in overridden)


def wheel_flags(release: str, target: str, arch: str, python: str, archive: OwnFile | None = None) -> tuple[str, ...]:
    """Return the Bazel flags that name the wheel and choose the hermetic Python, if the release has such flags."""
    wheel = releases.wheel(release)
    name = targets.get(target).column(wheel.cpu, wheel.gpu)
    official = releases.wheel_flags(release, target, arch)
    hermetic = releases.rows(table().hermetic_python, release)
    own = [f"URL=file://{OVERRIDES}/hermetic-python/{archive.path.name}", f"SHA256={archive.sha256}"] if archive else []
    return (
        *([name] if name else []),
        *official,
        *(f"--repo_env={row.variable}={python}" for row in hermetic),
        *(f"--repo_env=HERMETIC_PYTHON_{setting}" for setting in own),
    )


# --- toolchain --------------------------------------------------------------------------------------------------------


def toolchain(build: Build) -> Toolchain:
    """Return what compiles the wheel of a build from source."""
    release, bazel, compiler, arch = build.release, build.bazel, build.compiler, PLATFORMS[build.platform]
    rows, from_base = toolchains.table(), releases.cuda_from_base(release, build.target)
    debian = toolchains.debian_of(build.base_image)
    suite = toolchains.llvm_suite(debian.name, compiler) if debian else ""
    return Toolchain(
        packages=packages(compiler, *(tool.name for tool in releases.rows(table().host_tool, release))),
        system_packages=tuple(sorted({name for row in build.system_libs for name in row.packages})),
        requirements=python_requirements(release),
        llvm=(rows.llvm.url, suite, rows.llvm.key, rows.llvm.fingerprint) if suite else (),
        bazelisk=(rows.bazelisk.version, rows.bazelisk.sha256[arch], build.platform.partition("/")[2]),
        host_flags=(f"--host_copt={GENERIC_MARCH[arch]}", *toolchains.host_configuration(bazel, "true")),
        machine_flags=toolchains.host_configuration(bazel, "false"),
        cuda_base=f"CUDA {build.cuda}, cuDNN {build.cudnn} and {compiler}" if from_base else "",
        bolt=bolt(build, debian) if build.request.bolt else "",
        known_failures=failures.known_failures(release),
        cost=releases.compile_cost(release, arch, cuda=bool(build.cuda)),
    )


def bolt(build: Build, debian: toolchains.Distribution | None) -> str:
    """Return the package with BOLT; raises Unsupported where it is not known to work."""
    row = toolchains.table().bolt
    if build.platform != MACHINES["x86_64"]:
        raise Unsupported(f"--bolt was not tried on {build.platform}", hint="leave it out")
    if not build.compiler.startswith("clang"):
        names = [name for name in debian.compilers if name.startswith("clang")] if debian else ["clang-N"]
        hint = f"--compiler {' or '.join(names)}"
        raise Unsupported(f"--bolt needs Clang, and the plan has {build.compiler}", hint=hint)
    if debian and debian.name not in row.distributions:
        hint = f"--base debian:{' or debian:'.join(row.distributions)}"
        raise Unsupported(f"{debian.name} has no {row.package}", hint=hint)
    return row.package


def packages(compiler: str, *more: str) -> tuple[str, ...]:
    """Return Debian's packages for a compiler such as "gcc-12", for TensorFlow's own build, and `more`; sorted."""
    name, _, version = compiler.partition("-")
    compilers = {"gcc": (f"gcc-{version}", f"g++-{version}"), "clang": (f"clang-{version}", f"lld-{version}")}
    return tuple(sorted({*compilers[name], *TOOLS, *more}))


def python_requirements(release: str) -> tuple[str, ...]:
    """Return what pip installs for TensorFlow's own build, sorted. The release's constraints replace plain names."""
    hermetic = releases.rows(table().hermetic_python, release)
    constraints = releases.constraints(release, step="build")
    # Pip before 20.3 refuses a name that is given twice.
    constrained = {re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in constraints}
    names = {name for row in toolchains.table().python_package if row.hermetic or not hermetic for name in row.names}
    return tuple(sorted((names - constrained) | set(constraints)))


# --- the user's own words ---------------------------------------------------------------------------------------------

FLAG = re.compile(r"--?[\w@/][\w@/:.,+~-]*", re.ASCII)
# A compiler's flag for the machine, in a word of Bazel's; what follows -march= or -mcpu= is the CPU.
MACHINE_FLAG = re.compile(r"""(?:^|(?<=[=@,:'"]))(-m(?:(?:arch|cpu)=)?([\w.+-]+))""", re.ASCII)
# Those that no feature of ours has.
OTHER_CPU = re.compile(r"-m(?:avx10\..*|apx.*|sse4a|abm|32|x32)")
# Bazel's options with flags for the wheel's code. --host_copt is for tools that only run during the build. Bazel's C++
# toolchain reads BAZEL_COPT, BAZEL_CXXOPTS and BAZEL_CONLYOPTS (unix_cc_configure.bzl), also from --action_env.
FOR_COMPILER = ("--copt", "--cxxopt", "--conlyopt", "--per_file_copt", "--repo_env", "--action_env")
# What a builder tells Bazel after the plan's own flags.
LATER = ("--jobs", "-j", "--local_ram_resources", "--disk_cache", "--repository_cache")
# The configs of TensorFlow's .bazelrc that choose a CPU, and how; those of its releases include avx_linux.
CPU_CONFIGS = {"native_arch_linux": "-march=native", "avx_linux": "-mavx", "avx2_linux": "-mavx2"}
RELEASE_CONFIG = re.compile(r"(release|unsupported)_\w*linux\w*")


def refuse_flags(flags: tuple[str, ...]) -> None:
    """Raise UsageError for a word that is neither a flag nor its value: Bazel would take it for a target."""
    for before, flag in pairwise(("", *flags)):
        value = not flag.startswith("-") and before.startswith("-") and "=" not in before
        if not value and not FLAG.fullmatch(flag.partition("=")[0]):
            raise UsageError(f"{flag!r} is not a Bazel flag", hint="--bazel-flag=--NAME or --bazel-flag=--NAME=VALUE")
        if flag.partition("=")[0] in LATER:
            hint = "--jobs N limits processors and memory; --remote-cache URL shares results"
            raise UsageError(f"--bazel-flag={flag} has no effect: tfbuild sets it itself", hint=hint)


def refuse_another_cpu(request: Request, own: InstructionSet) -> None:
    """Raise UsageError for a flag, a config or an answer that compiles for another CPU than the plan says."""
    flags = {row.flag: row.name for row in facts.features(own.arch)} | {"-msse4": "sse4_2"}
    for word, flag, value in _machine_flags(request):
        off = flag.startswith("-mno-")
        feature = flags.get(flag.replace("-mno-", "-m", 1) if off else flag, "")
        if "=" in flag or OTHER_CPU.fullmatch(flag) or (feature and (feature in own.features) is off):
            known = "=" in flag and isa.is_known(value, own.arch)
            cpu = "host" if value == "native" else value if known else "with the features that it should have"
            raise UsageError(
                f"{word!r} compiles for another CPU than the plan, the labels and the verification say",
                hint=f"--cpu {cpu}",
            )


def _machine_flags(request: Request) -> Iterator[tuple[str, str, str]]:
    """Yield the compiler's flags for the machine that the user's words contain: the word, the flag and its value."""
    for word in " ".join((*request.bazel_flag, *request.config, *request.configure)).split():
        option, _, value = word.partition("=")
        names = RELEASE_CONFIG.sub("avx_linux", value if option == "--config" else word).split(",")
        flags = [CPU_CONFIGS.get(name, "") for name in names]
        if option in FOR_COMPILER or not option.startswith("--"):
            flags.append(word)
        for match in (match for text in flags for match in MACHINE_FLAG.finditer(text)):
            yield word, match[1], match[2]


# Answers to configure.py, and the same as Bazel's flags, by the option that gives them: the plan, the labels and the
# verification know only the option's. Flags may choose the hermetic Python, which need not be the image's.
ENV = r"(?:--(?:action|repo)_env=)?"
OPTIONS = {
    "compute-capabilities": re.compile(ENV + r"(?:TF|HERMETIC)_CUDA_COMPUTE_CAPABILITIES=(.*)"),
    "cuda": re.compile(
        ENV + r"(?:(?:LOCAL|TF)_(?:CUDA|CUDNN|NCCL)_PATHS?|CUDA_TOOLKIT_PATH|(?:TF|HERMETIC)_CUDA_VERSION)=(.*)"
    ),
    "cudnn": re.compile(ENV + r"(?:TF|HERMETIC)_CUDNN_VERSION=(.*)"),
    "compiler": re.compile(
        ENV + r"(?:CC|CXX|BAZEL_COMPILER|[A-Z]\w*_COMPILER_PATH|TF_(?:CUDA|NEED|DOWNLOAD)_CLANG)=(.*)"
    ),
    "python": re.compile(r"(?:PYTHON_BIN_PATH|(?:TF|HERMETIC)_PYTHON_VERSION)=(.*)"),
}


def refuse_settings(request: Request, release: str, answers: Iterable[str]) -> None:
    """Raise UsageError for a word that sets what an option sets, and for an answer that is none of the build's."""
    hints = {f"--config {name}": f"--cuda {match[1]}.0" for name in _configs_named(request)
             if (match := CUDA_CONFIG.fullmatch(name))}  # fmt: skip
    for word in " ".join((*request.bazel_flag, *request.configure)).split():
        for option, setting in OPTIONS.items():
            if match := setting.fullmatch(word):
                hints[word] = f"--{option} {match[1] if option == 'compute-capabilities' else 'chooses it'}"
    for word, hint in hints.items():
        raise UsageError(f"{word} sets something other than the plan and the labels say", hint=hint)
    if len(dict(text.split("=", 1) for text in request.configure)) < len(request.configure):
        raise UsageError("--configure gives two answers to one question", hint="leave one out")
    asked = {row.variable for row in table().configure}
    if unasked := [text for text in request.configure if (name := text.partition("=")[0]) in asked - {*answers}]:
        why = f"configure.py of TensorFlow {release} does not ask for {name} in this build"
        raise UsageError(f"--configure {unasked[0]} has no effect: {why}", hint="leave it out")


def _configs_named(request: Request) -> list[str]:
    """Return the configs that the user asks Bazel for."""
    return [*request.config, *re.findall(r"--config[= ](\S+)", " ".join(request.bazel_flag))]
