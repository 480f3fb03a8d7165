"""Choose a fleet's images: what its CPUs have in common, and the best cover with at most K builds.

The best cover gives up, in this order: the least estimated speed (summed over the hosts), the fewest features where
there is no estimate (aarch64), the fewest images, and the fewest features overall. partition.py proves that it is best.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UsageError
from tfbuild.facts import Facts, releases
from tfbuild.fleet import partition
from tfbuild.fleet.hosts import FleetHost, Skipped
from tfbuild.fleet.partition import Cover
from tfbuild.plan import MACHINES, newest_official
from tfbuild.util.files import decode, read_named
from tfbuild.util.terminal import cause

SCHEMA = "tfbuild.fleet/1"
# Losses are summed as whole multiples of 0.01 percent; the number of unused features breaks ties.
UNIT = 10_000
TIES = 10**12


class SpeedRow(Facts, frozen=True):
    """A measurement; `by`: the compiler or setting of each ratio."""

    name: str
    arch: str
    what: str
    machine: str
    by: tuple[str, ...]
    source: str


class EstimatedGain(Facts, frozen=True):
    """The speed of code compiled for `cpu`, relative to code compiled with -mavx."""

    measure: str
    cpu: str
    ratios: tuple[float, ...]


class GainTable(Facts, frozen=True):
    measure: tuple[SpeedRow, ...]
    gain: tuple[EstimatedGain, ...]


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

    `speed`: relative to the official wheel's flags, by measure. `official_wheel`: by the first measure, the official
    wheel is as fast and runs on all of these hosts, so no build is needed.
    """

    hosts: tuple[str, ...]
    speed: dict[str, float | None]
    official_wheel: bool


