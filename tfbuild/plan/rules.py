"""The rules that every way to a wheel shares: what cannot be read or combined, which platform, Python and CPU."""

import platform as host_platform
import re
from dataclasses import fields
from typing import Any

from tfbuild import facts
from tfbuild.cpu import ARCHITECTURES, Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import MklNeedsLinux, MklWithCuda, UnknownCpu, UnknownPython, UsageError
from tfbuild.facts import base_images, targets
from tfbuild.plan.build import MACHINES, PLATFORMS, Request

# --base values that mean the row of facts/images.toml; everything else names an image that nobody has looked into.
BASES = ("auto", "bootstrap", "registry")
BAZEL = re.compile(r"\d+\.\d+(\.\d+)?(rc\d+)?")
IMAGE = re.compile(r"[\w./:@-]+")
CONFIG = re.compile(r"[\w.+,-]+")
# --define=enable_mkl=false and TF_NEED_CUDA=0 ask for nothing.
SWITCHED_OFF = re.compile(r"=(0|false|no)$")


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


def headers_word(request: Request) -> tuple[str, ...]:
    return ("headers",) if request.with_headers else ()


def image_fields(request: Request, base: base_images.BaseImage | None) -> dict[str, Any]:
    """The fields that say what the image stands on, the same for every way to a wheel; no `base`: the user's own."""
    return {
        "base_image": base.image if base is not None else request.base,
        "base_distribution": base.bootstrap if base is not None else "",
        "with_headers": request.with_headers,
        "asked": request,
    }
