"""The rules for every kind of wheel: which requests are refused, and which platform, Python and CPU are chosen."""

import platform as host_platform
import re
from bisect import bisect
from collections.abc import Callable
from typing import TypeVar

from tfbuild import facts
from tfbuild.cpu import ARCHITECTURES, Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import releases, targets, toolchains
from tfbuild.facts.release_table import version
from tfbuild.plan.build import MACHINES, PLATFORMS
from tfbuild.plan.request import Request

T = TypeVar("T")
NEWER_THAN_KNOWN = "--source FOLDER builds its tree, --wheel official takes its wheel"
# Letters of an unknown release that are compared with the known ones.
MOST_TEXT = 64
# A Python as other tools spell it: python3.12, py3.12, cp312.
SPELLED_PYTHON = re.compile(r"(?:python|py|cp)?-?3\.?(\d{1,2})(?:\.\d+)?", re.ASCII)
OLDEST_PYTHON = (3, 11)
# --define=enable_mkl=false and TF_NEED_CUDA=0 request nothing.
SWITCHED_OFF = re.compile(r"=(0|false|no)$")


def refuse_exclusive(request: Request) -> str:
    """Return the requested target. Targets that exclude each other are refused, however they are requested.

    Raises Unsupported for those, and UsageError for an unknown target.
    """
    names: list[str] = re.findall(r"[^\s,+]+", request.target.lower())
    flags = (*request.bazel_flag, *request.configure)
    words = [*names, *request.config, *(word for flag in flags for word in flag.split())]
    switched_on = tuple(word.lower() for word in words if not SWITCHED_OFF.search(word.lower()))
    for row in targets.exclusions(switched_on):
        raise Unsupported(row.reason, hint=f"choose {' or '.join(f'--target {name}' for name in row.targets)}")
    alone = names[0] if len(names) == 1 else request.target
    target = _target(next((name for name in names if not is_target(name)), alone))
    _refuse_config_of_another(request, target)
    return target.name


def is_target(name: str) -> bool:
    """Whether there is a target of that name."""
    return targets.find(name) is not None


def _target(name: str) -> targets.Target:
    """Return the target of that name; raises UsageError with the one that is meant, or with all names."""
    if target := targets.find(name):
        return target
    from difflib import get_close_matches

    near = targets.named(name) or next(iter(get_close_matches(name, targets.names(), n=1, cutoff=0.7)), "")
    hint = f"--target {near}" if near else f"one of: {', '.join(targets.names())}"
    raise UsageError(f"unknown target {name!r}", hint=hint)


def _refuse_config_of_another(request: Request, target: targets.Target) -> None:
    """Raise UsageError for a --config that only names another target: the image would be labelled as what it is not."""
    for name in request.config:
        if name not in (target.name, *target.configs) and (other := targets.find(name.lower())):
            raise UsageError(
                f"--config {name} belongs to target {other.name}, not to {target.name}", hint=f"--target {other.name}"
            )


def choose_platform(request: Request, target: str = "") -> str:
    """Return the requested platform, else that of a CPU that only one platform has, else this machine's.

    `target`: refused if it can be requested on Linux only.
    """
    if request.platform in PLATFORMS:
        return request.platform
    if arch := named_architecture(request):
        return MACHINES[arch]
    name = request.platform or f"{host_platform.system().lower()}/{host_platform.machine().lower()}"
    if likely := MACHINES.get(ARCHITECTURES.get(name.lower(), "")):
        raise UsageError(f"unknown platform {name!r}", hint=f"--platform {likely}")
    *plain, variant = name.rpartition("/")[::2]
    if level := next((row for row in facts.levels(PLATFORMS.get(plain[0], "")) if row.variant == variant), None):
        raise UsageError(f"unknown platform {name!r}", hint=f"--platform {plain[0]} --cpu {level.name}")
    system, _, machine = name.partition("/")
    if target and system != "linux" and (reason := targets.get(target).linux_only):
        raise Unsupported(
            f"{target} is for Linux only, and this is {system!r}: {reason}",
            hint=f"build the Linux image: --platform {MACHINES.get(ARCHITECTURES.get(machine, ''), 'linux/amd64')}",
        )
    arch = ARCHITECTURES.get(machine, "")
    if request.platform and (system != "linux" or not arch):
        raise UsageError(f"unknown platform {name!r}", hint=f"one of: {', '.join(PLATFORMS)}")
    if not arch:
        raise Unsupported(
            f"no TensorFlow image can be built for a {machine!r} CPU", hint="name one: --platform linux/amd64"
        )
    return MACHINES[arch]


def named_architecture(request: Request) -> str:
    """Return the architecture of the CPU that --cpu names, if it is not this machine's and no --platform is named."""
    own = ARCHITECTURES.get(host_platform.machine().lower(), "")
    word = isa.COMMA.split(request.cpu)[0].strip()
    if request.platform or isa.means_host(request.cpu) or isa.is_known(word, own):
        return ""
    return next((arch for arch in MACHINES if arch != own and isa.is_known(word, arch)), "")


