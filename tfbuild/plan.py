"""Decides what to build: a request, the facts and a CPU become a `Build`, or a refusal. Nothing here acts.

Read this first. `select` is the whole decision; each rule that refuses is a function of its own below it.
"""

import hashlib
import platform as host_platform
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tfbuild import (
    amendments,
    base_images,
    capabilities,
    compilers,
    cuda_versions,
    facts,
    failures,
    isa,
    releases,
    toolchains,
    wheels,
)
from tfbuild import source as sources
from tfbuild.amendments import Override, Patch, SystemLibrary
from tfbuild.capabilities import Capability
from tfbuild.cpu import ARCHITECTURES, Cpu
from tfbuild.cuda_versions import Choice
from tfbuild.errors import (
    BadSource,
    MklNeedsLinux,
    MklWithCuda,
    UncertainFact,
    UnknownCpu,
    UnknownPython,
    UnknownRelease,
    UsageError,
)
from tfbuild.facts import targets
from tfbuild.failures import Circumstances, Failure
from tfbuild.isa import InstructionSet
from tfbuild.source import Source
from tfbuild.wheels import Wheel

# --base values that mean the row of facts/images.toml; everything else names an image that nobody has looked into.
BASES = ("auto", "bootstrap", "registry")
# What only a compile can heed.
COMPILE_OPTIONS = (
    "compiler",
    "prefer_vector_width",
    "threading",
    "compute_capabilities",
    "cuda",
    "cudnn",
    "bazel",
    "config",
    "bazel_flag",
    "source",
    "source_sha256",
    "patch",
    "override_repository",
    "system_lib",
    "configure",
    "without_fix",
)
BAZEL = re.compile(r"\d+\.\d+(\.\d+)?(rc\d+)?")
IMAGE = re.compile(r"[\w./:@-]+")
CONFIG = re.compile(r"[\w.+,-]+")
# --define=enable_mkl=false and TF_NEED_CUDA=0 ask for nothing.
SWITCHED_OFF = re.compile(r"=(0|false|no)$")
MACHINES = isa.MACHINES
PLATFORMS = {platform: arch for arch, platform in MACHINES.items()}
# A virtual environment in the builder, with what TensorFlow's own build imports.
BUILD_PYTHON = "/opt/build/bin/python3"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, word for word; empty means "choose for me"."""

    target: str = targets.default()
    release: str = ""
    python: str = ""
    cpu: str = ""
    cpuinfo: str = ""
    compiler: str = ""
    prefer_vector_width: str = ""
    platform: str = ""
    wheel: str = ""
    threading: str = ""
    compute_capabilities: str = ""
    cuda: str = ""
    cudnn: str = ""
    bazel: str = ""
    base: str = "auto"
    config: tuple[str, ...] = ()
    bazel_flag: tuple[str, ...] = ()
    with_headers: bool = False
    source: str = ""
    source_sha256: str = ""
    patch: tuple[str, ...] = ()
    override_repository: tuple[str, ...] = ()
    system_lib: tuple[str, ...] = ()
    configure: tuple[str, ...] = ()
    without_fix: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image, with everything resolved. The instruction set's features are what a CPU must have to run it.

    Empty `bazel`, `bazel_target`, `configs` and `configure_env`: nothing is compiled. `copts` and `compiler` are then
    what the wheel was compiled with, as far as that is known.
    """

    release: str
    python: str
    target: str
    platform: str
    instruction_set: InstructionSet
    wheel: Wheel
    base_image: str
    base_distribution: str
    with_headers: bool
    compiler: str = ""
    copts: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    bazel: str = ""
    bazel_target: str = ""
    bazel_flags: tuple[str, ...] = ()
    configure_env: tuple[tuple[str, str], ...] = ()
    threading: str = ""
    # Of the kernels for GPUs, as the release spells them; () where the target has no CUDA.
    compute_capabilities: tuple[str, ...] = ()
    # What it is compiled with; "" where the target has no CUDA.
    cuda: str = ""
    cudnn: str = ""
    source: Source | None = None
    patches: tuple[Patch, ...] = ()
    overrides: tuple[Override, ...] = ()
    system_libs: tuple[SystemLibrary, ...] = ()
    # Of known failures, applied to the tree and to Bazel's flags.
    fixes: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    # What sets it apart from the default build of the same release, target, Python and instruction set.
    variant: tuple[str, ...] = ()
    asked: Request = Request()

    @property
    def id(self) -> str:
        """The image's tag, the report's key and the name under dockerfiles/: 2.21.0-mkl-py3.11-f16c."""
        parts = (self.release, self.target, f"py{self.python}", self.instruction_set.name, *self.variant)
        return "-".join(parts)

    def to_json(self) -> dict[str, object]:
        """The plan's documented JSON: every field, with the instruction set as its name and features."""
        shown = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "asked"}
        return (
            {"id": self.id}
            | shown
            | {
                "instruction_set": self.instruction_set.name,
                "level": self.instruction_set.level,
                "features": list(self.instruction_set.features),
                "configure_env": dict(self.configure_env),
                "bazel": self.bazel or None,
                "bazel_target": self.bazel_target or None,
                "wheel": self.wheel.to_json(),
                "source": self.source.to_json() if self.source else None,
                "patches": [row.to_json() for row in self.patches],
                "overrides": [row.to_json() for row in self.overrides],
                "system_libs": [row.to_json() for row in self.system_libs],
                "fixes": [row.id for row in self.fixes],
            }
        )


