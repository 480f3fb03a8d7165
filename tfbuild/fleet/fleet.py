"""Which images a fleet needs: what its CPUs have in common, and the best cover with at most K builds.

Best is, in this order: the least speed given up by the estimate (summed over the hosts), the fewest features given up
where no estimate exists (aarch64), the fewest images, the fewest features given up at all. tfbuild.cover proves it.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import IO, TYPE_CHECKING, Any

import msgspec

from tfbuild import facts
from tfbuild.cpu import MOST_TEXT, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UsageError
from tfbuild.facts import base_images, releases
from tfbuild.fleet import gains, partition
from tfbuild.fleet.hosts import FleetHost, Skipped
from tfbuild.fleet.partition import Cover
from tfbuild.plan import MACHINES
from tfbuild.util import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

SCHEMA = "tfbuild.fleet/1"
# Losses are summed as whole numbers of 0.01 percent; features break ties below one of them.
UNIT = 10_000
TIES = 10**12
MOST_NAMED = 3
NOT_PROVED = " (not proved to be the best)"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An instruction set on a platform; `platform` and `cpu` are the plan's options for it."""

    platform: str
    cpu: str
    instruction_set: str
    level: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FleetImage(Compiled):
    """One build, and the hosts that it is for.

    `speed`: over the official wheel's flags, by measure. `official_wheel`: by the first of them the official wheel,
    which needs no build, runs on all of these hosts and is as fast.
    """

    hosts: tuple[str, ...]
    speed: dict[str, float | None]
    official_wheel: bool


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A host, the place of its image in the list of images, and what it gives up there.

    `loss`: share of the speed that an image for this CPU alone would have, by measure; None is "not measured".
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
    """What a name in `speed` and `loss` stands for; platforms without one have no measurement.

    `measured`: the instruction sets that were timed. Any other one counts as the best of those within it.
    """

    name: str
    platform: str
    what: str
    measured: tuple[str, ...]
    machine: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The whole answer, as `--json` prints it. `common`: the largest instruction set of all hosts, one a platform.
    `proved`: no cover with at most `allowed` images is better.
    """

    schema: str
    allowed: int
    proved: bool
    common: tuple[Compiled, ...]
    images: tuple[FleetImage, ...]
    hosts: tuple[Placed, ...]
    skipped: tuple[Skipped, ...]
    estimates: tuple[Estimate, ...]


def to_json(fleet: Fleet) -> str:
    return msgspec.json.format(msgspec.json.encode(fleet), indent=2).decode()


def read(path: Path) -> Fleet:
    """A fleet out of the file that `invoke fleet --json` wrote; UsageError where it is none."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(MOST_TEXT), type=Fleet)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} holds no fleet: {error}", hint="invoke fleet HOSTS --json > FILE") from error
    if found.schema != SCHEMA:
        raise UsageError(f"{path} is of schema {found.schema!r}, not {SCHEMA!r}", hint="make it again: invoke fleet")
    return found


# --- the choice ----------------------------------------------------------------------------------------------------


def choose(hosts: Sequence[FleetHost], most: int, skipped: Sequence[Skipped] = ()) -> Fleet:
    """The best images for these hosts, at most `most`; UsageError where the platforms alone need more."""
    kinds = [_Kind(arch, hosts) for arch in sorted({host.cpu.arch for host in hosts})]
    if most < len(kinds):
        raise UsageError(
            f"--images {most} is too few for {len(kinds)} platforms: {', '.join(kind.platform for kind in kinds)}",
            hint=f"--images {len(kinds)} at least",
        )
    chosen = min(_ways(kinds, most), key=lambda way: tuple(map(sum, zip(*way, strict=True))))
    covers = [kind.covers[images - 1] for kind, (_, _, images, _) in zip(kinds, chosen, strict=True)]
    images, placed = _laid_out(kinds, covers)
    return Fleet(
        schema=SCHEMA,
        allowed=most,
        proved=all(found.proved for kind in kinds for found in kind.covers),
        common=tuple(Compiled(**_options(isa.intersection(kind.sets))) for kind in kinds),
        images=images,
        hosts=tuple(placed[host.name] for host in hosts),
        skipped=tuple(skipped),
        estimates=tuple(
            Estimate(
                name=row.name,
                platform=kind.platform,
                what=row.what,
                measured=gains.measured(row),
                machine=row.machine,
                source=row.source,
            )
            for kind in kinds
            for row in gains.measures(kind.arch)
        ),
    )


