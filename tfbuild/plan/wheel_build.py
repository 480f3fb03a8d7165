"""A build with an existing wheel: the official one from PyPI, or a file."""

from pathlib import Path

from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import base_images, releases, targets
from tfbuild.plan import base_choice
from tfbuild.plan import wheel as wheels
from tfbuild.plan.build import PLATFORMS, Decision
from tfbuild.plan.cuda import capabilities, cuda_of, gpu_fields
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import asked_set, choose_python, find_release, image_fields, variant_of_wheel
from tfbuild.util.options import given_to_compile


def official(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with the wheel from PyPI. Its instruction set is the wheel's, never the host's."""
    arch = PLATFORMS[platform]
    refuse_compile_options(request)
    release = _official_release(request, arch)
    row = releases.official_wheel(release, arch)
    python = choose_python(request, release, row.pythons)
    if targets.get(target).onednn and not row.onednn:
        raise Unsupported(
            f"the official {arch} wheel of {release} has no oneDNN in it",
            hint="take a newer release, or build this one from source: leave out --wheel official",
        )
    compiled = isa.instruction_set(row.features, arch)
    requested = asked_set(request, arch, host)
    refuse_unfit(compiled, asked_set(request, arch, host, exact=True), request)
    return Decision(
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
    source = base_choice.first_base(release, releases.pythons(release)[::-1]).python
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
    """Raise Unsupported if the requested CPU cannot run the official wheel."""
    lacking = sorted(set(compiled.features) - set(requested.features)) if requested is not None else []
    if lacking:
        raise Unsupported(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
        )


def from_file(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with a wheel file, which must fit by name, tags and contents. Its guard tells the features."""
    refuse_compile_options(request)
    file = wheels.read_name(Path(request.wheel), target)
    release = find_release(request.release or file.version, newer=True)
    python = request.python or file.python
    wheels.refuse_misfit(file, release=release, python=python, arch=PLATFORMS[platform])
    wheel = wheels.from_file(file, releases.constraints(release))
    sets = (asked_set(request, PLATFORMS[platform], host, exact=exact) for exact in (True, False))
    claimed = tuple(dict.fromkeys(asked for asked in sets if asked is not None))
    compiled = wheels.instruction_set(file, release, claimed=claimed)
    return Decision(
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