def find_release(text: str, *, newer: bool = False) -> str:
    """Return the release that `text` means: "2.21.0", "v2.21.0", or "2.21" for its newest patch release.

    `newer`: also one that is newer than the facts, a candidate ("2.22.0rc0") or a nightly ("2.23.0.dev20261026").
    """
    name = text.strip().removeprefix("v")
    if releases.known(name):
        return name
    if name.count(".") == 1 and (patches := _starting_with(name)):
        return patches[0]
    if (later := releases.newer(name)) and newer:
        return later
    if newer and releases.too_new(name):
        raise Unsupported(
            f"TensorFlow {name} is newer than this tfbuild (knows up to {releases.newest_first()[0]})",
            hint="upgrade tfbuild: it plans newer releases only within the newest major version that it knows",
        )
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", name, re.ASCII) and version(name) < version(
        oldest := releases.releases()[0].version
    ):
        raise Unsupported(
            f"TensorFlow {name} is too old: tfbuild builds {oldest} and newer", hint=f"--release {oldest}"
        )
    if later:
        final = not version(later).is_prerelease
        why = f"newer than this tfbuild (knows up to {releases.newest_first()[0]})" if final else "not a final release"
        raise Unsupported(f"TensorFlow {later} is {why}", hint=NEWER_THAN_KNOWN)
    raise Unsupported(f"unknown TensorFlow release {name!r}", hint=_advice(name))


def _starting_with(text: str) -> list[str]:
    """Return the releases that are `text` or a patch of it, newest first."""
    return [name for name in releases.newest_first() if f"{name}.".startswith(f"{text}.")]


def _advice(text: str) -> str:
    """Return what to type in place of a release that does not exist."""
    if text.lower() in ("latest", "newest", "nightly", "2"):
        return (
            f"leave out --release for the newest one that fits ({releases.newest_first()[0]}); a nightly wheel: "
            "--wheel official --release 2.X.0.devYYYYMMDD"
        )
    return f"nearest: {', '.join(_nearest(text))}"


def _nearest(text: str) -> list[str]:
    known = releases.newest_first()[::-1]
    try:
        index = bisect([version(name) for name in known], version(text))
    except ValueError:  # InvalidVersion is one, and so is a number with more digits than Python reads
        from difflib import get_close_matches

        return get_close_matches(text[:MOST_TEXT], known, n=3, cutoff=0.5) or list(known[-3:])
    return list(known[max(0, index - 2) : index + 2])


def newest_release(plan: Callable[[str], T]) -> tuple[T, str]:
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
    if not request.python:
        default = toolchains.default_base().python
        return default if default in supported else supported[-1]
    python = request.python
    if python in supported:
        return python
    match = SPELLED_PYTHON.fullmatch(python.lower())
    if match and (spelled := f"3.{match[1]}") != python:
        raise Unsupported(f"{python!r} is not a Python version", hint=f"--python {spelled}")
    if match and int(match[1]) < OLDEST_PYTHON[1]:
        raise Unsupported(
            f"Python {python} is too old: tfbuild builds for 3.11 and newer", hint=f"--python {supported[0]}"
        )
    with_base = [name for name in supported if name in toolchains.base_pythons()] or supported
    newest = next((name for name in releases.newest_first() if python in supported_by(name)), "")
    if newest and python in toolchains.base_pythons():
        able = " or ".join(with_base[::-1])
        raise Unsupported(
            f"TensorFlow {release} does not support Python {python}",
            hint=f"--python {able}; the newest release with Python {python}: --release {newest}",
        )
    newer = releases.known(release) and python in toolchains.base_pythons()
    later = f"; a newer one may: {NEWER_THAN_KNOWN}" if newer else ""
    raise Unsupported(
        f"no {'base image is known for' if newest else 'TensorFlow release supports'} Python {python!r}",
        hint=f"--python {with_base[-1]} is the newest one that TensorFlow {release} supports{later}",
    )


def requested_set(request: Request, arch: str, host: Cpu | None, *, exact: bool = False) -> InstructionSet | None:
    """Return the instruction set of --cpu, or None without one. --cpuinfo alone means the CPU that it describes.

    `exact`: with all features of a CPU, also those that make no difference to TensorFlow.
    """
    name = request.cpu or ("host" if request.cpuinfo else "")
    if not name:
        return None
    if host is not None and request.cpuinfo:
        isa.same_architecture(host, arch, request.cpuinfo)
    if host is not None and isa.means_host(name) and host.arch != arch:
        requested, own = MACHINES[arch], MACHINES[host.arch]
        raise Unsupported(
            f"this host's CPU is {host.arch}, and the requested platform is {requested}",
            hint=f"name a CPU of {requested}: --cpu {facts.levels(arch)[-1].name}; or --platform {own}",
        )
    isa.refuse_without_level(name, arch)
    return isa.resolve(f"{name},{isa.EXACT}" if exact else name, arch=arch, host=host)