def select(request: Request, host: Cpu | None) -> Build:
    """The build that answers `request`; `host` is the CPU that "host" means (None where it cannot be read).

    Raises the error of the first rule that refuses, each with a hint (tfbuild.errors).
    """
    refuse_unreadable(request)
    target = refuse_exclusive(request)
    place = choose_platform(request, target)
    way = {"official": _official, "": _from_source, "source": _from_source}.get(request.wheel, _from_file)
    return way(request, target, place, host)


def refuse_unreadable(request: Request) -> None:
    """UsageError for values that are no words: they go into Dockerfiles and shell."""
    texts = [text for field in fields(request) for text in _texts(getattr(request, field.name))]
    if bad := next((text for text in texts if not text.isprintable()), None):
        raise UsageError(f"an option's value has control characters in it: {bad!r}", hint="one line of plain text")
    if request.bazel and not BAZEL.fullmatch(request.bazel):
        raise UsageError(f"{request.bazel!r} is no Bazel version", hint="--bazel 7.4.1")
    if not IMAGE.fullmatch(request.base):
        raise UsageError(
            f"{request.base!r} is no image's name", hint=f"--base {', '.join(BASES)} or NAME[:TAG][@DIGEST]"
        )
    if bad := next((name for name in request.config if not CONFIG.fullmatch(name)), None):
        raise UsageError(f"{bad!r} is no name of a Bazel config", hint="--config NAME, again for more")


