"""Decide what to build: a request, the facts and a CPU become a `Build`, or a refusal. Nothing here acts.

Start reading here. `select` chooses between the three kinds of wheels; `_compile` is the whole decision about a
compile, in the order in which refusals are reported. The rules that refuse are functions of the modules that it calls.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tfbuild import facts
from tfbuild.cpu import Cpu, compilers, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import release_table, releases, targets, toolchains
from tfbuild.facts.toolchains import BaseImage
from tfbuild.plan import configuration, cuda, failures, rules, wheel
from tfbuild.plan import source as sources
from tfbuild.plan import tree as source_tree
from tfbuild.plan.build import MACHINES, PLATFORMS, Build, Wheel
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import NOT_CERTAIN, choose_python, find_release, requested_set
from tfbuild.plan.source import Source
from tfbuild.plan.tree import TreeFacts
from tfbuild.util import options

ONEDNN_IN_ALL = "every x86-64 build of this release has oneDNN on the thread pool, without a --config"
NO_CUDA = "no known base image has CUDA: name one with the CUDA of this wheel by --base"


def select(request: Request, host: Cpu | None, machine: tuple[str, str] | None = None) -> Build:
    """Return the build for `request`. `host` is the CPU that "host" means (None if it cannot be read).

    `machine`: Debian release (bookworm) and glibc of the machine that compiles without a container. Raises the
    error of the first rule that refuses, with a hint (tfbuild.errors).
    """
    options.refuse_invalid(request)
    target = rules.refuse_exclusive(request)
    platform = rules.choose_platform(request, target)
    if request.wheel in ("", "source"):
        build = _from_source(request, target, platform, host, machine)
    elif used := options.given_to_compile(request):
        raise UsageError(
            f"{', '.join(used)}: only for builds from source; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )
    else:
        build = (_official if request.wheel == "official" else _from_file)(request, target, platform, host)
    if rules.named_architecture(request):
        note = f"planned for {platform}, the platform of {request.cpu}; this machine has another"
        build = replace(build, notes=(note, *build.notes))
    if request.base not in BASES and not (request.python or toolchains.python_of(request.base)):
        note = f"{NOT_CERTAIN}whether {request.base} has Python {build.python}; --python names another"
        build = replace(build, notes=(*build.notes, note))
    return build


def _image(request: Request, base: BaseImage | None, *variant: str) -> dict[str, Any]:
    """Return the fields that every kind of wheel has alike. `base` is None if the user named one, or there is none."""
    return {
        "base_image": base.image if base is not None else request.base if request.base not in BASES else "",
        "base_distribution": base.bootstrap if base is not None else "",
        "with_headers": request.with_headers,
        "variant": (*variant, *_fingerprint(request), *(["headers"] if request.with_headers else [])),
        "request": request,
    }


# --- a compile --------------------------------------------------------------------------------------------------------


def _from_source(
    request: Request, target: str, platform: str, host: Cpu | None, machine: tuple[str, str] | None
) -> Build:
    """Plan a compile by Bazel for the requested CPU (default: this machine's)."""
    arch = PLATFORMS[platform]
    wanted = requested_set(request, arch, host)
    configuration.refuse_flags(request.bazel_flag)
    if request.source_sha256 and not request.source:
        raise UsageError("--source-sha256 is the digest of an archive", hint="name the archive with --source")
    plan = partial(_compile, request, target, arch, wanted, machine)
    if request.source:
        source = sources.from_path(Path(request.source), request.source_sha256)
        tree = source_tree.read_folder(source.path) if source.kind == "tree" and source.path else None
        release = _release_of(source, tree.version if tree else "", request.release)
        differences = tuple(source_tree.differences(tree, release)) if tree else ()
        with release_table.using(source_tree.extended(() if releases.known(release) else differences, release)):
            build = plan(release, source, tree)
            return replace(build, notes=(*build.notes, *source_tree.remarks(differences, release))) if tree else build
    if request.release:
        return plan(find_release(request.release))
    build, refusal = rules.newest_release(plan)
    return replace(build, notes=(f"{build.release} is taken: {refusal}", *build.notes)) if refusal else build


def _release_of(source: Source, version: str, requested: str) -> str:
    """Return the requested release, or `version`, which the source says; they must agree."""
    newer = source.kind == "tree"
    version = re.sub(r"(?:\.post\d+)?(?:\+.*)?$", "", version)  # a fork's 2.21.0+rocm or 2.21.0.post1
    if version and requested and find_release(requested, newer=newer) != find_release(version, newer=newer):
        raise BadInput(
            f"{source.path} is TensorFlow {version}, and --release says {requested}",
            hint=f"leave out --release {requested}",
        )
    if not version and not requested:
        raise UsageError(f"{source.path} does not say which release it is", hint="name it: --release 2.20.0")
    return find_release(version or requested, newer=newer)


def _compile(
    request: Request,
    target: str,
    arch: str,
    wanted: InstructionSet,
    machine: tuple[str, str] | None,
    release: str,
    source: Source | None = None,
    tree: TreeFacts | None = None,
) -> Build:
    """Decide about a compile: each paragraph takes what those before it have decided."""
    threading = configuration.requested_threading(request, target, release, arch)
    configs = configuration.configs(release, target, arch, threading)

    own_bazel = sources.own_bazel(request.bazel)
    bazel = request.bazel.partition("=")[0] or releases.bazel(release)
    usual_bazel = (tree.bazelversion if tree else "") or releases.bazel(release)

    gpus = cuda.capabilities(request, target, release)
    version = cuda.cuda_version(release, gpus, request.cuda) if gpus else ""
    cudnn = cuda.cudnn_version(release, version, request.cudnn) if gpus else ""
    known = partial(failures.concerning, release, target=target, arch=arch, gpus=gpus, nvcc=cuda.NVCC in request.config)
    debian, glibc = (toolchains.distribution(machine[0]), machine[1]) if machine else (None, "")
    likely = partial(known, bazel=bazel, cuda=version, glibc=glibc)

    # A machine's own compilers and Pythons never change the plan: what it lacks, it is asked for.
    python, compiler, base, base_notes = rules.choose_builder(
        request,
        release,
        lambda name, system: likely(compiler=name, debian=debian if machine else system, bazel=""),
        here=machine is not None,
    )
    base = None if machine else base

    flags = compilers.flags(wanted, compiler, release=release, prefer_vector_width=request.prefer_vector_width)
    configuration.refuse_another_cpu(request, flags.instruction_set)

    libraries = tuple(sources.system_library(text, release) for text in dict.fromkeys(request.system_lib))
    overrides = tuple(sources.override(text, release) for text in request.override_repository)
    if len({row.name for row in overrides}) < len(overrides):
        raise UsageError("--override-repository names a repository twice", hint="once is enough")
    archive = sources.python_archive(request.hermetic_python, release) if request.hermetic_python else None
    patches = tuple(sources.patch(text) for text in request.patch)

    debian = debian if machine else base.debian if base else toolchains.debian_of(request.base)
    features = flags.instruction_set.features
    expected = failures.left_out(likely(compiler=compiler, debian=debian, features=features), request.without_fix)
    fixes = tuple(row for row in expected if row.fixed)

    if releases.cuda_from_base(release, target):
        cuda.refuse_base(request, version, cudnn)
    answers = dict(configuration.configure_env(release, target, compiler, gpus, version, cudnn))
    configuration.refuse_settings(request, release, answers)
    libs = {"TF_SYSTEM_LIBS": ",".join(sorted({row.name for row in libraries}))} if libraries else {}
    answers |= libs | dict(text.partition("=")[::2] for text in request.configure)
    fact = releases.get(release)
    source = source or Source(kind="git", tag=fact.tag, commit=fact.commit)
    build = Build(
        release=release,
        python=python,
        target=target,
        platform=MACHINES[arch],
        instruction_set=flags.instruction_set,
        compiler=compiler,
        copts=flags.copts,
        configs=tuple(dict.fromkeys((*configs, *cuda.nvcc_config(release, gpus, compiler), *request.config))),
        bazel=bazel,
        own_bazel=own_bazel,
        bazel_target=releases.wheel(release).target,
        bazel_flags=(
            *configuration.wheel_flags(release, target, arch, python, archive),
            *configuration.repo_env(release, answers.items()),
            *(flag for row in fixes for flag in row.flags),
            *([toolchains.table().bolt.flag] if request.bolt else []),
            *request.bazel_flag,
        ),
        configure_env=tuple(answers.items()),
        threading=threading,
        compute_capabilities=tuple(gpu.name for gpu in gpus),
        cuda=version,
        cudnn=cudnn,
        source=source,
        patches=patches,
        overrides=overrides,
        hermetic_python=archive,
        system_libs=libraries,
        fixes=fixes,
        wheel=Wheel(kind="source", requirement="", constraints=releases.constraints(release, arch, features)),
        **_image(request, base),
    )
    return replace(
        build,
        toolchain=configuration.toolchain(build),
        variant=_variant(build),
        notes=(
            *(f"{name} is left out: {reason}" for name, reason in flags.dropped),
            *rules.cpu_notes(request, arch),
            *([ONEDNN_IN_ALL] if targets.get(target).onednn and not configs else []),
            *(cuda.cuda_notes(release, gpus, compiler, version) if version else ()),
            *_about_bazel(build, usual_bazel),
            *failures.failure_notes(expected, glibc or (debian.glibc if debian else "")),
            *(
                f"the entry point cannot check for {name}: no kernel lists it in /proc/cpuinfo"
                for name in features
                if not facts.feature(name).cpuinfo
            ),
            *base_notes,
            *_about_places(build),
        ),
    )


# --- how a build differs from the default one: its identifier's end ---------------------------------------------------


def _variant(build: Build) -> tuple[str, ...]:
    """Return words for what differs from the default build; options that have no word become a fingerprint."""
    request, release, target, arch = build.request, build.release, build.target, build.instruction_set.arch
    bazel = releases.bazel(release)
    threading = configuration.threading(release, arch) if targets.get(target).onednn else ""
    known = partial(failures.concerning, release, target=target, arch=arch, gpus=build.gpus, cuda=build.cuda)
    base = "auto" if request.base in BASES else request.base
    usual = replace(request, python=build.python, compiler="", base=base)
    _, compiler, *_ = rules.choose_builder(usual, release, lambda name, debian: known(compiler=name, debian=debian))
    own = releases.cuda(release) if build.cuda else None
    capabilities = own.capabilities if own else ""
    # The identifier tells the two apart where the official wheel has the same instruction set.
    official = facts.closure(releases.official_wheel(release, arch).features)
    differences = (
        "source" if official == frozenset(build.instruction_set.features) else "",
        request.threading if request.threading != threading else "",
        build.compiler if build.compiler != compiler else "",
        f"prefer{request.prefer_vector_width}" if request.prefer_vector_width else "",
        "tree" if build.source and build.source.kind == "tree" else "",
        *_fingerprint(
            request,
            bazel=f"{build.bazel}=" if build.own_bazel else request.bazel if request.bazel != bazel else "",
            compute_capabilities=request.compute_capabilities if request.compute_capabilities != capabilities else "",
            source=build.source.sha256 if build.source else "",
            patch=tuple(patch.sha256 for patch in build.patches),
            hermetic_python=build.hermetic_python.sha256 if build.hermetic_python else "",
            override_repository=tuple(f"{row.name}={row.sha256}" for row in build.overrides),
        ),
        f"cuda{build.cuda}" if own and build.cuda != own.version else "",
        f"cudnn{build.cudnn}" if own and build.cudnn != own.cudnn else "",
        "bolt" if request.bolt else "",
        "headers" if request.with_headers else "",
    )
    return tuple(word for word in differences if word)


def _fingerprint(request: Request, **replaced: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the word of the identifier for all options that have none of their own; () where none is given.

    `replaced`: by an option's field, what stands for its value: "" for what the release has anyway, a file's digest.
    """
    parts = []
    for name, row, value in options.given(request):
        if row.identifier == "fingerprint":
            texts = options.texts(replaced.get(name.replace("-", "_"), value))
            parts += [name] if row.switch else [f"{name}={text}" for text in texts if text]
    if not parts:
        return ()
    import hashlib

    return (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8],)


# --- what a compile's plan notes --------------------------------------------------------------------------------------


def _about_bazel(build: Build, own: str) -> Iterator[str]:
    """Yield a note on a Bazel that is not the release's own."""
    if build.request.bazel and own not in ("", build.bazel):
        which = f"Bazel {build.bazel}" if build.own_bazel else f"there is a Bazel {build.bazel} that"
        yield f"{NOT_CERTAIN}whether {which} builds TensorFlow {build.release}, whose own is {own}"


def _about_places(build: Build) -> Iterator[str]:
    """Yield notes on a CUDA that no known base has, and on a tag that is not checked."""
    if build.request.base in BASES and releases.cuda_from_base(build.release, build.target):
        yield f"no known base image has CUDA: name one with CUDA {build.cuda} and cuDNN {build.cudnn} by --base"
    if build.source and build.source.kind == "git" and not build.source.commit:
        yield f"the commit of {build.source.tag} is not known, so the tag is not checked"


# --- the official wheel -----------------------------------------------------------------------------------------------


def _official(request: Request, target: str, platform: str, host: Cpu | None) -> Build:
    """Plan an image with the wheel from PyPI. Its instruction set is the wheel's, never the host's."""
    arch, named = PLATFORMS[platform], request.release
    release = find_release(named, newer=True) if named else wheel.newest_official(arch, request.python)
    row = releases.official_wheel(release, arch)
    requirement = wheel.official_requirement(release, target, arch)
    python = choose_python(request, release, wheel.pythons(release, arch), partial(wheel.pythons, arch=arch))
    compiled = isa.instruction_set(row.features, arch)
    from_base = "[" not in requirement and releases.cuda_from_base(release, target)
    asked = request.cpu or request.cpuinfo
    requested = requested_set(request, arch, host) if asked else None
    exact = requested_set(request, arch, host, exact=True) if asked else None
    if exact is not None and (lacking := sorted(set(compiled.features) - set(exact.features))):
        named = shlex.join(["--cpu", request.cpu] if request.cpu else ["--cpuinfo", request.cpuinfo])
        raise Unsupported(
            f"the official wheel is compiled for {compiled.name}; {named} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep {named}",
        )
    gpus = cuda.capabilities(request, target, release)
    own = releases.cuda(release) if gpus else None
    if own and from_base:
        cuda.refuse_base(request, own.version, own.cudnn)
    lacks_cuda = from_base and request.base in BASES
    return Build(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        compiler=releases.wheel_compiler(release) if arch == "x86_64" else "",
        copts=tuple(f"--copt={flag}" for flag in row.flags),
        threading="threadpool",
        compute_capabilities=tuple(gpu.name for gpu in gpus),
        cuda=own.version if own else "",
        cudnn=own.cudnn if own else "",
        wheel=Wheel(
            kind="official",
            requirement=requirement,
            constraints=releases.constraints(release, arch, compiled.features),
            sha256=wheel.official_sha256(requirement, python, arch),
        ),
        notes=(*_about_official(request, release, compiled, requested), *([NO_CUDA] if lacks_cuda else [])),
        **_image(request, rules.base_for_wheel(python) if request.base in BASES else None),
    )


def _about_official(
    request: Request, release: str, compiled: InstructionSet, requested: InstructionSet | None
) -> Iterator[str]:
    """Yield notes on a wheel that the facts do not have, and on a CPU that it is not compiled for."""
    if not releases.known(release):
        yield (
            f"{NOT_CERTAIN}this tfbuild does not know the wheel of {release}, expects it to be compiled like that of "
            f"{releases.nearest(release)}, and takes what the index has, without a digest"
        )
    if requested is not None:
        unused = releases.guard_spelling(release, set(requested.features) - set(compiled.features))
        add = f"; a build from source would add {' '.join(unused)}" if unused else ""
        which = f"--cpu {request.cpu}" if request.cpu else "--cpuinfo"
        yield f"{which} does not apply: the official wheel is compiled for {compiled.name}, whatever the CPU{add}"


# --- a wheel file -----------------------------------------------------------------------------------------------------


def _from_file(request: Request, target: str, platform: str, host: Cpu | None) -> Build:
    """Plan an image with a wheel file, which must fit by name, tags and contents. Its guard shows the features."""
    file, arch = wheel.from_path(Path(request.wheel), target), PLATFORMS[platform]
    release = find_release(request.release or file.version, newer=True)
    python = request.python or file.python
    parts = (("release", file.version, release), ("Python", file.python, python), ("architecture", file.arch, arch))
    for part, own, planned in parts:
        if own != planned:
            raise BadInput(
                f"{file.path.name} is for {part} {own}, the plan for {planned}",
                hint=f"--{'platform' if part == 'architecture' else part.lower()} {MACHINES.get(own, own)}",
            )
    choose_python(replace(request, python=python), release, (python,))  # refuses a base that cannot have it
    sha256 = sources.digest(file.path)
    widths = (True, False) if request.cpu or request.cpuinfo else ()
    claimed = [requested_set(request, arch, host, exact=exact) for exact in widths]
    compiled = wheel.instruction_set(file, release, claimed=claimed)
    return Build(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        threading=wheel.projects()[file.project].threading,
        wheel=Wheel(
            kind="file",
            requirement=file.path.name,
            constraints=releases.constraints(release, arch, compiled.features),
            path=file.path,
            sha256=sha256,
        ),
        notes=(NO_CUDA,) if request.base in BASES and releases.cuda_from_base(release, target) else (),
        **_image(request, rules.base_for_wheel(python) if request.base in BASES else None, sha256[:8]),
    )
