"""How a release's tree is configured and compiled: configs, answers to configure.py, Bazel's flags, the toolchain."""

from collections.abc import Iterable

from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import table
from tfbuild.plan import failures, remote_cache
from tfbuild.plan.build import BUILD_PYTHON, PLATFORMS, Decision, Toolchain

# Host tools are compiled for any machine that may build. Only --copt has the target's features.
GENERIC = {"x86_64": "-march=x86-64", "aarch64": "-march=armv8-a"}
TOOLS = ("bzip2", "ca-certificates", "curl", "git", "patchelf", "python3", "rsync", "unzip", "xz-utils", "zip")
# Where an image with CUDA has it (up to 2.17).
CUDA_PATH = "/usr/local/cuda"


# --- configs ----------------------------------------------------------------------------------------------------------


def threading(release: str, arch: str, asked: str = "") -> str:
    """Return the runtime of oneDNN, "openmp" or "threadpool", in a build that promises it; `asked` overrides it."""
    fact = releases.threading_row(release, arch)
    runtimes = [name for name, config in (("openmp", fact.openmp), ("threadpool", fact.threadpool)) if config]
    if asked and asked not in ("openmp", "threadpool"):
        raise UsageError(f"unknown threading {asked!r}", hint="one of: openmp, threadpool")
    if asked and asked not in runtimes:
        raise Unsupported(
            f"TensorFlow {release} has no {arch} build with oneDNN on {asked}{fact.note and f': {fact.note}'}",
            hint=f"it has: {', '.join(runtimes)}",
        )
    if not asked and not fact.default:
        raise Unsupported(
            f"what oneDNN runs on in TensorFlow {release} for {arch} is not certain: {fact.source}",
            hint=" or ".join(f"--set threading={name}" for name in runtimes),
        )
    return asked or fact.default


def configs(release: str, target: str, arch: str, threading: str) -> tuple[str, ...]:
    """Return the configs that make `target`; raises Unsupported if the release may lack one."""
    row = targets.get(target)
    onednn: tuple[str, ...] = ()
    if row.onednn:
        fact = releases.threading_row(release, arch)
        onednn = (fact.openmp if threading == "openmp" else fact.threadpool,)
        # From 2.5 on x86-64 builds have oneDNN without it; 2.22's tree no longer has the config.
        if releases.config(onednn[0], release) is False and releases.row(table().onednn, release, arch).compiled:
            onednn = ()
    optional = (name for name in row.configs_unless_gone if releases.config(name, release) is not False)
    return tuple(_existing(name, release) for name in (*onednn, *row.configs, *optional))


def _existing(name: str, release: str) -> str:
    exists = releases.config(name, release)
    if exists is False:
        raise Unsupported(f"TensorFlow {release} has no --config={name}", hint=f"take {releases.another(release)}")
    if exists is None:
        older = next(version for version in releases.newest_first() if releases.config(name, version))
        raise Unsupported(
            f"whether TensorFlow {release} has --config={name} is not certain",
            hint=f"take --release {older}, or try it all the same with --target cpu --config {name}",
        )
    return name


# --- configure.py -----------------------------------------------------------------------------------------------------


def configure_env(
    release: str, target: str, *, compiler: str = "", capabilities: str = "", cuda: str = "", cudnn: str = ""
) -> tuple[tuple[str, str], ...]:
    """Return the variables that answer every question of configure.py, in the order of its questions.

    `compiler`: "clang-18", "gcc-12"; `capabilities`: "8.0,9.0"; `cuda`: "12.8.1"; the release's own where empty.
    """
    compiler = compiler or releases.compiler(release)
    program, row, own = f"/usr/bin/{compiler}", targets.get(target), releases.cuda(release)
    # Up to 2.17 configure.py looks for the library by its major version: a CUDA image may not be more precise.
    exact = own.hermetic or cudnn not in ("", own.cudnn)
    values = {
        "python": BUILD_PYTHON,
        "clang": program,
        "gcc": program,
        "cuda_path": CUDA_PATH,
        "cuda": cuda or own.version,
        "cudnn": (cudnn or own.cudnn) if exact else own.cudnn.partition(".")[0],
        "capabilities": capabilities or own.capabilities,
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


def wheel_flags(release: str, target: str, arch: str, python: str) -> tuple[str, ...]:
    """Return the Bazel flags that name the wheel and choose the hermetic Python, if the release has such flags."""
    wheel = releases.wheel(release)
    name = targets.get(target).column(wheel.cpu, wheel.gpu) if wheel.step == "bazel" else ""
    official = releases.wheel_flags(release, target, arch)
    return tuple(flag for flag in (name, *official, releases.python_flag(release, python)) if flag)


# --- toolchain --------------------------------------------------------------------------------------------------------


def toolchain(decided: Decision) -> Toolchain:
    """Return what compiles the wheel of a build from source."""
    release, bazel, compiler, arch = decided.release, decided.bazel, decided.compiler, PLATFORMS[decided.platform]
    bazelisk = toolchains.table().bazelisk
    return Toolchain(
        packages=packages(compiler, *releases.host_tools(release)),
        system_packages=tuple(sorted({name for row in decided.system_libs for name in row.packages})),
        requirements=toolchains.python_requirements(release),
        llvm=_llvm(decided.base_image, compiler),
        bazelisk=(bazelisk.version, bazelisk.sha256[arch], decided.platform.partition("/")[2]),
        bazel_sha256=toolchains.bazel_sha256(bazel, arch),
        host_flags=(f"--host_copt={GENERIC[arch]}", *toolchains.host_apart_flags(bazel)),
        profile_flags=toolchains.profile_flags(bazel),
        machine_flags=toolchains.compile_once_flags(bazel),
        silo=remote_cache.silo(bazel, release, decided.instruction_set.name),
        cuda_base=_cuda_base(decided),
        known_failures=failures.known(release),
    )


def packages(compiler: str, *more: str) -> tuple[str, ...]:
    """Return Debian's packages for a compiler such as "gcc-12" and for TensorFlow's own build, and `more`, sorted."""
    name, _, version = compiler.partition("-")
    compilers = {"gcc": (f"gcc-{version}", f"g++-{version}"), "clang": (f"clang-{version}", f"lld-{version}")}
    return tuple(sorted({*compilers[name], *TOOLS, *more}))


def _llvm(base_image: str, compiler: str) -> tuple[str, ...]:
    llvm, base = toolchains.table().llvm, toolchains.find_base(base_image)
    suite = toolchains.llvm_suite(base.distribution, compiler) if base else ""
    return (llvm.url, suite, llvm.key, llvm.fingerprint) if suite else ()


def _cuda_base(decided: Decision) -> str:
    if not (decided.asked.cuda_path or releases.cuda_from_base(decided.release, decided.target)):
        return ""
    compiler = decided.asked.compiler or releases.compiler(decided.release)
    return f"CUDA {decided.cuda}, cuDNN {decided.cudnn} and {compiler}"
