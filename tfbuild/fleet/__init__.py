"""A fleet: the machines of recordings, at most K images that cover them, and what each machine gives up."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from pathlib import Path
from statistics import mean
from typing import IO, TYPE_CHECKING

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.bench import gain
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import releases
from tfbuild.plan import MACHINES, newest_official
from tfbuild.util import terminal
from tfbuild.util.files import decode, read_named
from tfbuild.util.quantities import counted, few

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SCHEMA = "tfbuild.fleet/1"
RECORD = "record one per machine: cat /proc/cpuinfo > FOLDER/NAME"
MOST_NAMED = 3
# Up to so many choices of images, all are tried; beyond that, groups of CPUs are merged, the cheapest pair first.
MOST_CHOICES = 20_000
Features = frozenset[str]
# What a CPU's set loses with an image within it, the most important part first: (speed, features of unknown use, all).
Loss = tuple[float, int, int]
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class FleetImage:
    """One build, and the hosts it is for; `platform` and `cpu` are the options of `invoke plan` for it.

    `speed`: an estimate relative to the official wheel; None if it was not measured. `official_wheel`: that wheel is as
    fast and runs on all of these hosts, so no build is needed.
    """

    platform: str
    cpu: str
    instruction_set: str
    features: tuple[str, ...]
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
    instruction_set: str
    image: int
    loss: float | None
    unused: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The result, as `--json` prints it. `proved`: no cover with at most `allowed` images is better."""

    schema: str
    allowed: int
    proved: bool
    images: tuple[FleetImage, ...]
    hosts: tuple[CoveredHost, ...]


def read_fleet(path: Path) -> Fleet:
    """Read a fleet from a file that `invoke fleet --json` wrote. Raises UsageError if it is not one."""
    try:
        fleet = decode(read_named(path), Fleet)
        if fleet.schema != SCHEMA or not fleet.images:
            raise ValueError(f"it lists no images of schema {SCHEMA}")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} does not hold a fleet: {terminal.cause(error)}", hint="invoke fleet HOSTS --json > FILE"
        ) from error
    return fleet


# --- where hosts come from --------------------------------------------------------------------------------------------


def read_hosts(sources: Sequence[str]) -> dict[str, Cpu]:
    """Return the CPUs of all recordings by their names, each file once. A source is a file or a folder of them.

    Raises UsageError if a source names nothing, and Unsupported, which lists all recordings that cannot be read.
    """
    # Links count as separate machines, which is how to list several of one kind.
    files = list({os.path.abspath(file): file for source in sources for file in _files(Path(source))}.values())
    counts = Counter(file.name for file in files)
    hosts: dict[str, Cpu] = {}
    unreadable: list[str] = []
    for file in files:
        name = (file.name if counts[file.name] == 1 else str(file)).encode(errors="replace").decode()
        try:
            hosts[name] = cpu = cpus.parse(cpus.read_text(file), origin=name)
            if not cpu.level or not isa.of_cpu(cpu).features:
                raise Unsupported("its CPU has none of the features by which images differ")
        except TfbuildError as error:
            unreadable.append(f"  {name}: {error.reason}")
    if unreadable:
        raise Unsupported(
            "\n".join((f"{len(unreadable)} of the machines cannot be read", *unreadable)),
            hint=f"remove these files, or {RECORD}",
        )
    return hosts


def _files(path: Path) -> list[Path]:
    # os.path's tests return False if the system refuses to look (the name is too long, the folder is not readable).
    if os.path.isfile(path):
        return [path]
    try:
        files = sorted(path.iterdir()) if os.path.isdir(path) else []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name files or a readable folder") from error
    files = [file for file in files if os.path.isfile(file) and not file.name.startswith(".")]
    if not files:
        raise UsageError(f"{path} is not a file or a folder with files", hint=RECORD)
    return files


# --- the choice -------------------------------------------------------------------------------------------------------