def _texts(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()


def refuse_exclusive(request: Request) -> str:
    """The one target asked for. Two that exclude each other are refused in every spelling of the wish.

    Raises MklWithCuda for those, named after the first such pair, and UsageError for an unknown target.
    """
    asked: list[str] = re.findall(r"[^\s,+]+", request.target.lower())
    flags = (*request.bazel_flag, *request.configure)
    words = [*asked, *request.config, *(word for flag in flags for word in flag.split())]
    wished = tuple(word.lower() for word in words if not SWITCHED_OFF.search(word.lower()))
    for row in targets.exclusions(wished):
        raise MklWithCuda(row.reason, hint=f"choose {' or '.join(f'--target {name}' for name in row.targets)}")
    unknown = [name for name in asked if targets.find(name) is None]
    if not unknown and len(asked) != 1:
        unknown = [request.target]
    return targets.get([*unknown, *asked][0]).name


def choose_platform(request: Request, target: str = "") -> str:
    """The platform asked for, else this machine's. `target`: may be for Linux only; images of all are Linux ones."""
    if request.platform in PLATFORMS:
        return request.platform
    asked = request.platform or f"{host_platform.system().lower()}/{host_platform.machine().lower()}"
    system, _, machine = asked.partition("/")
    if target and system != "linux" and (reason := targets.get(target).linux_only):
        raise MklNeedsLinux(
            f"{target} is for Linux only, and this is {system!r}: {reason}",
            hint=f"build the Linux image: --platform {MACHINES.get(ARCHITECTURES.get(machine, ''), 'linux/amd64')}",
        )
    arch = ARCHITECTURES.get(machine, "")
    if request.platform and (system != "linux" or not arch):
        raise UsageError(f"unknown platform {asked!r}", hint=f"one of: {', '.join(PLATFORMS)}")
    if not arch:
        raise UnknownCpu(
            f"no TensorFlow image can be built for a {machine!r} CPU", hint="name one: --platform linux/amd64"
        )
    return MACHINES[arch]


# --- the three ways to a wheel -------------------------------------------------------------------------------------


def _official(request: Request, target: str, place: str, host: Cpu | None) -> Build:
    """The wheel from PyPI. It has the instruction set that it was compiled for, never the host's."""
    arch = PLATFORMS[place]
    refuse_compile_options(request)
    release = _official_release(request, arch)
    row = releases.official_wheel(release, arch)
    python = choose_python(request, release, row.pythons)
    if targets.get(target).onednn and not row.onednn:
        raise UnknownRelease(
            f"the official {arch} wheel of {release} has no oneDNN in it",
            hint="take a newer release, or build this one from source: leave out --wheel official",
        )
    compiled = isa.instruction_set(row.features, arch)
    asked = asked_set(request, arch, host)
    refuse_unfit(compiled, asked, request)
    return Build(
        release=release,
        python=python,
        target=target,
        platform=place,
        instruction_set=compiled,
        compiler=row.compiler,
        copts=tuple(f"--copt={flag}" for flag in row.flags),
        threading="threadpool",
        **_gpu_fields(_capabilities(request, target, release), _cuda(request, target, release)),
        wheel=wheels.official(row.requirement(release, target), releases.constraints(release)),
        variant=_headers(request),
        notes=_source_would_add(compiled, asked, release),
        **_image(request, base_images.for_wheel(python) if request.base in BASES else None),
    )


def _from_file(request: Request, target: str, place: str, host: Cpu | None) -> Build:
    """A wheel file. Its name, tags and contents must be the plan's; its own guard says what it was compiled for."""
    refuse_compile_options(request)
    file = wheels.read(Path(request.wheel), target)
    release = releases.find(request.release or file.version)
    python = request.python or file.python
    wheels.refuse_misfit(file, release=release, python=python, arch=PLATFORMS[place])
    wheel = wheels.from_file(file, releases.constraints(release))
    compiled = wheels.instruction_set(file, release, claimed=asked_set(request, PLATFORMS[place], host))
    return Build(
        release=release,
        python=python,
        target=target,
        platform=place,
        instruction_set=compiled,
        threading=wheels.threading(file),
        wheel=wheel,
        variant=(wheel.sha256[:8], *_headers(request)),
        **_image(request, base_images.for_wheel(python) if request.base in BASES else None),
    )


def _from_source(request: Request, target: str, place: str, host: Cpu | None) -> Build:
    """A compile by Bazel, for the CPU asked for (default: this machine's)."""
    arch = PLATFORMS[place]
    asked = asked_set(request, arch, host) or asked_set(replace(request, cpu="host"), arch, host)
    assert asked is not None  # "host" is asked for where nothing else is

    given = sources.read(Path(request.source), request.source_sha256) if request.source else None
    release = _release_of(given, request.release) if given else request.release

    def attempt(release: str) -> Build:
        return _compiled(request, target, place, release, asked, given or sources.tag(release))

    return attempt(releases.find(release) if release else releases.newest(attempt))


def _release_of(given: Source, asked: str) -> str:
    """The release that a source is of: what was asked for, else what a tree says itself; they must agree."""
    found = sources.version(given)
    if found and asked and releases.find(asked) != found:
        raise BadSource(
            f"{given.path} is TensorFlow {found}, and --release says {asked}", hint=f"leave out --release {asked}"
        )
    if not found and not asked:
        raise UsageError(f"{given.path} does not say which release it is", hint="name it: --release 2.20.0")
    return asked or found


def _compiled(request: Request, target: str, place: str, release: str, asked: InstructionSet, given: Source) -> Build:
    arch = PLATFORMS[place]
    onednn = targets.get(target).onednn
    if request.threading and not onednn:
        raise UsageError(
            f"--threading is oneDNN's, and --target {target} promises none", hint=targets.options("onednn")
        )
    threading = releases.threading(release, arch, request.threading) if onednn else "threadpool"
    configs = releases.configs(release, target, arch, threading)
    spelled_out = releases.spelled_out(release, target, arch, threading)
    bazel = request.bazel or toolchains.bazel(release, arch)
    chosen = _choose(request, release)
    python = chosen.python
    gpus = _capabilities(request, target, release)
    cuda = _cuda(request, target, release, gpus, chosen.compiler)
    flags = isa.flags(
        asked, chosen.compiler, release=release, prefer_vector_width=request.prefer_vector_width, named=request.cpu
    )
    program = f"/usr/bin/{flags.compiler}"
    places = releases.Places(python=BUILD_PYTHON, clang=program, gcc=program)
    configure_env = releases.configure_env(
        release,
        target,
        compiler=flags.compiler,
        places=places,
        capabilities=",".join(gpu.code for gpu in gpus),
        cuda=cuda.cuda,
        cudnn=cuda.cudnn,
    )
    unchecked = given.kind == "git" and not given.commit
    libraries = tuple(amendments.system_library(text) for text in request.system_lib)
    amendments.refuse_repeated("--system-lib", [row.name for row in libraries])
    overrides = tuple(amendments.override(text) for text in request.override_repository)
    amendments.refuse_repeated("--override-repository", [row.name for row in overrides])
    patches = tuple(amendments.patch(text) for text in request.patch)
    made = Circumstances(
        release=release,
        target=target,
        compiler=flags.compiler,
        features=flags.instruction_set.features,
        base=base.debian if (base := chosen.base or base_images.find(request.base)) else None,
    )
    concerned = failures.concerning(made, request.without_fix)
    fixes = tuple(row for row in concerned if row.fixed)
    return Build(
        release=release,
        python=python,
        target=target,
        platform=place,
        instruction_set=flags.instruction_set,
        compiler=flags.compiler,
        copts=flags.copts,
        configs=tuple(dict.fromkeys((*configs, *cuda.configs, *request.config))),
        bazel=bazel,
        bazel_target=releases.wheel_target(release),
        bazel_flags=(
            *_wheel_flags(release, target, python),
            *releases.repo_env(release, configure_env),
            *(flag for row in spelled_out for flag in row.expands),
            *(flag for row in fixes for flag in row.flags),
            *request.bazel_flag,
        ),
        configure_env=amendments.configured(
            configure_env, libraries, tuple(amendments.configure_value(text) for text in request.configure)
        ),
        threading=threading,
        **_gpu_fields(gpus, cuda),
        source=given,
        patches=patches,
        overrides=overrides,
        system_libs=libraries,
        fixes=fixes,
        wheel=wheels.source(releases.constraints(release)),
        variant=(
            *_as_official(flags.instruction_set, release),
            *_choices(request, given, patches, chosen, release, target, arch),
            *_other_cuda(release, cuda),
            *_headers(request),
        ),
        notes=(
            *(f"{row.feature} is left out: {row.reason}" for row in flags.dropped),
            *flags.notes,
            *cuda.notes,
            *failures.notes(concerned),
            *_unguarded(flags.instruction_set),
            *chosen.notes,
            *_without_cuda(request, cuda, release),
            *(_in_place_of(row.name, row.note, release) for row in spelled_out),
            *([f"which commit {given.tag} must be is not known: the tag is taken as it is"] if unchecked else []),
        ),
        **_image(request, chosen.base),
    )


def _without_cuda(request: Request, cuda: Choice, release: str) -> tuple[str, ...]:
    """Up to 2.17 a compile takes CUDA from the builder: only an image that the user names can have it."""
    if not cuda.cuda or request.base not in BASES or releases.cuda(release).hermetic:
        return ()
    return (f"no known base image has CUDA: name one with CUDA {cuda.cuda} and cuDNN {cuda.cudnn} by --base",)


def _in_place_of(config: str, note: str, release: str) -> str:
    return (
        f"{base_images.NOT_CERTAIN}whether TensorFlow {release} has --config={config} ({note}); "
        "the flags that it stood for are passed instead"
    )


def _unguarded(planned: InstructionSet) -> tuple[str, ...]:
    unprinted = [name for name in planned.features if not facts.feature(name).cpuinfo]
    if not unprinted:
        return ()
    return (
        f"the image cannot look for {' '.join(unprinted)} before it starts: no kernel prints that in /proc/cpuinfo",
    )


def _headers(request: Request) -> tuple[str, ...]:
    return ("headers",) if request.with_headers else ()


def _capabilities(request: Request, target: str, release: str) -> tuple[Capability, ...]:
    """Those asked for, else the ones that the official wheels are made for; none where nothing is compiled for GPUs."""
    for_cuda = targets.get(target).cuda
    if request.compute_capabilities and not for_cuda:
        raise UsageError(
            f"--compute-capabilities are GPUs', and --target {target} has none", hint=targets.options("cuda")
        )
    if not for_cuda:
        return ()
    own = releases.cuda(release).capabilities
    return capabilities.parse(request.compute_capabilities or own, named="_" in own)


def _cuda(request: Request, target: str, release: str, gpus: tuple[Capability, ...] = (), compiler: str = "") -> Choice:
    """The CUDA that it is compiled with; an official wheel has the release's own, another target none."""
    if not targets.get(target).cuda:
        if request.cuda or request.cudnn:
            name = "cuda" if request.cuda else "cudnn"
            raise UsageError(f"--{name} is for GPUs, and --target {target} is not", hint=targets.options("cuda"))
        return Choice(cuda="", cudnn="", configs=(), notes=())
    if not compiler:
        return cuda_versions.own(release)
    return cuda_versions.choose(release, gpus, compiler=compiler, cuda=request.cuda, cudnn=request.cudnn)


def _gpu_fields(gpus: tuple[Capability, ...], cuda: Choice) -> dict[str, Any]:
    return {"compute_capabilities": tuple(gpu.name for gpu in gpus), "cuda": cuda.cuda, "cudnn": cuda.cudnn}


def _other_cuda(release: str, cuda: Choice) -> tuple[str, ...]:
    """Words for a CUDA and a cuDNN that are not the release's own."""
    if not cuda.cuda:
        return ()
    own = cuda_versions.own(release)
    words = (("cuda", cuda.cuda, own.cuda), ("cudnn", cuda.cudnn, own.cudnn))
    return tuple(f"{name}{chosen}" for name, chosen, usual in words if chosen != usual)


def _choices(
    request: Request,
    given: Source,
    patches: tuple[Patch, ...],
    chosen: base_images.BaseChoice,
    release: str,
    target: str,
    arch: str,
) -> tuple[str, ...]:
    """Words for what the user chose otherwise than the release does; free text becomes a fingerprint."""
    bazel = _own(lambda: toolchains.bazel(release, arch))
    threading = _own(lambda: releases.threading(release, arch) if targets.get(target).onednn else "")
    gpus = releases.cuda(release).capabilities if targets.get(target).cuda else ""
    free = (
        request.bazel if request.bazel != bazel else "",
        request.compute_capabilities if request.compute_capabilities != gpus else "",
        *request.config,
        *request.bazel_flag,
        given.sha256,
        *(patch.sha256 for patch in patches),
        *(text.partition("=")[0] for text in request.override_repository),
        *request.system_lib,
        *request.configure,
        *request.without_fix,
    )
    text = " ".join(free).strip()
    default = _choose(replace(request, python=chosen.python, compiler=""), release)
    words = (
        request.threading if request.threading != threading else "",
        chosen.compiler if chosen.compiler != default.compiler else "",
        f"prefer{request.prefer_vector_width}" if request.prefer_vector_width else "",
        "tree" if given.kind == "tree" else "",
        hashlib.sha256(text.encode()).hexdigest()[:8] if text else "",
    )
    return tuple(word for word in words if word)


def _own(find: Callable[[], str]) -> str:
    """What the release itself has; "" where that is not certain, or nothing: then every choice differs from it."""
    try:
        return find()
    except (UncertainFact, UnknownRelease):
        return ""


def _as_official(compiled: InstructionSet, release: str) -> tuple[str, ...]:
    """A word that tells a compile from the official wheel, where both have the same instruction set."""
    try:
        official = releases.official_wheel(release, compiled.arch)
    except UnknownRelease:
        return ()
    same = isa.closure(official.features) == frozenset(compiled.features)
    return ("source",) if same else ()


def _choose(request: Request, release: str) -> base_images.BaseChoice:
    """The Python, base and compiler. Of a base that the user named nothing is known: the compiler may be there."""
    compiler = "-".join(map(str, compilers.find(request.compiler))) if request.compiler else ""
    fitting = releases.pythons(release)
    if request.base not in BASES:
        python = choose_python(request, release, fitting)
        return base_images.BaseChoice(python=python, compiler=compiler or releases.compiler(release))
    wanted = (choose_python(request, release, fitting),) if request.python else fitting[::-1]
    return base_images.choose(release, wanted, compiler, bootstrap=request.base == "bootstrap")


def _wheel_flags(release: str, target: str, python: str) -> tuple[str, ...]:
    """The Bazel flags that name the wheel and choose the hermetic Python, where the release takes them from Bazel."""
    made = releases.wheel(release)
    name = targets.get(target).column(made.cpu, made.gpu)
    return tuple(
        flag
        for flag in (name if made.step == "bazel" else "", *made.flags, releases.python_flag(release, python))
        if flag
    )


# --- the rules they share --------------------------------------------------------------------------------------------


def _official_release(request: Request, arch: str) -> str:
    if request.release:
        return releases.find(request.release)
    return releases.newest_official(arch, request.python or base_images.default().python)


def refuse_compile_options(request: Request) -> None:
    """Options that only a build from source can heed are refused where nothing is compiled, never ignored."""
    used = [f"--{name.replace('_', '-')}" for name in COMPILE_OPTIONS if getattr(request, name)]
    if used:
        raise UsageError(
            f"{', '.join(used)}: for a build from source only; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )


def choose_python(request: Request, release: str, fitting: tuple[str, ...]) -> str:
    """The Python asked for, else the default base's where the release has it, else the newest that the release has."""
    if not request.python:
        default = base_images.default().python
        return default if default in fitting else fitting[-1]
    if request.python in fitting:
        return request.python
    raise UnknownPython(
        f"TensorFlow {release} and Python {request.python!r} do not go together", hint=f"one of: {', '.join(fitting)}"
    )


def asked_set(request: Request, arch: str, host: Cpu | None) -> InstructionSet | None:
    """The instruction set of --cpu (a --cpuinfo alone means its "host"), or None where nothing was asked for."""
    wanted = request.cpu or ("host" if request.cpuinfo else "")
    if not wanted:
        return None
    if host is not None and request.cpuinfo:
        isa.same_architecture(host, arch, request.cpuinfo)
    if host is not None and wanted == "host" and host.arch != arch:
        asked, own = MACHINES[arch], MACHINES[host.arch]
        raise UnknownCpu(
            f"this host's CPU is {host.arch}, and the platform asked for is {asked}",
            hint=f"name a CPU of {asked}: --cpu {facts.levels(arch)[-1].name}; or --platform {own}",
        )
    return isa.resolve(wanted, arch=arch, host=host)


def refuse_unfit(compiled: InstructionSet, asked: InstructionSet | None, request: Request) -> None:
    """The official wheel for a CPU that cannot run it."""
    lacking = sorted(set(compiled.features) - set(asked.features)) if asked is not None else []
    if lacking:
        raise UnknownCpu(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
        )


def _source_would_add(compiled: InstructionSet, wanted: InstructionSet | None, release: str) -> tuple[str, ...]:
    unused = releases.guard_spelling(release, set(wanted.features) - set(compiled.features)) if wanted else ()
    if not unused:
        return ()
    return (f"the official wheel is compiled for {compiled.name}; a build from source would add {' '.join(unused)}",)


def unused_by_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """What TensorFlow's own message names at start: in the CPU, known to its guard, not compiled into the wheel.

    In TensorFlow's names and order, for the newest release that has an official wheel for this architecture.
    """
    release = releases.newest_official(cpu.arch, base_images.default().python)
    compiled = isa.closure(releases.official_wheel(release, cpu.arch).features)
    return releases.guard_spelling(release, set(cpu.features) - compiled)


def _image(request: Request, base: base_images.BaseImage | None) -> dict[str, Any]:
    """The fields that say what the image stands on, the same for every way to a wheel; no `base`: the user's own."""
    return {
        "base_image": base.image if base is not None else request.base,
        "base_distribution": base.bootstrap if base is not None else "",
        "with_headers": request.with_headers,
        "asked": request,
    }
