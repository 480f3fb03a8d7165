"""The rules for a request: what is refused, and which platform, release, Python, base, compiler and CPU are chosen.

A compile gets the newest Python of the release for which a base has one of its compilers; the surest compiler that a
base with that Python has; a base on a supported Debian with that compiler in its own archive; then the oldest glibc.
What is known to fail is passed over, unless nothing else is left.
"""

import platform as host_platform
import re
from bisect import bisect
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import ARCHITECTURES, Cpu, compilers, detect, isa
from tfbuild.cpu import names as cpu_names
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import table, version
from tfbuild.facts.toolchains import BaseImage, Distribution
from tfbuild.plan.build import MACHINES, PLATFORMS, Build
from tfbuild.plan.failures import KNOWN_TO_FAIL, Failure
from tfbuild.plan.request import BASES, Request

# Returns the known failures of a compile with that compiler on that Debian.
Failures = Callable[[str, Distribution | None], tuple[Failure, ...]]
NEWER_THAN_KNOWN = "--source FOLDER builds its tree, --wheel official takes its wheel"
# The first words of a note about something that may turn out wrong.
NOT_CERTAIN = "not certain: "
# --define=enable_mkl=false and TF_NEED_CUDA=0 request nothing.
SWITCHED_OFF = re.compile(r"=(0|f|false|n|no)$")


# --- target, platform and CPU -----------------------------------------------------------------------------------------


def refuse_exclusive(request: Request) -> str:
    """Return the requested target. Targets that exclude each other are refused, however they are requested.

    Raises Unsupported for those, and UsageError for an unknown target.
    """
    names: list[str] = re.findall(r"[^\s,+/]+", request.target.lower())
    flags = (*request.bazel_flag, *request.configure)
    words = [*names, *request.config, *(word for flag in flags for word in flag.split())]
    # Without paths, such as -I/usr/local/cuda/include.
    switched_on = tuple(word.lower().partition("/")[0] for word in words if not SWITCHED_OFF.search(word.lower()))
    for row in targets.exclusions(switched_on):
        raise Unsupported(row.reason, hint=f"choose {' or '.join(f'--target {name}' for name in row.targets)}")
    alone = names[0] if len(names) == 1 else request.target
    target = targets.get(next((name for name in names if not targets.find_target(name)), alone))
    # The image would be labelled as what it is not.
    for word in (word.removeprefix("--config=") for word in words[len(names) :]):
        # cuda_clang stands for cuda, and mkl_threadpool for mkl. cpu_cross stands for none: cpu, the target without
        # checks of its own, has no configs. Nor does an answer such as CUDA_CACHE_PATH=/x.
        family = targets.find_target(word.lower().partition("_")[0])
        other = family if family and family.checks and "=" not in word else targets.find_target(word.lower())
        if other and other != target and word not in target.configs:
            raise UsageError(
                f"--config {word} belongs to target {other.name}, not to {target.name}", hint=f"--target {other.name}"
            )
        if "TF_NEED_CUDA=" in word and bool(SWITCHED_OFF.search(word.lower())) is target.cuda:
            raise UsageError(f"{word} contradicts --target {target.name}", hint="leave it out")
    return target.name


def choose_platform(request: Request, target: str = "") -> str:
    """Return the requested platform, else that of a CPU that only one platform has, else this machine's.

    `target`: refused if it can be requested on Linux only.
    """
    if request.platform in PLATFORMS:
        return request.platform
    if arch := named_architecture(request):
        return MACHINES[arch]
    name = (request.platform or f"{host_platform.system()}/{host_platform.machine()}").lower()
    system, machine = name.split("/", 1) if "/" in name else ("", name)
    arch = ARCHITECTURES.get(machine, "")
    if target and system not in ("", "linux") and (reason := targets.get(target).linux_only):
        raise Unsupported(
            f"{target} is for Linux only, and this is {system!r}: {reason}",
            hint=f"build the Linux image: --platform {MACHINES.get(arch, 'linux/amd64')}",
        )
    if request.platform and (system != "linux" or not arch):
        likely = f"--platform {MACHINES[arch]}" if arch else f"one of: {', '.join(PLATFORMS)}"
        likely = "one at a time; invoke matrix lists builds for both" if "," in name else likely
        raise UsageError(f"unknown platform {name!r}", hint=likely)
    if not arch:
        raise Unsupported(
            f"no TensorFlow image can be built for a {machine!r} CPU", hint="name one: --platform linux/amd64"
        )
    return MACHINES[arch]


