"""Decides what to build: a request, the facts and a CPU become a `Build`, or a refusal. Nothing here acts.

Read this first. `select` is the whole decision; each rule that refuses is a function of its own, here or in rules.py.
"""

from pathlib import Path

from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UnknownCpu, UnknownRelease, UsageError
from tfbuild.facts import base_images, releases, targets
from tfbuild.plan import wheel as wheels
from tfbuild.plan.build import PLATFORMS, Build, Request
from tfbuild.plan.gpus import capabilities, cuda_of, gpu_fields
from tfbuild.plan.rules import (
    BASES,
    asked_set,
    choose_platform,
    choose_python,
    headers_word,
    image_fields,
    refuse_exclusive,
    refuse_unreadable,
)
from tfbuild.plan.source_build import from_source

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


def select(request: Request, host: Cpu | None) -> Build:
    """The build that answers `request`; `host` is the CPU that "host" means (None where it cannot be read).

    Raises the error of the first rule that refuses, each with a hint (tfbuild.errors).
    """
    refuse_unreadable(request)
    target = refuse_exclusive(request)
    place = choose_platform(request, target)
    way = {"official": _official, "": from_source, "source": from_source}.get(request.wheel, _from_file)
    return way(request, target, place, host)


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
        **gpu_fields(capabilities(request, target, release), cuda_of(request, target, release)),
        wheel=wheels.official(row.requirement(release, target), releases.constraints(release)),
        variant=headers_word(request),
        notes=_source_would_add(compiled, asked, release),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def _official_release(request: Request, arch: str) -> str:
    if request.release:
        return releases.find(request.release)
    return releases.newest_official(arch, request.python or base_images.default().python)


def _base_of_wheel(request: Request, python: str) -> base_images.BaseImage | None:
    """The base for a wheel that is there already; None where the user named one."""
    return base_images.for_wheel(python) if request.base in BASES else None


def _source_would_add(compiled: InstructionSet, wanted: InstructionSet | None, release: str) -> tuple[str, ...]:
    unused = releases.guard_spelling(release, set(wanted.features) - set(compiled.features)) if wanted else ()
    if not unused:
        return ()
    return (f"the official wheel is compiled for {compiled.name}; a build from source would add {' '.join(unused)}",)


def refuse_compile_options(request: Request) -> None:
    """Options that only a build from source can heed are refused where nothing is compiled, never ignored."""
    used = [f"--{name.replace('_', '-')}" for name in COMPILE_OPTIONS if getattr(request, name)]
    if used:
        raise UsageError(
            f"{', '.join(used)}: for a build from source only; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )


def refuse_unfit(compiled: InstructionSet, asked: InstructionSet | None, request: Request) -> None:
    """The official wheel for a CPU that cannot run it."""
    lacking = sorted(set(compiled.features) - set(asked.features)) if asked is not None else []
    if lacking:
        raise UnknownCpu(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
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
        variant=(wheel.sha256[:8], *headers_word(request)),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def unused_by_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """What TensorFlow's own message names at start: in the CPU, known to its guard, not compiled into the wheel.

    In TensorFlow's names and order, for the newest release that has an official wheel for this architecture.
    """
    release = releases.newest_official(cpu.arch, base_images.default().python)
    compiled = isa.closure(releases.official_wheel(release, cpu.arch).features)
    return releases.guard_spelling(release, set(cpu.features) - compiled)
