"""The verbs for wheels: an index of them for pip, uv and `tfbuild install`."""

from pathlib import Path

from tfbuild.cli.output import say
from tfbuild.cli.verbs import verb
from tfbuild.util.quantities import counted


@verb(
    {
        "wheels": ("dist", "folder with the wheels to add, as `invoke wheel` writes it", "DIR"),
        "url": ("", "the address at which FOLDER will be served, for the addresses that are printed", "URL"),
        "name": ("", "name all wheels so: tensorflow, for packages that require that name"),
        "local-version": (False, "end versions with the instruction set: 2.14.1+tfbuild.x86.64.v3"),
    },
    examples=(
        "invoke index public --wheels dist",
        "invoke index public --url https://wheels.example.com --local-version",
    ),
)
def index(folder: str, *, wheels: str, url: str, name: str, local_version: bool) -> None:
    """Add wheels to a static index in FOLDER that has one index for each instruction set."""
    from tfbuild.publish import wheel_index
    from tfbuild.publish.wheel_index import Naming

    naming = Naming(project=name, local=local_version)
    rows = wheel_index.index(Path(folder), wheel_index.of_folder(Path(wheels)), naming, say, url=url)
    sets = sorted({row.instruction_set for row in rows})
    for instruction_set in sets:
        print(f"{url.rstrip('/') or folder}/{instruction_set}/simple/")
    say(f"{counted(len(rows), 'wheel')} for {counted(len(sets), 'instruction set')} in {folder}")