def named_architecture(request: Request) -> str:
    """Return the architecture of the CPU that --cpu names, if it is not this machine's and no --platform is named."""
    own = ARCHITECTURES.get(host_platform.machine().lower(), "")
    word = isa.SEPARATOR.split(request.cpu)[0].strip()
    if request.platform or isa.means_host(request.cpu) or isa.is_known(word, own):
        return ""
    known = [arch for arch in MACHINES if isa.is_known(word, arch)]
    if not known and isa.is_recording(word):
        with suppress(Unsupported):
            known = [detect(Path(word)).arch]
    return next((arch for arch in known if arch != own), "")


def requested_set(request: Request, arch: str, host: Cpu | None, *, exact: bool = False) -> InstructionSet:
    """Return the instruction set of --cpu, by default of the host, which is the CPU that --cpuinfo describes.

    `exact`: with all features of a CPU, also those that make no difference to TensorFlow.
    """
    name = request.cpu or "host"
    if host is not None and request.cpuinfo:
        isa.same_architecture(host, arch, request.cpuinfo)
    if host is not None and isa.means_host(name) and host.arch != arch:
        requested, own = MACHINES[arch], MACHINES[host.arch]
        raise Unsupported(
            f"this host's CPU is {host.arch}, and the requested platform is {requested}",
            hint=f"name a CPU of {requested}: --cpu {facts.levels(arch)[-1].name}; or --platform {own}",
        )
    return isa.resolve(f"{name},{isa.EXACT}" if exact else name, arch=arch, host=host)


def cpu_notes(request: Request, arch: str) -> list[str]:
    """Return notes on a --cpuinfo beside a named CPU, and on the CPU that a processor's name stands for."""
    if isa.means_host(request.cpu):
        return []
    notes = [f"--cpuinfo does not apply: --cpu {request.cpu} names the CPU"] if request.cpuinfo else []
    words = [part.strip() for part in isa.SEPARATOR.split(request.cpu)]
    # A level is no CPU's name: archspec need not be imported.
    for word in words if facts.level(words[0], arch) is None else ():
        if (row := cpu_names.find_product(word)) is not None and cpu_names.features(word, arch) is None:
            notes.append(f"{word} is {row.cpu}" + (f": {row.note}" if row.note else ""))
    return notes


# --- release and Python -----------------------------------------------------------------------------------------------


def find_release(text: str, *, newer: bool = False) -> str:
    """Return the release that `text` means: "2.21.0", "v2.21.0", or "2.21" for its newest patch release.

    `newer`: also one that is newer than the facts, a candidate ("2.22.0rc0") or a nightly ("2.23.0.dev20261026").
    """
    name = text.strip().removeprefix("v")
    if releases.known(name):
        return name
    known = releases.newest_first()
    if name.count(".") == 1 and (patch := next((row for row in known if row.startswith(f"{name}.")), "")):
        return patch
    if (later := releases.newer(name)) and newer:
        return later
    if newer and releases.too_new(name):
        raise Unsupported(
            f"TensorFlow {name} is newer than this tfbuild (knows up to {known[0]})",
            hint="upgrade tfbuild: it plans newer releases only within the newest major version that it knows",
        )
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", name, re.ASCII) and version(name) < version(known[-1]):
        raise Unsupported(
            f"TensorFlow {name} is too old: tfbuild builds {known[-1]} and newer",
            hint=f"--release {known[-1]}, or a wheel of it; `invoke inspect` reads older wheels",
        )
    if later:
        final = not version(later).is_prerelease
        why = f"newer than this tfbuild (knows up to {known[0]})" if final else "not a final release"
        raise Unsupported(f"TensorFlow {later} is {why}", hint=NEWER_THAN_KNOWN)
    several = f"one at a time; invoke matrix --release {name} lists many builds" if "," in name and "." in name else ""
    raise Unsupported(f"unknown TensorFlow release {name!r}", hint=several or _advice(name))


