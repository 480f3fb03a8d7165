"""Print a fleet."""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import IO, TYPE_CHECKING

from tfbuild.fleet.fleet import CoveredHost, Fleet
from tfbuild.util import terminal
from tfbuild.util.quantities import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

MOST_NAMED = 3
NOT_MEASURED = "not measured"
NOT_PROVED = " (found by merging; not proved to be the best)"


def show(fleet: Fleet, stream: IO[str] | None = None) -> None:
    """Print the images, the hosts (equal ones on one line), and what the figures mean."""
    from rich.text import Text

    parts: list[RenderableType] = [*_head(fleet), *_images(fleet), "", _hosts(fleet), ""]
    parts += [Text(line, "dim") for line in _explanations(fleet)]
    terminal.write(terminal.console(stream), parts)


def _head(fleet: Fleet) -> Iterator["Text"]:
    sets = {(host.platform, host.instruction_set) for host in fleet.hosts}
    yield _line(f"fleet      {counted(len(fleet.hosts), 'host')}, {counted(len(sets), 'different instruction set')}")
    for row in fleet.common:
        yield _line(f"in common  --platform {row.platform} --cpu {row.cpu}")
    if losses := _average(fleet.hosts):
        yield _line(f"gives up   {losses} on average (estimate)")
    yield _line(f"images     {len(fleet.images)} of at most {fleet.allowed}{'' if fleet.proved else NOT_PROVED}")


def _average(hosts: Sequence[CoveredHost]) -> str:
    """Return the mean of what hosts give up, by measure, over the hosts for which it is known."""
    names = dict.fromkeys(name for host in hosts for name in host.loss)
    known = {name: [share for host in hosts if (share := host.loss.get(name)) is not None] for name in names}
    return ", ".join(f"{name} {_share(mean(shares))}" for name, shares in known.items() if shares)


def _images(fleet: Fleet) -> Iterator["Text"]:
    for number, image in enumerate(fleet.images, start=1):
        yield _line("")
        yield _line(f"image {number}: {image.instruction_set}, for {counted(len(image.hosts), 'host')}", "bold")
        yield _line(f"  --platform {image.platform} --cpu {image.cpu}", "green")
        speeds = [f"{name} {NOT_MEASURED if ratio is None else f'{ratio:.2f}'}" for name, ratio in image.speed.items()]
        yield _line(f"  estimated speed, official wheel = 1: {', '.join(speeds) or NOT_MEASURED}")
        if image.official_wheel:
            yield _line("  the official wheel is as fast: --wheel official")


def _hosts(fleet: Fleet) -> "Table":
    """Return one row for all hosts of one instruction set; one column per measure of what they give up."""
    measures = tuple(dict.fromkeys(row.name for row in fleet.estimates))
    alike: dict[tuple[int, str], list[CoveredHost]] = {}
    for host in fleet.hosts:
        alike.setdefault((host.image, host.instruction_set), []).append(host)
    rows = [
        (
            _few([host.name for host in hosts], 1),
            str(image + 1),
            *(_share(hosts[0].loss.get(name)) for name in measures),
            _few(hosts[0].unused, MOST_NAMED),
        )
        for (image, _), hosts in sorted(alike.items())
    ]
    titles = ("host", "image", *measures, "unused features")
    return terminal.table(titles, rows, figures=("image", *measures))


def _line(text: str, style: str = "") -> "Text":
    """Return a line that is not wrapped, so that it can be pasted."""
    from rich.text import Text

    return Text(text, style, no_wrap=True)


def _share(loss: float | None) -> str:
    return NOT_MEASURED if loss is None else f"{loss:.0%}"


def _few(names: Sequence[str], most: int) -> str:
    first = " ".join(names[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first or "none"


def _explanations(fleet: Fleet) -> Iterator[str]:
    if not fleet.proved:
        yield "There were too many choices to try all of them: a better cover may exist."
    if fleet.estimates:
        yield "The share of speed that a host gives up is an estimate, and 0% is not a guarantee."
    for row in fleet.estimates:
        yield f"{row.name}: {row.what}. Timed: {' '.join(row.measured)}, on {row.machine}."
    if bare := sorted({host.platform for host in fleet.hosts} - {row.platform for row in fleet.estimates}):
        yield f"{', '.join(bare)}: not measured; the number of unused features decides which images are chosen."