class _Kind:
    """The hosts of one architecture, those of equal sets taken together, and their best covers of 1, 2, ... images."""

    def __init__(self, arch: str, hosts: Sequence[FleetHost]) -> None:
        self.arch = arch
        self.platform = MACHINES[arch]
        self.hosts = [(host, isa.of_cpu(host.cpu)) for host in hosts if host.cpu.arch == arch]
        counted = Counter(own for _, own in self.hosts)
        self.sets = sorted(counted, key=lambda own: own.features)
        self.weights = [counted[own] for own in self.sets]
        self.bits = [
            sum(1 << place for place, row in enumerate(self._rows) if row in own.features) for own in self.sets
        ]
        self.covers: list[Cover] = []
        self.measured = bool(gains.measures(arch))

    @property
    def _rows(self) -> list[str]:
        return [row.name for row in facts.features(self.arch)]

    def find(self, most: int) -> None:
        """Fills `covers` up to `most` images, or to the first with which nothing is lost; each starts from the last."""
        cost = cache(self._cost)
        for images in range(1, min(most, len(self.sets)) + 1):
            self.covers.append(partition.cover(self.bits, images, cost, self.covers[-1] if self.covers else None))
            if not any(self.merits(images)[:2]):
                break

    def _cost(self, index: int, image: int) -> int:
        """What all hosts with this set lose with an image: the estimate first, then the number of features."""
        own = frozenset(self.sets[index].features)
        held = frozenset(row for place, row in enumerate(self._rows) if image >> place & 1)
        decides = gains.measures(self.arch)[:1]
        lost = gains.loss(own, held, decides[0]) if decides else 0
        return self.weights[index] * (round((lost or 0) * UNIT) * TIES + len(own - held))

    def merits(self, images: int) -> tuple[int, int, int, int]:
        """Of the best cover with so many images: speed given up, features where none is measured, images, features."""
        lost, unused = divmod(self.covers[images - 1].cost, TIES)
        return lost, 0 if self.measured else unused, images, unused


def _ways(kinds: Sequence[_Kind], most: int) -> Iterator[tuple[tuple[int, int, int, int], ...]]:
    """The merits of every way to share at most `most` images out among the architectures, each with one at least."""
    for kind in kinds:
        kind.find(most - len(kinds) + 1)
    counts = itertools.product(*(range(1, len(kind.covers) + 1) for kind in kinds))
    for shares in counts:
        if sum(shares) <= most:
            yield tuple(kind.merits(images) for kind, images in zip(kinds, shares, strict=True))


# --- the answer ----------------------------------------------------------------------------------------------------


def _laid_out(kinds: Sequence[_Kind], covers: Sequence[Cover]) -> tuple[tuple[FleetImage, ...], dict[str, Placed]]:
    """The images, the widest set of each platform first, and each host by its name."""
    images: list[FleetImage] = []
    placed: dict[str, Placed] = {}
    for kind, found in zip(kinds, covers, strict=True):
        groups = [[kind.sets[index] for index in group] for group in found.groups]
        for group in sorted(groups, key=lambda sets: (-len(isa.intersection(sets).features), sets[0].features)):
            compiled = isa.intersection(group)
            served = [(host, own) for host, own in kind.hosts if own in group]
            images.append(_image(compiled, tuple(sorted(host.name for host, _ in served))))
            placed |= {host.name: _placed(host, own, compiled, len(images) - 1) for host, own in served}
    return tuple(images), placed


def _image(compiled: InstructionSet, hosts: tuple[str, ...]) -> FleetImage:
    held = frozenset(compiled.features)
    speed = {row.name: gains.speed(held, row) for row in gains.measures(compiled.arch)}
    decides = next(iter(speed.values()), None)
    return FleetImage(
        **_options(compiled),
        hosts=hosts,
        speed=speed,
        official_wheel=decides is not None and decides <= 1 and _official(compiled.arch) <= held,
    )


def _official(arch: str) -> frozenset[str]:
    """What a CPU must have for the newest official wheel."""
    release = releases.newest_official(arch, base_images.default().python)
    return isa.closure(releases.official_wheel(release, arch).features)


def _options(asked: InstructionSet) -> dict[str, Any]:
    return {
        "platform": MACHINES[asked.arch],
        "cpu": isa.option(asked),
        "instruction_set": asked.name,
        "level": asked.level,
        "features": asked.features,
    }