def _advice(text: str) -> str:
    """Return what to type in place of a release that does not exist."""
    known = releases.newest_first()[::-1]
    try:
        index = bisect([version(name) for name in known], version(text))
    except ValueError:  # InvalidVersion is one, and so is a number with more digits than Python reads
        index = 0
    if index in (0, len(known)):
        return (
            f"leave out --release for the newest one that fits ({known[-1]}); a nightly wheel: "
            "--wheel official --release 2.X.0.devYYYYMMDD"
        )
    return f"nearest: {', '.join(known[max(0, index - 2) : index + 2])}"


def newest_release(plan: Callable[[str], Build]) -> tuple[Build, str]:
    """Return the plan of the newest release that `plan` accepts, and why it refuses the newest of all, or "".

    If it accepts none, raise its refusal of the newest release.
    """
    refusals: list[TfbuildError] = []
    for release in releases.newest_first():
        try:
            return plan(release), refusals[0].reason if refusals else ""
        except Unsupported as refusal:
            refusals.append(refusal)
    raise refusals[0]


def choose_python(
    request: Request,
    release: str,
    supported: tuple[str, ...],
    supported_by: Callable[[str], tuple[str, ...]] = releases.pythons,
) -> str:
    """Return the requested Python, else the default base's if the release supports it, else the newest supported.

    `supported_by`: returns the Pythons of another release for the same kind of wheel.
    """
    if toolchains.without_apt(request.base):
        raise Unsupported(f"{request.base} is not based on Debian or Ubuntu", hint="--base with an image that is")
    own = toolchains.python_of(request.base)
    if own and own not in ([request.python] if request.python else supported):
        wanted = request.python or " or ".join(supported)
        other = f"python:{request.python or supported[-1]}-slim-{toolchains.default_base().distribution}"
        raise Unsupported(f"{request.base} has Python {own}, and not {wanted}", hint=f"--base {other}, for example")
    python = request.python or own
    if not python:
        default = toolchains.default_base().python
        return default if default in supported else supported[-1]
    if python in supported:
        return python
    known = {row.python for row in _bases(request.base == "bootstrap")}
    with_base = [name for name in supported if name in known] or supported
    hint = f"--python {' or '.join(with_base[::-1])}"
    if python in known:
        if newest := next((name for name in releases.newest_first() if python in supported_by(name)), ""):
            hint += f"; the newest release with Python {python}: --release {newest}"
        elif releases.known(release):
            candidate = "".join(f" --release {name}" for name in table().candidates[-1:])
            hint += f"; a newer release may: --wheel official{candidate} takes it, --source FOLDER builds it"
    raise Unsupported(f"TensorFlow {release} does not support Python {python}", hint=hint)


# --- base and compiler ------------------------------------------------------------------------------------------------


def base_for_wheel(python: str) -> BaseImage:
    """Return the base for an existing wheel: one that can be made without a registry, if there is one."""
    bases = [row for row in toolchains.images().base if row.python == python]
    if not bases:
        known = ", ".join(toolchains.base_pythons())
        raise Unsupported(f"no base image with Python {python} is known", hint=f"one of: {known}; or --base NAME")
    return min(bases, key=lambda row: not row.bootstrap)


