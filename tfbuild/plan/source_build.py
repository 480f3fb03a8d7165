"""A build from source: the tree, its Python, base, compiler and Bazel, its flags and configs, and what they note."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import Cpu, compilers, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadSource, UncertainFact, UnknownRelease, UsageError
from tfbuild.facts import base_images, releases, targets, toolchains
from tfbuild.plan import amendments, cuda_versions, failures
from tfbuild.plan import source as sources
from tfbuild.plan import wheel as wheels
from tfbuild.plan.amendments import Patch
from tfbuild.plan.build import BUILD_PYTHON, PLATFORMS, Build, Request
from tfbuild.plan.cuda_versions import CudaChoice
from tfbuild.plan.failures import Circumstances
from tfbuild.plan.gpus import capabilities, cuda_of, gpu_fields
from tfbuild.plan.rules import BASES, asked_set, choose_python, headers_word, image_fields
from tfbuild.plan.source import Source


def from_source(request: Request, target: str, place: str, host: Cpu | None) -> Build:
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
    gpus = capabilities(request, target, release)
    cuda = cuda_of(request, target, release, gpus, chosen.compiler)
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
        **gpu_fields(gpus, cuda),
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
            *headers_word(request),
        ),
        notes=(
            *(f"{row.feature} is left out: {row.reason}" for row in flags.dropped),
            *flags.notes,
            *cuda.notes,
            *failures.notes(concerned),
            *_unguarded(flags.instruction_set),
            *chosen.notes,
            *_without_cuda(request, cuda, release, target),
            *(_in_place_of(row.name, row.note, release) for row in spelled_out),
            *([f"which commit {given.tag} must be is not known: the tag is taken as it is"] if unchecked else []),
        ),
        **image_fields(request, chosen.base),
    )


def _without_cuda(request: Request, cuda: CudaChoice, release: str, target: str) -> tuple[str, ...]:
    if request.base not in BASES or not releases.cuda_from_base(release, target):
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


def _other_cuda(release: str, cuda: CudaChoice) -> tuple[str, ...]:
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