@dataclass(frozen=True, kw_only=True)
class CoveredHost:
    """A host, the position of its image in the list of images, and what it gives up with that image.

    `loss`: the share of the speed of an image built for this CPU alone, by measure; None if it was not measured.
    """

    name: str
    model: str
    platform: str
    instruction_set: str
    level: str
    image: int
    loss: dict[str, float | None]
    unused: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a name in `speed` and `loss` stands for; a platform without an estimate was not measured.

    `measured`: the instruction sets that were timed, as --cpu takes them. Any other set counts as the best of those it
    contains.
    """

    name: str
    platform: str
    what: str
    measured: tuple[str, ...]
    machine: str
    source: str


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
    """Return the best images for these hosts, at most `most`. Raises UsageError if that is fewer than platforms."""
    parts = [_Architecture(arch, hosts) for arch in sorted({host.cpu.arch for host in hosts})]
    if most < len(parts):
        raise UsageError(
            f"--images {most} is too few for {len(parts)} platforms: {', '.join(part.platform for part in parts)}",
            hint=f"use --images {len(parts)} or more",
        )
    chosen = min(_allocations(parts, most), key=lambda losses: tuple(map(sum, zip(*losses, strict=True))))
    covers = [part.covers[images - 1] for part, (_, _, images, _) in zip(parts, chosen, strict=True)]
    images, covered = _result(parts, covers)
    return Fleet(
        schema=SCHEMA,
        allowed=most,
        proved=all(cover.proved for part in parts for cover in part.covers),
        common=tuple(Compiled(**_fields(isa.intersection(part.sets))) for part in parts),
        images=images,
        hosts=tuple(covered[host.name] for host in hosts),
        skipped=tuple(skipped),
        estimates=tuple(_estimate(row, part.platform) for part in parts for row in speed_rows(part.arch)),
    )


def _estimate(row: SpeedRow, platform: str) -> Estimate:
    return Estimate(
        name=row.name,
        platform=platform,
        what=row.what,
        measured=tuple(gain.cpu for gain in facts.load("gains", GainTable).gain if gain.measure == row.name),
        machine=row.machine,
        source=row.source,
    )


class _Architecture:
    """The hosts of one architecture, grouped by equal instruction sets, and their best covers with 1, 2, ... images."""

    def __init__(self, arch: str, hosts: Sequence[FleetHost]) -> None:
        self.arch = arch
        self.platform = MACHINES[arch]
        self.hosts = [(host, isa.of_cpu(host.cpu)) for host in hosts if host.cpu.arch == arch]
        counts = Counter(own for _, own in self.hosts)
        self.sets = sorted(counts, key=lambda own: own.features)
        self.weights = [counts[own] for own in self.sets]
        self.bits = [sum(1 << bit for bit, name in enumerate(self._names) if name in own.features) for own in self.sets]
        self.covers: list[Cover] = []
        self.measured = bool(speed_rows(arch))

    @property
    def _names(self) -> list[str]:
        return [row.name for row in facts.features(self.arch)]

    def find(self, most: int) -> None:
        """Fill `covers` up to `most` images, or the first that loses nothing; each search starts from the last."""
        cost = cache(self._cost)
        for images in range(1, min(most, len(self.sets)) + 1):
            self.covers.append(partition.cover(self.bits, images, cost, self.covers[-1] if self.covers else None))
            if not any(self.losses(images)[:2]):
                break

    def _cost(self, index: int, image: int) -> int:
        """Return what all hosts with this set lose with an image: estimated speed first, then features."""
        own = frozenset(self.sets[index].features)
        held = frozenset(name for bit, name in enumerate(self._names) if image >> bit & 1)
        measures = speed_rows(self.arch)
        lost = speed_loss(own, held, measures[0]) if measures else 0
        return self.weights[index] * (round((lost or 0) * UNIT) * TIES + len(own - held))

    def losses(self, images: int) -> tuple[int, int, int, int]:
        """Return what the best cover with so many images loses: speed, unmeasured features, images, all features."""
        lost, unused = divmod(self.covers[images - 1].cost, TIES)
        return lost, 0 if self.measured else unused, images, unused


def _allocations(parts: Sequence[_Architecture], most: int) -> Iterator[tuple[tuple[int, int, int, int], ...]]:
    """Yield the losses of every allocation of at most `most` images to the architectures, each with at least one."""
    for part in parts:
        part.find(most - len(parts) + 1)
    for counts in itertools.product(*(range(1, len(part.covers) + 1) for part in parts)):
        if sum(counts) <= most:
            yield tuple(part.losses(images) for part, images in zip(parts, counts, strict=True))


# --- the result ----------------------------------------------------------------------------------------------------


def _result(
    parts: Sequence[_Architecture], covers: Sequence[Cover]
) -> tuple[tuple[FleetImage, ...], dict[str, CoveredHost]]:
    """Return the images, the widest set of each platform first, and the covered hosts by name."""
    images: list[FleetImage] = []
    covered: dict[str, CoveredHost] = {}
    for part, cover in zip(parts, covers, strict=True):
        groups = [[part.sets[index] for index in group] for group in cover.groups]
        for group in sorted(groups, key=lambda sets: (-len(isa.intersection(sets).features), sets[0].features)):
            compiled = isa.intersection(group)
            served = [(host, own) for host, own in part.hosts if own in group]
            images.append(_image(compiled, tuple(sorted(host.name for host, _ in served))))
            covered |= {host.name: _covered(host, own, compiled, len(images) - 1) for host, own in served}
    return tuple(images), covered


def _image(compiled: InstructionSet, hosts: tuple[str, ...]) -> FleetImage:
    held = frozenset(compiled.features)
    speed = {row.name: relative_speed(held, row) for row in speed_rows(compiled.arch)}
    first = next(iter(speed.values()), None)
    return FleetImage(
        **_fields(compiled),
        hosts=hosts,
        speed=speed,
        official_wheel=first is not None and first <= 1 and _official(compiled.arch) <= held,
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
        loss={row.name: speed_loss(own_features, image_features, row) for row in speed_rows(own.arch)},
        unused=tuple(sorted(own_features - image_features)),
    )


# --- estimates of speed, from the measurements in facts/gains.toml; there are none for aarch64 ------------------------


def speed_rows(arch: str) -> tuple[SpeedRow, ...]:
    """Return the measures of an architecture. The first one decides which images are chosen."""
    return tuple(row for row in facts.load("gains", GainTable).measure if row.arch == arch)


@cache
def _ratios(measure: str, arch: str) -> tuple[tuple[frozenset[str], float], ...]:
    rows = (row for row in facts.load("gains", GainTable).gain if row.measure == measure)
    return tuple((frozenset(isa.resolve(row.cpu, arch=arch).features), median(row.ratios)) for row in rows)


def relative_speed(features: frozenset[str], measure: SpeedRow) -> float | None:
    """Return the estimated speed relative to -mavx: that of the fastest measured set within `features`.

    None if there is none, or if `features` contain a larger set that only other measures timed: what it gains is not
    known then.
    """
    within = [row for row in _ratios(measure.name, measure.arch) if row[0] <= features]
    timed = (held for row in speed_rows(measure.arch) for held, _ in _ratios(row.name, row.arch) if held <= features)
    if any(not any(held <= own for own, _ in within) for held in timed):
        return None
    return max((ratio for _, ratio in within), default=None)


def speed_loss(own: frozenset[str], image: frozenset[str], measure: SpeedRow) -> float | None:
    """Return the share of speed that a CPU with the features `own` gives up with an image compiled for `image`.

    None if either has no estimate.
    """
    best, actual = relative_speed(own, measure), relative_speed(image, measure)
    return None if best is None or actual is None else round(1 - actual / best, 4)