def debian_pythons() -> str:
    """Return the Pythons of bases that can be made without a registry, in words: 3.11 and 3.13."""
    *first, last = (row.python for row in toolchains.table().distribution)
    return f"{', '.join(first)} and {last}"


def choose_builder(
    request: Request, release: str, failures: Failures, *, here: bool = False
) -> tuple[str, str, BaseImage | None, tuple[str, ...]]:
    """Return the Python, the compiler and the base of a compile, with notes on what was passed over and why.

    The base is None if the user named one, which may have any compiler, and if no base has the compiler that is named
    for a machine without a container (`here`). Raises Unsupported.
    """
    compiler = named_compiler(request.compiler, release) if request.compiler else ""
    supported = releases.pythons(release)
    own = here and compiler and not any(compiler in toolchains.compilers(row.debian) for row in _bases(False))
    if own or request.base not in BASES:
        compiler = compiler or _likely(release, request.base, failures)
        debian = toolchains.debian_of(request.base)
        notes = _about_compiler(release, compiler) if own else _about_llvm(debian, compiler)
        return choose_python(request, release, supported), compiler, None, tuple(notes)
    pythons = (choose_python(request, release, supported),) if request.python else supported[::-1]
    return first_base(release, pythons, compiler, bootstrap=request.base == "bootstrap", failures=failures)


def _likely(release: str, image: str, failures: Failures) -> str:
    """Return the release's surest compiler that is not known to fail on an image, whatever Debian that may be."""
    names, debian = [row.name for row in releases.compilers(release)], toolchains.debian_of(image)
    unknown = set() if debian else {"glibc", "libstdcxx"}

    def fails(name: str) -> bool:
        return any(row.expected and not unknown & row.when.keys() for row in failures(name, debian))

    return next((name for name in names if not fails(name)), names[0])


def choose_here(
    request: Request, compilers: Collection[str], pythons: Collection[str], select: Callable[[Request], Build]
) -> Build:
    """Return the plan of `select` for a machine with these compilers and Pythons, without a container.

    Of what the user does not name and the machine lacks, it takes what is there: the nearest that is known to compile
    the release, none that is known to fail. The plan says so. Where none is left, the usual compiler, which can be
    installed, with a Python that is there. Raises what `select` raises.
    """
    usual = select(request)
    family, _, version = usual.compiler.partition("-")

    def distance(name: str) -> tuple[bool, int]:
        return not name.startswith(family), abs(int(name.partition("-")[2]) - int(version))

    if request.compiler or usual.compiler in compilers:
        compilers = [usual.compiler]
    if request.python or usual.python in pythons:
        pythons = [usual.python]
    able, names = [], [*sorted(compilers, key=distance), usual.compiler]
    for compiler, python in product(names, sorted(pythons, key=lambda name: -int(name[2:]))):
        with suppress(Unsupported):
            able.append(select(replace(request, compiler=compiler, python=python)))
    sound = [build for build in able if not any(note.startswith(KNOWN_TO_FAIL) for note in build.notes)]
    sure = [build for build in sound if not any(note.startswith(NOT_CERTAIN) for note in build.notes)]
    best = min([*sure, *sound], key=lambda build: build.compiler not in compilers, default=usual)
    if (best.compiler, best.python) == (usual.compiler, usual.python):
        return usual
    own = f"{usual.compiler} and Python {usual.python}"
    note = f"this machine chose {best.compiler} and Python {best.python}; a container would have {own}"
    return replace(best, notes=(note, *best.notes))


def named_compiler(text: str, release: str) -> str:
    """Return the compiler that --compiler names. Raises Unsupported with those of the release's base images."""
    try:
        return "-".join(map(str, compilers.parse_compiler(text)))
    except Unsupported as error:
        python, *_ = first_base(release, releases.pythons(release)[::-1])
        raise Unsupported(error.reason, hint=f"base images have: {_installable(python)}") from None


