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
    if losses := [host.loss for host in fleet.hosts if host.loss is not None]:
        yield _line(f"gives up   {_share(mean(losses))} of the speed on average (estimate)")
    yield _line(f"images     {len(fleet.images)} of at most {fleet.allowed}{'' if fleet.proved else NOT_PROVED}")


def _images(fleet: Fleet) -> Iterator["Text"]:
    for number, image in enumerate(fleet.images, start=1):
        yield _line("")
        yield _line(f"image {number}: {image.instruction_set}, for {counted(len(image.hosts), 'host')}", "bold")
        yield _line(f"  --platform {image.platform} --cpu {image.cpu}", "green")
        speed = NOT_MEASURED if image.speed is None else f"{image.speed:.2f}"
        yield _line(f"  estimated speed, official wheel = 1: {speed}")
        if image.official_wheel:
            yield _line("  the official wheel is as fast: --wheel official")


def _hosts(fleet: Fleet) -> "Table":
    """Return one row for all hosts of one instruction set."""
    alike: dict[tuple[int, str], list[CoveredHost]] = {}
    for host in fleet.hosts:
        alike.setdefault((host.image, host.instruction_set), []).append(host)
    rows = [
        (
            _few([host.name for host in hosts], 1),
            str(image + 1),
            _share(hosts[0].loss),
            _few(hosts[0].unused, MOST_NAMED),
        )
        for (image, _), hosts in sorted(alike.items())
    ]
    return terminal.table(("host", "image", "gives up", "unused features"), rows, figures=("image", "gives up"))


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
        speeds = ", ".join(f"{row.cpu} {row.speed:.2f}" for row in fleet.estimates)
        yield f"Measured, relative to the official wheel: {speeds}. --json names the wheels."
    if bare := sorted({host.platform for host in fleet.hosts if host.loss is None}):
        yield f"{', '.join(bare)}: not measured; the number of unused features decides which images are chosen."
