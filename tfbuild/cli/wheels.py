"""The verbs for wheels: compile one, and keep an index of them for pip, uv and `tfbuild install`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfbuild.cli.listing import show_choice, show_passed_over
from tfbuild.cli.options import (
    COMPILE,
    HOST,
    JSON,
    MAKE,
    PLAN,
    REGISTRY,
    certificates,
    run_of,
)
from tfbuild.cli.output import out, say, say_note
from tfbuild.cli.planning import print_notes, select_and_print_notes, select_on_host
from tfbuild.cli.verbs import OF_REQUESTS, SETTINGS, variable, verb
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import UsageError
from tfbuild.facts import targets
from tfbuild.plan import Request
from tfbuild.util.options import make
from tfbuild.util.quantities import counted


@verb(
    PLAN,
    MAKE,
    COMPILE,
    SETTINGS,
    {"output": ("dist", "folder for the wheel (default: dist)", "PATH")},
    HOST,
    JSON,
    examples=(
        "invoke wheel --target mkl           # compile for this CPU; hours",
        "invoke wheel --target cpu --release 2.20 --cpu x86-64-v3 --time-limit 5h30m",
        "invoke wheel --target mkl --no-container    # without a container engine",
    ),
)
def wheel(*, output: str, no_container: bool, json: bool, **options: Any) -> None:
    """Compile only the wheel, and write a JSON file beside it that says how it was built."""
    from tfbuild.pipeline import host
    from tfbuild.pipeline.maker import Maker
    from tfbuild.util.progress import Progress

    if no_container:
        refuse_engine_options(options)
    run = run_of(options)
    if no_container and run.bundle:
        raise UsageError("a bundle is images, which --no-container does not use", hint="--mirror URL")
    if no_container:
        chosen, machine = select_on_host(make(Request, options))
        print_notes(chosen)
        exported = host.wheel(chosen, machine, run, Path(output), Progress())
    else:
        chosen = select_and_print_notes(make(Request, options), run)
        exported = Maker(run=run).wheel(chosen, Path(output))
    if json:
        out(
            {
                "id": chosen.id,
                "wheel": str(exported.wheel),
                "sidecar": str(exported.sidecar),
                "sha256": exported.sha256,
            }
        )
    else:
        print(exported.wheel)


# Options that need an engine, and what takes their place without one.
OF_ENGINES = {
    "engine": "no engine is used",
    "base": "this machine takes the place of a base image",
    "network": "this machine's network is used",
    "remote-executor": "its workers run in the builder's image, unlike this machine; --remote-cache works",
}


def refuse_engine_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that only make sense with a container engine."""
    for name, instead in OF_ENGINES.items():
        row = OF_REQUESTS[name]
        if options[name.replace("-", "_")] not in ("", row.default):
            raise UsageError(
                f"--{name} cannot be combined with --no-container: {instead}", hint="leave one of them out"
            )


@verb(
    {
        "wheels": ("", "folder with the wheels to add, as `invoke wheel` writes it (default: dist)", "DIR"),
        "url": ("", "the address at which FOLDER will be served, for printed addresses and its page", "URL"),
        "name": ("", "rename all wheels, such as to tensorflow, for packages that require that name"),
        "local-version": (False, "end versions with the instruction set: 2.14.1+tfbuild.x86.64.v3"),
        "yank": (
            [],
            "add no wheel, but yank these: clients no longer choose them; with an empty REASON, offer them again",
            "SET/WHEEL=REASON",
        ),
        "variants": (
            False,
            "experimental: also make an index of all x86-64 levels, from which uv --preview-features wheel-variants "
            "takes the one for its CPU",
        ),
        "sign": (False, "sign choose.json and choose.tsv with cosign, by your identity or that of the CI"),
        "sign-options": ("", "sign them with these options of `cosign sign-blob`: '--key cosign.key'"),
    },
    examples=(
        "invoke index public --wheels dist",
        "invoke index public --url https://wheels.example.com --local-version",
        "invoke index public --variants                # experimental",
        "invoke index public --yank '*/tensorflow_cpu-2.14.1-*=crashes in MatMul'",
    ),
)
def index(
    folder: str,
    *,
    wheels: str,
    url: str,
    name: str,
    local_version: bool,
    yank: list[str],
    variants: bool,
    sign: bool,
    sign_options: str,
) -> None:
    """Add wheels to a static index in FOLDER that has one index for each instruction set."""
    from tfbuild.publish import signing, wheel_index

    if unclear := next((text for text in yank if "=" not in text), None):
        raise UsageError(
            f"--yank {unclear} has no reason", hint=f"--yank '{unclear}=REASON'; '{unclear}=' offers them again"
        )
    yanks = {pattern: reason.strip() for pattern, _, reason in (text.partition("=") for text in yank)}
    adding = {"--wheels": wheels, "--name": name, "--local-version": local_version}
    if yanks and (unused := next((option for option, value in adding.items() if value), None)):
        raise UsageError(f"{unused} is for added wheels, and --yank adds none", hint=f"leave out {unused}")
    files = [] if yanks else wheel_index.of_folder(Path(wheels or "dist"))
    signer = signing.file_signer(sign_options) if sign or sign_options else None
    rows = wheel_index.index(
        Path(folder),
        files,
        say_note,
        project=name,
        local=local_version,
        url=url,
        sign=signer,
        yanks=yanks,
        variants=variants,
    )
    sets = sorted({row.instruction_set for row in rows})
    for instruction_set in sets:
        print(f"{url.rstrip('/') or folder}/{instruction_set}/simple/")
    say(f"{counted(len(rows), 'wheel')} for {counted(len(sets), 'instruction set')} in {folder}")


@verb(
    {
        "index": ("", "address or folder of the index (default: TFBUILD_INDEX, when set)", "URL"),
        "release": replace(PLAN["release"], help="TensorFlow release, such as 2.14.1 or 2.14 (default: the newest)"),
        "target": replace(PLAN["target"], default="", help=f"only wheels for this target: {targets.spelled()}"),
        "python": ("", "environment to install in, or its interpreter (default: the active one)", "PATH"),
        "cpuinfo": PLAN["cpuinfo"],
        "ca-cert": REGISTRY["ca-cert"],
        "signed": (
            "",
            "require a signature of the index that cosign accepts with these options: '--key cosign.pub'",
            "OPTIONS",
        ),
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
    target: str,
    python: str,
    cpuinfo: str,
    ca_cert: str,
    signed: str,
    dry_run: bool,
    print_requirements: bool,
) -> None:
    """Install from an index the wheel that this CPU and this environment run best, and say why it is."""
    from tfbuild.publish import installing
    from tfbuild.util.progress import Progress

    address = index or variable("TFBUILD_INDEX")
    if not address:
        raise UsageError("no index is named", hint="--index URL, or TFBUILD_INDEX")
    if target:
        targets.get(target)
    source = installing.WheelSource(address, certificates(ca_cert))
    host = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    rows = source.wheels(signed)
    environment = installing.environment(python)
    choice = installing.select(rows, environment, host, release=release, target=target)
    if dry_run:
        show_passed_over(choice)
    row = installing.chosen_row(rows, choice, source.name)
    show_choice(choice)
    if print_requirements:
        print("\n".join(installing.requirements(rows, row, source)))
        return
    if not dry_run:
        say(installing.install(source, row, environment, Progress()))
    print(source.address(row.file))