def first_base(
    release: str,
    pythons: tuple[str, ...],
    compiler: str = "",
    *,
    bootstrap: bool = False,
    failures: Failures = lambda *_: (),
) -> tuple[str, str, BaseImage, tuple[str, ...]]:
    """Return Python, compiler, base and notes for the first of `pythons` whose base has `compiler`; see the module.

    `bootstrap`: only bases that can be made without a registry. `failures`: what is known to fail is passed over.
    Raises Unsupported if no base has the compiler or the Python.
    """
    names = [compiler] if compiler else [row.name for row in releases.compilers(release)]
    able = [(row, name) for python in pythons for name in names for row in _bases_with(python, name, bootstrap)]
    if not able:
        raise _refusal(release, pythons, compiler, bootstrap)
    passed: dict[str, str] = {}
    for base, name in able:
        failure = next((row for row in failures(name, base.debian) if row.expected), None)
        if failure is None:
            notes = (*passed.values(), *_about_compiler(release, name), *_about_llvm(base.debian, name))
            return base.python, name, base, notes
        note = f"{name} on {base.image} is passed over ({failure.id}): {failure.symptom}"
        passed.setdefault(failure.id, note)
    base, name = able[0]
    return base.python, name, base, tuple(_about_llvm(base.debian, name))


def _bases_with(python: str, compiler: str, bootstrap: bool) -> list[BaseImage]:
    """Return the bases with that Python that can install the compiler, the best first."""
    able = [row for row in _bases(bootstrap) if row.python == python and compiler in toolchains.compilers(row.debian)]
    return sorted(able, key=lambda row: compiler not in row.debian.compilers)


def _bases(bootstrap: bool) -> list[BaseImage]:
    """Return the known bases; `bootstrap`: those that can be made without a registry."""
    return [row for row in toolchains.images().base if row.bootstrap or not bootstrap]


def _refusal(release: str, wanted: tuple[str, ...], compiler: str, bootstrap: bool) -> Unsupported:
    bases = _bases(bootstrap)
    pythons = [name for name in releases.pythons(release) if name in {row.python for row in bases}]
    if python := next((name for name in wanted if name in pythons), ""):
        distributions = ", ".join(row.distribution for row in bases if row.python == python)
        missing = compiler or f"a compiler that is known to build TensorFlow {release}"
        return Unsupported(
            f"{missing} is not in {distributions}, on which the base images with Python {python} are based",
            hint=f"--compiler with one of: {_installable(python, bootstrap)}",
        )
    how = "can be made by mmdebstrap" if bootstrap else "is known"
    other = "--base registry" if bootstrap else "--base NAME, with an image that has it"
    return Unsupported(
        f"no base image with Python {' or '.join(wanted)} {how}",
        hint=f"one of: {', '.join(pythons)}; or {other}" if pythons else other,
    )


def _installable(python: str, bootstrap: bool = False) -> str:
    """Return the compilers that the base images with that Python can install, GCC first, oldest first."""
    able = (row for row in _bases(bootstrap) if row.python == python)
    names = {name for row in able for name in toolchains.compilers(row.debian)}
    return ", ".join(sorted(names, key=lambda name: (name.startswith("clang"), int(name.rpartition("-")[2]))))


def _about_compiler(release: str, compiler: str) -> Iterator[str]:
    """Yield a note on how sure it is that the compiler compiles the release, unless its official wheel proves it."""
    row = next((row for row in releases.compilers(release) if row.name == compiler), None)
    if row is None:
        yield f"{NOT_CERTAIN}nobody is known to have built TensorFlow {release} with {compiler}"
    elif not row.wheels:
        patched = f"; patched there: {row.patches}" if row.patches else ""
        yield f"{compiler} works for others: {row.source}{patched}"


def _about_llvm(debian: Distribution | None, compiler: str) -> Iterator[str]:
    if debian and (suite := toolchains.llvm_suite(debian.name, compiler)):
        yield f"{compiler} comes from {toolchains.table().llvm.url} ({suite}): {debian.name} does not have it"