def choose(hosts: Mapping[str, Cpu], most: int) -> Fleet:
    """Return the best images for these hosts, at most `most`. Raises UsageError if that is fewer than platforms.

    It gives up the least estimated speed, summed over the hosts; then the fewest features where there is no estimate
    (aarch64); then it has the fewest images, and leaves the fewest features unused.
    """
    sets = {name: isa.shared(cpu) for name, cpu in hosts.items()}
    counts = Counter(sets.values())
    archs = {sets[name]: cpu.arch for name, cpu in hosts.items()}
    if most < (platforms := len(set(archs.values()))):
        raise UsageError(
            f"--images {most} is too few for {platforms} platforms", hint=f"use --images {platforms} or more"
        )

    def loss(own: Features, image: Features) -> Loss:
        share, count = speed_loss(own, image, archs[own]), counts[own]
        unused = count * len(own - image)
        # Whole ten-thousandths: sums of floats would break ties by their rounding.
        return (0, unused, unused) if share is None else (round(count * share * 10_000), 0, unused)

    images, proved = cover(sorted(archs, key=sorted), most, loss)
    served = {name: best(own, images, loss) or frozenset() for name, own in sets.items()}
    groups = {image: [name for name in sets if served[name] == image] for image in set(served.values())}
    compiled = {image: isa.instruction_set(isa.relevant(image), hosts[own[0]].arch) for image, own in groups.items()}
    order = sorted(groups, key=lambda image: (compiled[image].arch, -len(compiled[image].features), sorted(image)))
    return Fleet(
        schema=SCHEMA,
        allowed=most,
        proved=proved,
        images=tuple(_image(compiled[image], sorted(groups[image])) for image in order),
        hosts=tuple(
            CoveredHost(
                name=name,
                model=hosts[name].model,
                instruction_set=own.name,
                image=order.index(served[name]),
                loss=speed_loss(sets[name], served[name], own.arch),
                unused=tuple(feature for feature in own.features if feature not in compiled[served[name]].features),
            )
            for name, own in ((name, isa.of_cpu(cpu)) for name, cpu in hosts.items())
        ),
    )


def _image(compiled: InstructionSet, hosts: list[str]) -> FleetImage:
    held = frozenset(compiled.features)
    speed = gain.relative_speed(held, compiled.arch)
    official = releases.official_wheel(newest_official(compiled.arch), compiled.arch).features
    return FleetImage(
        platform=MACHINES[compiled.arch],
        cpu=compiled.option,
        instruction_set=compiled.name,
        features=compiled.features,
        hosts=tuple(hosts),
        speed=speed,
        official_wheel=speed is not None and speed <= 1 and facts.closure(official) <= held,
    )


def speed_loss(own: frozenset[str], image: frozenset[str], arch: str) -> float | None:
    """Return the share of speed that a CPU with the features `own` gives up with an image compiled for `image`.

    An estimate from the measurements in facts/gains.toml; None if either has none.
    """
    fastest, actual = gain.relative_speed(own, arch), gain.relative_speed(image, arch)
    return None if fastest is None or actual is None else round(1 - actual / fastest, 4)


# --- on the terminal --------------------------------------------------------------------------------------------------


def show_fleet(fleet: Fleet, stream: IO[str] | None = None) -> None:
    """Print the images, the hosts (equal ones on one line), and what the figures mean."""
    from rich.text import Text

    # Lines with options are not wrapped, so that they can be pasted.
    parts: list[RenderableType] = [Text(line, style, no_wrap=True) for line, style in _lines(fleet)]
    parts += ["", _hosts(fleet), "", *(Text(line, "dim") for line in _explanations(fleet))]
    print(terminal.rendered(parts, stream), end="", file=stream)


def _lines(fleet: Fleet) -> Iterator[tuple[str, str]]:
    sets = {host.instruction_set for host in fleet.hosts}
    yield f"fleet      {counted(len(fleet.hosts), 'host')}, {counted(len(sets), 'different instruction set')}", ""
    if losses := [host.loss for host in fleet.hosts if host.loss is not None]:
        yield f"gives up   {_share(mean(losses))} of the speed on average (estimate)", ""
    proved = "" if fleet.proved else " (found by merging; not proved to be the best)"
    yield f"images     {len(fleet.images)} of at most {fleet.allowed}{proved}", ""
    for number, image in enumerate(fleet.images, start=1):
        yield "", ""
        yield f"image {number}: {image.instruction_set}, for {counted(len(image.hosts), 'host')}", "bold"
        yield f"  --platform {image.platform} --cpu {image.cpu}", "green"
        speed = NOT_MEASURED if image.speed is None else f"{image.speed:.2f}"
        yield f"  estimated speed, official wheel = 1: {speed}", ""
        if image.official_wheel:
            yield "  the official wheel is as fast: --wheel official", ""


def _hosts(fleet: Fleet) -> "Table":
    """Return one row for all hosts of one instruction set."""
    alike: dict[tuple[int, str], list[CoveredHost]] = {}
    for host in fleet.hosts:
        alike.setdefault((host.image + 1, host.instruction_set), []).append(host)
    rows = [
        (_few([host.name for host in hosts], 1), str(image), _share(hosts[0].loss), _few(hosts[0].unused, MOST_NAMED))
        for (image, _), hosts in sorted(alike.items())
    ]
    return terminal.table(("host", "image", "gives up", "unused features"), rows, figures=("image", "gives up"))