def _placed(host: FleetHost, own: InstructionSet, compiled: InstructionSet, image: int) -> Placed:
    held, given = frozenset(own.features), frozenset(compiled.features)
    return Placed(
        name=host.name,
        model=host.cpu.model,
        platform=MACHINES[own.arch],
        instruction_set=own.name,
        level=own.level,
        image=image,
        loss={row.name: gains.loss(held, given, row) for row in gains.measures(own.arch)},
        unused=tuple(sorted(held - given)),
    )


# --- terminal ------------------------------------------------------------------------------------------------------


def show(fleet: Fleet, stream: IO[str] | None = None) -> None:
    """Images, then hosts, those alike on one line, then what the figures are."""
    from rich.text import Text

    parts: list[RenderableType] = [*_head(fleet), *_images(fleet), "", _hosts(fleet), ""]
    parts += [Text(line, "dim") for line in _told(fleet)]
    terminal.write(terminal.console(stream), parts)


def _head(fleet: Fleet) -> Iterator["Text"]:
    sets = {(host.platform, host.instruction_set) for host in fleet.hosts}
    yield _line(f"fleet      {_many(len(fleet.hosts), 'host')}, {_many(len(sets), 'different instruction set')}")
    for row in fleet.common:
        yield _line(f"in common  --platform {row.platform} --cpu {row.cpu}")
    if given := _average(fleet.hosts):
        yield _line(f"gives up   {given} on average (estimate)")
    yield _line(f"images     {len(fleet.images)} of at most {fleet.allowed}{'' if fleet.proved else NOT_PROVED}")


def _average(hosts: Sequence[Placed]) -> str:
    """The mean of what hosts give up, by measure, of those for which it is known."""
    names = dict.fromkeys(name for host in hosts for name in host.loss)
    known = {name: [share for host in hosts if (share := host.loss.get(name)) is not None] for name in names}
    return ", ".join(f"{name} {_share(mean(shares))}" for name, shares in known.items() if shares)


def _images(fleet: Fleet) -> Iterator["Text"]:
    for place, image in enumerate(fleet.images, start=1):
        yield _line("")
        yield _line(f"image {place}: {image.instruction_set}, for {_many(len(image.hosts), 'host')}", "bold")
        yield _line(f"  --platform {image.platform} --cpu {image.cpu}", "green")
        known = [f"{name} {ratio:.2f}" for name, ratio in image.speed.items() if ratio is not None]
        if known:
            yield _line(f"  estimated speed over the official wheel's flags: {', '.join(known)}")
        if image.official_wheel:
            yield _line("  the official wheel does as well: --wheel official")


def _hosts(fleet: Fleet) -> "Table":
    """One line for all hosts of one instruction set; a column of what they give up for each measure."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    measures = list(dict.fromkeys(row.name for row in fleet.estimates))
    for title in ("host", "image", *measures, "unused features"):
        table.add_column(title, overflow="fold", justify="right" if title in ("image", *measures) else "left")
    alike: dict[tuple[int, str], list[Placed]] = {}
    for host in fleet.hosts:
        alike.setdefault((host.image, host.instruction_set), []).append(host)
    for (image, _), hosts in sorted(alike.items()):
        losses = (_share(hosts[0].loss.get(name)) for name in measures)
        cells = (_few([host.name for host in hosts], 1), str(image + 1), *losses, _few(hosts[0].unused, MOST_NAMED))
        table.add_row(*map(Text, cells))
    return table


def _line(text: str, style: str = "") -> "Text":
    """A line with what is to be pasted."""
    from rich.text import Text

    return Text(text, style, no_wrap=True)


def _share(loss: float | None) -> str:
    return "?" if loss is None else f"{loss:.0%}"


def _few(names: Sequence[str], most: int) -> str:
    few = " ".join(names[:most])
    return f"{few} and {len(names) - most} more" if len(names) > most else few or "none"


def _told(fleet: Fleet) -> Iterator[str]:
    if not fleet.proved:
        yield "The search was stopped at its limit: a better cover may exist."
    if fleet.estimates:
        yield "The share of its speed that a host gives up is an estimate, and 0% no promise (?: not measured)."
    for row in fleet.estimates:
        yield f"{row.name}: {row.what}. Timed: {' '.join(row.measured)}, on {row.machine}."
    if bare := sorted({host.platform for host in fleet.hosts} - {row.platform for row in fleet.estimates}):
        yield f"{', '.join(bare)}: not measured; images are chosen by the number of unused features."


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")
