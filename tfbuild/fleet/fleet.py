"""Choose a fleet's images: what its CPUs have in common, and the best cover with at most K builds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UsageError
from tfbuild.facts import releases
from tfbuild.fleet.cover import Features, Loss, best, cover
from tfbuild.fleet.hosts import FleetHost, Skipped
from tfbuild.plan import MACHINES, gain, newest_official
from tfbuild.util.files import decode, read_named
from tfbuild.util.terminal import cause

SCHEMA = "tfbuild.fleet/1"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An instruction set on a platform; `platform` and `cpu` are the options of `invoke plan` for it."""

    platform: str
    cpu: str
    instruction_set: str
    level: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FleetImage(Compiled):
    """One build, and the hosts it is for.

    `speed`: an estimate relative to the official wheel; None if it was not measured. `official_wheel`: that wheel is as
    fast and runs on all of these hosts, so no build is needed.
    """

    hosts: tuple[str, ...]
    speed: float | None
    official_wheel: bool


@dataclass(frozen=True, kw_only=True)
class CoveredHost:
    """A host, the position of its image in the list of images, and what it gives up with that image.

    `loss`: the share of the speed of an image built for this CPU alone; None if it was not measured.
    """

    name: str
    model: str
    platform: str
    instruction_set: str
    level: str
    image: int
    loss: float | None
    unused: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measurement behind `speed` and `loss`, of code for `cpu`. Any other set counts as the fastest within it."""

    cpu: str
    wheel: str
    machine: str
    speed: float


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The result, as `--json` prints it. `common`: the largest instruction set that all hosts have, one per platform.

    `proved`: no cover with at most `allowed` images is better.
    """

    schema: str
    allowed: int
    proved: bool
    common: tuple[Compiled, ...]
    images: tuple[FleetImage, ...]
    hosts: tuple[CoveredHost, ...]
    skipped: tuple[Skipped, ...]
    estimates: tuple[Estimate, ...]


def to_json(fleet: Fleet) -> str:
    """Return the text that `invoke fleet --json` prints."""
    return msgspec.json.format(msgspec.json.encode(fleet), indent=2).decode()


def read_fleet(path: Path) -> Fleet:
    """Read a fleet from a file that `invoke fleet --json` wrote. Raises UsageError if it is not one."""
    try:
        fleet = decode(read_named(path), Fleet)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} does not hold a fleet: {cause(error)}", hint="invoke fleet HOSTS --json > FILE"
        ) from error
    if fleet.schema != SCHEMA:
        raise UsageError(f"{path} has schema {fleet.schema!r}, not {SCHEMA!r}", hint="create it again: invoke fleet")
    if not fleet.images:
        raise UsageError(f"{path} lists no images", hint="create it again: invoke fleet")
    return fleet


# --- the choice ----------------------------------------------------------------------------------------------------


def choose(hosts: Sequence[FleetHost], most: int, skipped: Sequence[Skipped] = ()) -> Fleet:
    """Return the best images for these hosts, at most `most`. Raises UsageError if that is fewer than platforms.

    It gives up the least estimated speed, summed over the hosts; then the fewest features where there is no estimate
    (aarch64); then it has the fewest images, and leaves the fewest features unused.
    """
    sets = {host.name: isa.of_cpu(host.cpu) for host in hosts}
    platforms = sorted({MACHINES[own.arch] for own in sets.values()})
    if most < len(platforms):
        raise UsageError(
            f"--images {most} is too few for {len(platforms)} platforms: {', '.join(platforms)}",
            hint=f"use --images {len(platforms)} or more",
        )
    kinds = {frozenset(own.features): own.arch for own in sets.values()}
    counts = Counter(frozenset(own.features) for own in sets.values())

    def loss(own: Features, image: Features) -> Loss:
        share, count = speed_loss(own, image, kinds[own]), counts[own]
        unused = count * len(own - image)
        return (0, unused, unused) if share is None else (count * share, 0, unused)

    found = cover(sorted(kinds, key=sorted), most, loss)
    served = {name: best(frozenset(own.features), found.images, loss) for name, own in sets.items()}
    groups = {image: [name for name in sets if served[name] == image] for image in set(served.values())}
    compiled = {image: isa.intersection([sets[name] for name in names]) for image, names in groups.items()}
    order = sorted(groups, key=lambda image: (compiled[image].arch, -len(compiled[image].features), groups[image]))
    archs = sorted({own.arch for own in sets.values()})
    return Fleet(
        schema=SCHEMA,
        allowed=most,
        proved=found.proved,
        common=tuple(
            Compiled(**_fields(isa.intersection([own for own in sets.values() if own.arch == arch]))) for arch in archs
        ),
        images=tuple(_image(compiled[image], tuple(sorted(groups[image]))) for image in order),
        hosts=tuple(
            _covered(host, sets[host.name], compiled[served[host.name]], order.index(served[host.name]))
            for host in hosts
        ),
        skipped=tuple(skipped),
        estimates=_estimates() if gain.ARCH in kinds.values() else (),
    )


def _estimates() -> tuple[Estimate, ...]:
    return tuple(
        Estimate(cpu=row.cpu, wheel=row.wheel, machine=row.machine, speed=row.relative_speed) for row in gain.rows()
    )


def _image(compiled: InstructionSet, hosts: tuple[str, ...]) -> FleetImage:
    held = frozenset(compiled.features)
    speed = gain.relative_speed(held, compiled.arch)
    return FleetImage(
        **_fields(compiled),
        hosts=hosts,
        speed=speed,
        official_wheel=speed is not None and speed <= 1 and _official(compiled.arch) <= held,
    )


def _official(arch: str) -> frozenset[str]:
    """Return the features that the newest official wheel needs."""
    return facts.closure(releases.official_wheel(newest_official(arch), arch).features)


def _fields(compiled: InstructionSet) -> dict[str, Any]:
    return {
        "platform": MACHINES[compiled.arch],
        "cpu": compiled.option,
        "instruction_set": compiled.name,
        "level": compiled.level,
        "features": compiled.features,
    }


def _covered(host: FleetHost, own: InstructionSet, compiled: InstructionSet, image: int) -> CoveredHost:
    own_features, image_features = frozenset(own.features), frozenset(compiled.features)
    return CoveredHost(
        name=host.name,
        model=host.cpu.model,
        platform=MACHINES[own.arch],
        instruction_set=own.name,
        level=own.level,
        image=image,
        loss=speed_loss(own_features, image_features, own.arch),
        unused=tuple(sorted(own_features - image_features)),
    )


# --- estimates of speed, from the measurements in facts/gains.toml ----------------------------------------------------


def speed_loss(own: frozenset[str], image: frozenset[str], arch: str) -> float | None:
    """Return the share of speed that a CPU with the features `own` gives up with an image compiled for `image`.

    None if either has no estimate.
    """
    best, actual = gain.relative_speed(own, arch), gain.relative_speed(image, arch)
    return None if best is None or actual is None else round(1 - actual / best, 4)