def _share(loss: float | None) -> str:
    return NOT_MEASURED if loss is None else f"{loss:.0%}"


def _few(names: Sequence[str], most: int) -> str:
    return few([*map(terminal.printable, names)], most, " ") or "none"


def _explanations(fleet: Fleet) -> Iterator[str]:
    if any(host.loss is not None for host in fleet.hosts):
        yield "The share of speed that a host gives up is an estimate, and 0% is not a guarantee."
        # The slowest first: of a set that was measured twice, the fastest stays.
        fastest = {cpu: speed for speed, cpu in sorted((row.relative_speed, row.cpu) for row in gain.measured_gains())}
        speeds = ", ".join(f"{cpu} {speed:.2f}" for cpu, speed in fastest.items())
        yield f"Measured, relative to code for AVX: {speeds}. tfbuild/facts/gains.toml says what ran."
    if bare := sorted({fleet.images[host.image].platform for host in fleet.hosts if host.loss is None}):
        yield f"{', '.join(bare)}: not measured; the number of unused features decides which images are chosen."


# --- the sets that cover ----------------------------------------------------------------------------------------------
# An image is best compiled for all that its CPUs have in common, so only intersections of their sets are tried.


def cover(
    sets: Sequence[Features], most: int, loss: Callable[[Features, Features], Loss]
) -> tuple[tuple[Features, ...], bool]:
    """Return the features of at most `most` images that cover these different sets, and whether none are better.

    `loss(own, image)`: what CPUs with the set `own` lose with that image. Of equal losses, fewer images are
    better. Sets of different architectures have no feature in common, and never share an image.
    """
    loss = cache(loss)
    candidates = _intersections(sets)
    sizes = range(1, min(most, len(candidates)) + 1)
    if sum(comb(len(candidates), size) for size in sizes) > MOST_CHOICES:
        return _merged(sets, most, loss), False
    choices = itertools.chain.from_iterable(itertools.combinations(candidates, size) for size in sizes)
    return min(choices, key=lambda images: _total(sets, images, loss)), True


def best(own: Features, images: Sequence[Features], loss: Callable[[Features, Features], Loss]) -> Features | None:
    """Return the image with which CPUs with the set `own` lose least; None if they can run none of them."""
    return min((image for image in images if image <= own), key=lambda image: loss(own, image), default=None)


def _intersections(sets: Sequence[Features]) -> list[Features]:
    """Return the intersections of all subsets, in a stable order, or as many of them as are too many to try."""
    found: set[Features] = set()
    for own in sets:
        found |= {own} | {own & other for other in found}
        if len(found) > MOST_CHOICES:
            break
    return sorted(found - {frozenset()}, key=lambda image: (len(image), sorted(image)))


def _total(
    sets: Sequence[Features], images: Sequence[Features], loss: Callable[[Features, Features], Loss]
) -> tuple[float, float, int, int]:
    losses = [loss(own, image) for own in sets if (image := best(own, images, loss)) is not None]
    speed, unknown, unused = map(sum, zip(*losses, strict=True)) if losses else (0, 0, 0)
    return (speed, unknown, len(images), unused) if len(losses) == len(sets) else (float("inf"), 0, 0, 0)


def _merged(sets: Sequence[Features], most: int, loss: Callable[[Features, Features], Loss]) -> tuple[Features, ...]:
    """Return an image for each set, then merge the pair that adds the least loss, until few enough and none is free."""

    def lost(group: tuple[Features, ...]) -> tuple[float, ...]:
        image = frozenset.intersection(*group)
        return tuple(map(sum, zip(*(loss(own, image) for own in group), strict=True)))

    @cache
    def added(first: tuple[Features, ...], second: tuple[Features, ...]) -> tuple[float, ...]:
        return tuple(both - a - b for both, a, b in zip(lost(first + second), lost(first), lost(second), strict=True))

    groups: list[tuple[Features, ...]] = [(own,) for own in sets]
    while pairs := [(a, b) for a, b in itertools.combinations(groups, 2) if frozenset.intersection(*a, *b)]:
        first, second = min(pairs, key=lambda pair: added(*pair))
        if len(groups) <= most and any(added(first, second)[:2]):
            break
        groups = [group for group in groups if group not in (first, second)] + [first + second]
    return tuple(frozenset.intersection(*group) for group in groups)
