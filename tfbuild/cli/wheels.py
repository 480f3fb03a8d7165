"""The verbs for wheels: an index of them for pip, uv and `tfbuild install`."""

import os
from dataclasses import replace
from pathlib import Path

from tfbuild.cli.options import PLAN, REGISTRY, certificates
from tfbuild.cli.output import say
from tfbuild.cli.verbs import verb
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import UsageError
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

    files = wheel_index.of_folder(Path(wheels))
    rows = wheel_index.index(Path(folder), files, say, project=name, local=local_version, url=url)
    sets = sorted({row.instruction_set for row in rows})
    for instruction_set in sets:
        print(f"{url.rstrip('/') or folder}/{instruction_set}/simple/")
    say(f"{counted(len(rows), 'wheel')} for {counted(len(sets), 'instruction set')} in {folder}")


@verb(
    {
        "index": ("", "address or folder of the index (default: TFBUILD_INDEX, when set)", "URL"),
        "release": replace(PLAN["release"], help="TensorFlow release, such as 2.14.1 or 2.14 (default: the newest)"),
        "any-release": (False, "take the largest instruction set that fits, even if only an older release has it"),
        "python": ("", "interpreter to install for (default: that of the active environment)", "PATH"),
        "cpuinfo": PLAN["cpuinfo"],
        "ca-cert": REGISTRY["ca-cert"],
        "dry-run": (False, "only choose, without downloading"),
        "print-requirements": (
            False,
            "print the lines of a requirements file for that wheel, and install nothing",
        ),
    },
    examples=(
        "invoke install --index https://wheels.example.com",
        "invoke install --release 2.14 --dry-run      # with TFBUILD_INDEX set",
        "invoke install --print-requirements > tensorflow.txt",
    ),
)
def install(
    *,
    index: str,
    release: str,
    any_release: bool,
    python: str,
    cpuinfo: str,
    ca_cert: str,
    dry_run: bool,
    print_requirements: bool,
) -> None:
    """Install from an index the wheel that this CPU and this environment run best, and say why it is."""
    from tfbuild.publish import choose, installing
    from tfbuild.util.progress import Progress

    address = index or os.environ.get("TFBUILD_INDEX", "")
    if not address:
        raise UsageError("no index is named", hint="--index URL, or TFBUILD_INDEX")
    source = installing.WheelSource(address, certificates(ca_cert))
    host = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    rows = source.wheels()
    environment = installing.environment(python)
    choice = installing.select(rows, environment, host, release=release, any_release=any_release)
    if dry_run or choice.best is None:
        for line in choose.passed_over_lines(choice.passed_over):
            say(line)
    row = installing.chosen_row(rows, choice, source.name)
    for line in choose.explanation(choice, any_release=any_release):
        say(line)
    if print_requirements:
        print("\n".join(installing.requirements(rows, row, source)))
        return
    if not dry_run:
        say(installing.install(source, row, environment, Progress()))
    print(source.address(row.file))
