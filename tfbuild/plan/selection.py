"""Decide what to build: a request, the facts and a CPU become a `Build`, or a refusal. Nothing here acts.

Start reading here. `decide` is the whole decision; each rule that refuses is a function in rules.py, wheel.py or
source_build.py. `complete` then adds everything that later steps need of the facts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from tfbuild import facts
from tfbuild.cpu import Cpu
from tfbuild.errors import TfbuildError, Unsupported
from tfbuild.facts import releases, targets
from tfbuild.facts.release_table import spelled
from tfbuild.plan import base_choice, configuration, source_build, wheel
from tfbuild.plan.base_choice import HostSystem
from tfbuild.plan.build import (
    MACHINES,
    PLATFORMS,
    Alternative,
    Build,
    Comparison,
    Decision,
    Runtime,
    RuntimeCheck,
    resolved,
)
from tfbuild.plan.cuda import parse_capabilities
from tfbuild.plan.request import Request
from tfbuild.plan.rules import choose_platform, find_release, named_architecture, refuse_exclusive
from tfbuild.util.options import refuse_invalid, words


def select(request: Request, host: Cpu | None, machine: HostSystem | None = None) -> Build:
    """Return the build for `request`. `host` is the CPU that "host" means (None if it cannot be read).

    `machine`: what compiles it in place of a container. Raises the error of the first rule that refuses, with a hint
    (tfbuild.errors).
    """
    return complete(decide(request, host, machine))


def decide(request: Request, host: Cpu | None, machine: HostSystem | None = None) -> Decision:
    """Return what is decided about `request`; see `select`."""
    refuse_invalid(request)
    target = refuse_exclusive(request)
    platform = choose_platform(request, target)
    if request.wheel in ("", "source"):
        decided = source_build.from_source(request, target, platform, host, machine)
    else:
        decide_wheel = wheel.decide_official if request.wheel == "official" else wheel.decide_file
        decided = decide_wheel(request, target, platform, host)
    if named_architecture(request):
        note = f"planned for {platform}, the platform of {request.cpu}; this machine has another"
        return replace(decided, notes=(note, *decided.notes))
    return decided


# --- what follows from a decision -------------------------------------------------------------------------------------


def complete(decided: Decision) -> Build:
    """Return the build with all that later steps need of the facts."""
    image = (decided.release, decided.target, decided.python, decided.platform)
    release = releases.get(decided.release)
    untouched = decided.wheel.kind == "official" or (
        decided.source is not None and decided.source.kind == "git" and not decided.patches
    )
    return Build(
        **{field.name: getattr(decided, field.name) for field in fields(Decision)},
        toolchain=configuration.toolchain(decided) if decided.wheel.kind == "source" else None,
        runtime=runtime(decided.release, decided.target, decided.threading),
        check=runtime_check(
            decided.id,
            *image,
            instruction_set=decided.instruction_set.name,
            features=decided.instruction_set.features,
            compute_capabilities=decided.compute_capabilities,
        ),
        comparison=comparison(decided.wheel.kind, *image, decided.request.base),
        words=tuple(words(resolved(decided))),
        revision=release.commit if untouched else "",
        released=release.date if untouched else "",
    )


def runtime(release: str, target: str, threading: str) -> Runtime:
    """Return what an image of that release and target promises; any release that is a version has an answer."""
    row, onednn = targets.get(target), releases.onednn_env(release)
    return Runtime(
        version=spelled(release),
        cuda=row.cuda,
        onednn=row.onednn,
        environment=(*releases.thread_env(threading), *(onednn if row.onednn else ())),
        untuned=(("LD_PRELOAD", ""), *((name, "") for name, _ in onednn)),
        checks=row.checks,
        known_defects=releases.known_defects(release),
    )


def runtime_check(
    id: str,
    release: str,
    target: str,
    python: str,
    platform: str,
    *,
    instruction_set: str,
    features: Iterable[str],
    compute_capabilities: tuple[str, ...],
) -> RuntimeCheck:
    """Return what an image's entry point checks. Raises Unsupported for an unknown feature, UsageError for a GPU."""
    request = Request(release=release, target=target, python=python, platform=platform)
    return RuntimeCheck(
        id=id,
        target=target,
        instruction_set=instruction_set,
        required=facts.cpuinfo_names(features),
        gpus=parse_capabilities(",".join(compute_capabilities)) if compute_capabilities else (),
        alternatives=tuple(image for image in _alternatives(request) if image.id != id),
    )


# Builds of one release for other CPUs suggest the same images.
@lru_cache(maxsize=2**10)
def _alternatives(request: Request) -> tuple[Alternative, ...]:
    levels = (level.name for level in facts.levels(PLATFORMS[request.platform]) if level.features)
    requests = [replace(request, wheel="official"), *(replace(request, cpu=level) for level in levels)]
    images = {image.id: image.instruction_set.features for each in requests if (image := _possible(each))}
    order = sorted(images.items(), key=lambda image: (-len(image[1]), image[0]))
    return tuple(Alternative(id=id, features=facts.cpuinfo_names(features)) for id, features in order)


def _possible(request: Request) -> Decision | None:
    try:
        return decide(request, None)
    except TfbuildError:
        return None


def comparison(kind: str, release: str, target: str, python: str, platform: str, base: str) -> Comparison:
    """Plan what an image is compared with: an official wheel with itself, any other with the official wheel's image.

    `kind`: that of its wheel. `base`: --base of its build. Without oneDNN in the official wheel, it is that of the
    target's baseline.
    """
    if kind == "official":
        return Comparison()
    request = Request(target=target, release=release, python=python, platform=platform, base=base, wheel="official")
    try:
        arch = PLATFORMS[choose_platform(request, target)]
        baseline = targets.get(target).baseline
        if not releases.known(release):
            raise Unsupported(f"this tfbuild knows no official wheel of TensorFlow {release}", hint="name a release")
        if baseline and not releases.official_wheel(release, arch).onednn:
            request = replace(request, target=baseline)
        return Comparison(wheel=select(request, None))
    except TfbuildError as error:
        return Comparison(lacks=error.reason)


# --- what is built by default -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What is built if nothing else is requested: the same for every verb."""

    release: str
    python: str
    compiler: str


def usual(arch: str, release: str = "", compiler: str = "") -> Usual:
    """Return what a build from source takes on that architecture: of `release`, with `compiler`, where they are named.

    Raises Unsupported. Where no base image has the compiler, the Python is that of the plan
    without it.
    """
    if release:
        release = find_release(release)
    else:
        lowest = facts.levels(arch)[0].name
        release = decide(Request(platform=MACHINES[arch], cpu=lowest), None).release
    pythons = releases.pythons(release)[::-1]
    compiler = base_choice.named_compiler(compiler, release) if compiler else ""
    try:
        choice = base_choice.first_base(release, pythons, compiler)
    except Unsupported:
        choice = base_choice.first_base(release, pythons)
    return Usual(release=release, python=choice.python, compiler=compiler or choice.compiler)


def unused_by_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """Return the features that TensorFlow reports at start: in the CPU, known to its guard, not used by the wheel.

    In TensorFlow's names and order, for the newest release that has an official wheel for this architecture.
    """
    release = wheel.newest_official(cpu.arch)
    compiled = facts.closure(releases.official_wheel(release, cpu.arch).features)
    return releases.guard_spelling(release, set(cpu.features) - compiled)
