"""The commands in the manual's pictures of a terminal, and the recorded machines that they run on."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text

from tests.cpu.machines import machine
from tools.pictures import ROOT, terminal

IMAGE = "tfbuild:2.21.0-mkl-py3.11-f16c"


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A command as the picture shows it, on one or more lines; an exit code other than 0 is shown below it.

    A command with steps has a second picture, of the time when half of them were done.

    `files`: recorded machines by their path.
    """

    title: str
    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 0
    # The beginning of a line that is about the network around the machine: it is left out.
    without: str = ""

    def draw(self, name: str, folder: Path) -> Iterator[tuple[str, str]]:
        """Run the command in `folder`, and yield each file with its picture; raises RuntimeError if it fails."""
        for path, recorded_machine in self.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(machine(recorded_machine).cpuinfo())
        recorded = terminal.record(self.script(), folder=folder)
        lines = self.shown(recorded.lines)
        if recorded.exit_code != self.exit_code:
            raise RuntimeError("\n".join(line.plain for line in lines))
        if self.exit_code:
            lines += [terminal.prompt("echo $?"), Text(str(recorded.exit_code))]
        yield f"{name}.svg", terminal.to_svg(self.title, self.command, lines)
        if recorded.midway:
            yield f"{name}-progress.svg", terminal.to_svg(self.title, self.command, self.shown(recorded.midway))

    def shown(self, lines: list[Text]) -> list[Text]:
        """Return the lines without the one to leave out, and without what the terminal wrapped of it."""
        kept: list[Text] = []
        wrapped = False
        for line in lines:
            if self.without and (wrapped or line.plain.startswith(self.without)):
                # A line that ends at a word has lost its last blank.
                wrapped = len(line) >= terminal.COLUMNS - 1
            else:
                kept.append(line)
        return kept

    def script(self) -> str:
        """Return the command with the `invoke` of this clone, which works in any folder."""
        program = shlex.join([str(Path(sys.executable).with_name("invoke")), "--search-root", str(ROOT)])
        return f'invoke() {{ {program} "$@"; }}\n{self.command}'


SHOTS = {
    "explain": Shot(
        title="invoke copts --explain, for a Sapphire Rapids: each feature with its level, flag and users",
        command="invoke copts --explain --cpuinfo sapphire-rapids --compiler gcc-13",
        files={"sapphire-rapids": "unknown-sapphirerapids"},
    ),
    "fleet": Shot(
        title="invoke fleet, for six hosts: three images, and what each host gives up",
        command="invoke fleet hosts --images 3",
        files={
            "hosts/haswell": "rhel7-haswell",
            "hosts/broadwell": "rhel7-broadwell",
            "hosts/zen3": "ubuntu20.04-zen3",
            "hosts/zen5": "rocky9-zen5",
            "hosts/sapphire-rapids": "unknown-sapphirerapids",
            "hosts/neoverse-v1": "amazon-neoverse_v1",
        },
    ),
    "build": Shot(
        title="invoke build: the steps of a build, and the checks that the image passed",
        command="invoke build --target mkl --wheel official --no-cache",
        without="base: no registry provides",
    ),
    "guard": Shot(
        title="An image on a CPU without F16C: it exits with code 86 and names the image that would fit",
        command='docker run --rm -v "$PWD"/bulldozer:/bulldozer \\\n    -e TFBUILD_CPUINFO=/bulldozer \\\n'
        f"    {IMAGE} python -c 'import tensorflow'",
        files={"bulldozer": "scientificfermi6-bulldozer"},
        exit_code=86,
    ),
}
