"""Decide what to build: a request, the facts and a CPU become a `Build`, or a refusal. Nothing here acts.

Start reading here. `select` is the whole decision; each rule that refuses is a function, here or in rules.py.
"""

from dataclasses import dataclass
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UnknownCompiler, UnknownCpu, UnknownRelease, UsageError
from tfbuild.facts import base_images, releases, targets
from tfbuild.plan import base_choice
from tfbuild.plan import wheel as wheels
from tfbuild.plan.build import MACHINES, PLATFORMS, Build
from tfbuild.plan.gpus import capabilities, cuda_of, gpu_fields
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import (
    asked_set,
    choose_platform,
    choose_python,
    find_release,
    image_fields,
    refuse_exclusive,
    variant_of_wheel,
)
from tfbuild.plan.source_build import from_source
from tfbuild.util.options import given_to_compile, refuse_invalid


def select(request: Request, host: Cpu | None) -> Build:
    """Return the build for `request`. `host` is the CPU that "host" means (None if it cannot be read).

    Raises the error of the first rule that refuses, with a hint (tfbuild.errors).
    """
    refuse_invalid(request)
    target = refuse_exclusive(request)
    platform = choose_platform(request, target)
    plan = {"official": _official, "": from_source, "source": from_source}.get(request.wheel, _from_file)
    return plan(request, target, platform, host)


def _official(request: Request, target: str, platform: str, host: Cpu | None) -> Build:
    """Plan an image with the wheel from PyPI. Its instruction set is the wheel's, never the host's."""
    arch = PLATFORMS[platform]
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
    requested = asked_set(request, arch, host)
    refuse_unfit(compiled, asked_set(request, arch, host, exact=True), request)
    return Build(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        compiler=row.compiler,
        copts=tuple(f"--copt={flag}" for flag in row.flags),
        threading="threadpool",
        **gpu_fields(capabilities(request, target, release), cuda_of(request, target, release)),
        wheel=wheels.official(
            row.requirement(release, target), releases.constraints(release), python=python, arch=arch
        ),
        variant=variant_of_wheel(request),
        notes=(
            *_unknown_wheel(release),
            *_about_the_wheel(compiled, requested, release, request.cpu),
            *_about_python(request, release, python),
        ),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def _official_release(request: Request, arch: str) -> str:
    if request.release:
        return find_release(request.release, newer=True)
    return releases.newest_official(arch, request.python or base_images.default().python)


def _base_of_wheel(request: Request, python: str) -> base_images.BaseImage | None:
    """Return the base for an existing wheel, or None if the user named one."""
    return base_choice.for_wheel(python) if request.base in BASES else None


def _unknown_wheel(release: str) -> tuple[str, ...]:
    """Return a note if the facts do not have the release."""
    if releases.known(release):
        return ()
    return (
        f"{base_choice.NOT_CERTAIN}this tfbuild does not know the wheel of {release}, expects it to be compiled like "
        f"that of {releases.nearest(release)}, and takes what the index has, without a digest",
    )


def _about_the_wheel(
    compiled: InstructionSet, wanted: InstructionSet | None, release: str, cpu: str
) -> tuple[str, ...]:
    """Return a note on what --cpu does not change, and on what a build from source would add for that CPU."""
    if wanted is None:
        return ()
    unused = releases.guard_spelling(release, set(wanted.features) - set(compiled.features))
    add = f"; a build from source would add {' '.join(unused)}" if unused else ""
    which = f"--cpu {cpu}" if cpu else "--cpuinfo"
    return (f"{which} does not apply: the official wheel is compiled for {compiled.name}, whatever the CPU{add}",)


def _about_python(request: Request, release: str, python: str) -> tuple[str, ...]:
    """Return a note if the Python is a default that builds from source do not share."""
    if not releases.known(release):
        return ()
    source = usual(PLATFORMS[choose_platform(request)], release).python
    if request.python or python == source:
        return ()
    debian = base_choice.for_wheel(python).distribution
    return (f"Python {python} is {debian}'s own; builds from source default to Python {source}",)


def refuse_compile_options(request: Request) -> None:
    """Raise UsageError for options of builds from source: they are refused, never ignored."""
    if used := given_to_compile(request):
        raise UsageError(
            f"{', '.join(used)}: only for builds from source; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )


def refuse_unfit(compiled: InstructionSet, requested: InstructionSet | None, request: Request) -> None:
    """Raise UnknownCpu if the requested CPU cannot run the official wheel."""
    lacking = sorted(set(compiled.features) - set(requested.features)) if requested is not None else []
    if lacking:
        raise UnknownCpu(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
        )


def _from_file(request: Request, target: str, platform: str, host: Cpu | None) -> Build:
    """Plan an image with a wheel file, which must fit by name, tags and contents. Its guard tells the features."""
    refuse_compile_options(request)
    file = wheels.read(Path(request.wheel), target)
    release = find_release(request.release or file.version, newer=True)
    python = request.python or file.python
    wheels.refuse_misfit(file, release=release, python=python, arch=PLATFORMS[platform])
    wheel = wheels.from_file(file, releases.constraints(release))
    sets = (asked_set(request, PLATFORMS[platform], host, exact=exact) for exact in (True, False))
    claimed = tuple(dict.fromkeys(asked for asked in sets if asked is not None))
    compiled = wheels.instruction_set(file, release, claimed=claimed)
    return Build(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        threading=wheels.threading(file),
        wheel=wheel,
        variant=(wheel.sha256[:8], *variant_of_wheel(request)),
        **image_fields(request, _base_of_wheel(request, python)),
    )


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What is built if nothing else is requested: the same for every verb."""

    release: str
    python: str
    compiler: str


def usual(arch: str, release: str = "", compiler: str = "") -> Usual:
    """Return what a build from source takes on that architecture: of `release`, with `compiler`, where they are named.

    Raises UnknownRelease and UnknownCompiler. Where no base image has the compiler, the Python is that of the plan
    without it.
    """
    if release:
        release = find_release(release)
    else:
        lowest = facts.levels(arch)[0].name
        release = select(Request(platform=MACHINES[arch], cpu=lowest), None).release
    pythons = releases.pythons(release)[::-1]
    compiler = base_choice.named_compiler(compiler, release) if compiler else ""
    try:
        choice = base_choice.first_base(release, pythons, compiler)
    except UnknownCompiler:
        choice = base_choice.first_base(release, pythons)
    return Usual(release=release, python=choice.python, compiler=compiler or choice.compiler)


def newest_official(arch: str) -> str:
    """Return the release of `--wheel official` on that architecture."""
    return releases.newest_official(arch, base_images.default().python)


def unused_by_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """Return the features that TensorFlow reports at start: in the CPU, known to its guard, not used by the wheel.

    In TensorFlow's names and order, for the newest release that has an official wheel for this architecture.
    """
    release = newest_official(cpu.arch)
    compiled = isa.closure(releases.official_wheel(release, cpu.arch).features)
    return releases.guard_spelling(release, set(cpu.features) - compiled)
