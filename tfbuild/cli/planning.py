"""The verbs that only read and plan, without starting anything or needing an engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild import facts
from tfbuild.cli.listing import show_fields, show_flags, show_matrix, show_plan
from tfbuild.cli.options import JSON, PLAN, ROOT, RUN, certificates, host_cpu, needs_clone, request_of
from tfbuild.cli.output import out, say
from tfbuild.cli.verbs import verb
from tfbuild.cpu import detect as detect_cpu
from tfbuild.cpu import isa
from tfbuild.errors import UsageError
from tfbuild.facts import targets
from tfbuild.plan import (
    PLATFORMS,
    Build,
    Request,
    Usual,
    asked_set,
    choose_platform,
    newest_official,
    unused_by_official_wheel,
    usual,
)
from tfbuild.plan import select as select_build
from tfbuild.util.files import WORK
from tfbuild.util.installation import as_typed
from tfbuild.util.quantities import counted, positive

if TYPE_CHECKING:
    from tfbuild.ci.matrix import Matrix
    from tfbuild.pipeline.run import Run

WHEELS = {"source": "from source", "official": "official wheel", "file": "wheel file"}


@verb(
    {"cpuinfo": replace(PLAN["cpuinfo"], help="recorded CPU to read in place of this machine's")},
    JSON,
    examples=(
        "invoke detect",
        "invoke detect --cpuinfo web1.txt    # recorded: cat /proc/cpuinfo > web1.txt",
    ),
)
def detect(*, cpuinfo: str, json: bool) -> None:
    """Show this CPU's features and level, and which features the official wheel leaves unused."""
    cpu = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    unused = unused_by_official_wheel(cpu)
    if json:
        out(
            {
                "vendor": cpu.vendor,
                "model": cpu.model,
                "arch": cpu.arch,
                "level": cpu.level or None,
                "features": list(cpu.features),
                "unused_by_official_wheel": list(unused),
                "masked": [{"feature": item.feature, "reason": item.reason} for item in isa.hidden(cpu)],
                "disagreements": [
                    {"feature": item.feature, "held": item.held, "rule": item.rule, "reason": item.reason}
                    for item in cpu.disagreements
                ],
            }
        )
        return
    show_fields(
        [
            ("CPU", f"{cpu.model} ({cpu.vendor}, {cpu.arch})"),
            ("level", cpu.level or f"below {facts.levels(cpu.arch)[0].name}"),
            ("features", " ".join(cpu.features)),
            ("unused", f"{' '.join(unused) or 'nothing'} (by the official wheel of {newest_official(cpu.arch)})"),
            *(("masked", f"{item.feature}: {item.reason}") for item in isa.hidden(cpu)),
            *(("disputed", f"{item.feature}: {item.reason}") for item in cpu.disagreements),
        ]
    )


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "prefer-vector-width", "platform")},
    {
        "compiler": PLAN["compiler"],
        "release": replace(
            PLAN["release"],
            help="TensorFlow release, whose compiler is taken, and which some flags break (default: the newest)",
        ),
    },
    JSON,
    examples=(
        "invoke copts                        # for this CPU",
        "invoke copts --cpu haswell --compiler gcc-12",
        "invoke copts --cpu x86-64-v3 --release 2.15",
    ),
)
def copts(*, cpu: str, cpuinfo: str, platform: str, json: bool, **options: str) -> None:
    """Print the Bazel copts for a CPU and a compiler, to paste."""
    chosen = choose_platform(Request(platform=platform))
    request = Request(cpu=cpu or "host", cpuinfo=cpuinfo, platform=chosen)
    instruction_set = asked_set(request, PLATFORMS[chosen], host_cpu(cpuinfo))
    assert instruction_set is not None  # the request names a CPU, at least "host"
    taken = usual(PLATFORMS[chosen], options["release"], options["compiler"])
    flags = isa.flags(
        instruction_set,
        taken.compiler,
        release=taken.release,
        prefer_vector_width=options["prefer_vector_width"],
        named=cpu,
    )
    if json:
        out(
            {
                "release": taken.release,
                "python": taken.python,
                "compiler": flags.compiler,
                "instruction_set": flags.instruction_set.name,
                "copts": list(flags.copts),
                "dropped": [{"feature": item.feature, "reason": item.reason} for item in flags.dropped],
                "notes": list(flags.notes),
            }
        )
        return
    show_flags(flags.copts)
    say(f"for {flags.instruction_set.name}: {words(taken)}")
    for item in flags.dropped:
        say(f"dropped {item.feature}: {item.reason}")
    for note in flags.notes:
        say(f"note: {note}")


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "compiler", "platform")},
    {"release": replace(PLAN["release"], help="TensorFlow release, such as 2.21.0 or 2.21 (default: the newest)")},
    JSON,
    examples=(
        "invoke explain                      # this CPU",
        "invoke explain --cpu sapphirerapids --release 2.20",
    ),
)
def explain(*, json: bool, **options: Any) -> None:
    """Explain every CPU feature: whether the CPU has it, its level, its flag or why it has none, and what uses it."""
    from tfbuild.plan import explain as explaining

    explanation = explaining.explain(Request(**options))
    for note in explanation.notes:
        say(f"note: {note}")
    out(explanation.to_json()) if json else explaining.show(explanation)


@verb(
    {
        "also": ([], "another recorded file, folder or list (repeatable)", "PATH"),
        "images": ("3", "largest number of images to choose", "K"),
        "skip-unreachable": (False, "skip hosts that cannot be read"),
        "timeout": ("20", "time limit for each ssh host, in seconds", "SECONDS"),
        "ssh-config": ("", "configuration for ssh, in place of ~/.ssh/config", "FILE"),
    },
    JSON,
    examples=(
        "invoke fleet recorded/              # a folder of recorded /proc/cpuinfo files",
        "invoke fleet ssh://web1 --also ssh://web2 --images 2",
        "invoke fleet hosts.txt --json > fleet.json    # for invoke matrix --fleet",
    ),
)
def fleet(
    hosts: str, *, also: list[str], images: str, timeout: str, ssh_config: str, skip_unreachable: bool, json: bool
) -> None:
    """Choose the fewest images that cover HOSTS: a recorded cpuinfo file, a folder of them, or a list of ssh hosts."""
    from tfbuild import fleet as fleets
    from tfbuild.fleet.hosts import gather

    most, seconds = positive("images", images), positive("timeout", timeout)
    config = Path(ssh_config) if ssh_config else None
    gathered = gather((hosts, *also), timeout=seconds, config=config, skip=skip_unreachable)
    for host in gathered.skipped:
        say(f"skipped {host.name}: {host.reason}" + (f"; {host.hint}" if host.hint else ""))
    chosen = fleets.choose(gathered.hosts, most, gathered.skipped)
    print(fleets.to_json(chosen)) if json else fleets.show(chosen)


@verb(
    PLAN,
    JSON,
    examples=(
        "invoke plan --target mkl            # the newest release, for this CPU",
        "invoke plan --target mkl --release 2.20 --python 3.12 --cpu x86-64-v3",
        "invoke plan --target cpu --wheel official",
    ),
)
def plan(*, json: bool, **options: Any) -> None:
    """Show the resolved build, without needing an engine."""
    chosen = select(request_of(options))
    if json:
        out([chosen.to_json()])
        return
    show_plan(chosen)


@verb(
    PLAN,
    {
        "base": replace(
            PLAN["base"],
            help="base image to build on: an image's name (default: the official Python image of the plan)",
        ),
        "pin": (False, "ask the registry for the base image's digest, and write it beside the tag"),
        "ca-cert": RUN["ca-cert"],
        "output": ("", "folder for the build context (default: build/IDENTIFIER/context)", "PATH"),
    },
    JSON,
    examples=(
        "invoke dockerfile --target mkl --cpu x86-64-v3",
        "invoke dockerfile --target mkl --wheel official --output context",
        "invoke dockerfile --target mkl --wheel official --pin",
    ),
)
def dockerfile(*, output: str, pin: bool, ca_cert: str, json: bool, **options: Any) -> None:
    """Write the build context: a folder that plain `docker build` accepts."""
    from tfbuild.context import dockerfile as rendering

    chosen = select(request_of(options))
    digest = ""
    if pin:
        from tfbuild.oci.client import image_digest

        digest = image_digest(chosen.base_image, ca=certificates(ca_cert))
    folder = Path(output) if output else WORK / chosen.id / "context"
    context = rendering.write(chosen, folder, base_digest=digest)
    if json:
        out({"id": chosen.id, "folder": str(context.folder), "digest": context.digest})
    else:
        print(context.folder)


def select(request: Request) -> Build:
    """Plan the requested build on this machine."""
    return select_build(request, host_cpu(request.cpuinfo))


def words(taken: Build | Usual) -> str:
    """Say which release, Python and compiler were taken, and whether from source."""
    source = "from source" if isinstance(taken, Usual) else WHEELS[taken.wheel.kind]
    parts = (f"TensorFlow {taken.release}", f"Python {taken.python}", taken.compiler, source)
    return ", ".join(filter(None, parts))


def select_for(request: Request, run: "Run") -> Build:
    """Plan the requested build; for an engine on another machine, by that machine's platform and CPU."""
    if not run.engine.elsewhere():
        return select(request)
    from tfbuild.pipeline import Maker

    maker = Maker(run=run)
    request = replace(request, platform=request.platform or maker.engine.platform)
    if request.cpuinfo or not isa.means_host(request.cpu) or request.wheel not in ("", "source"):
        return select(request)
    return select_build(request, maker.cpu())


def select_and_print_notes(request: Request, run: "Run") -> Build:
    """Plan the build for a run, and print its notes."""
    chosen = select_for(request, run)
    say(f"{chosen.id}: {words(chosen)}")
    for note in chosen.notes:
        say(f"note: {note}")
    return chosen


@verb(
    {
        "release": ([], "TensorFlow release (repeatable; default: the newest of each kind of build)", "VERSION"),
        "target": ([], f"{targets.spelled()} (repeatable; default: {' and '.join(targets.of_matrix())})"),
        "python": ([], "Python (repeatable; default: all that the release and the base images have)", "VERSION"),
        "cpu": ([], "instruction set of builds from source (repeatable; default: the platform's levels)"),
        "platform": ([], "linux/amd64 or linux/arm64 (default: both)"),
        "wheel": ([], "official or source (default: both)"),
        "fleet": (
            "",
            "build the images that this file lists, from source; it is written by: invoke fleet HOSTS --json > FILE",
            "FILE",
        ),
        "only": (
            [],
            "keep only rows whose identifier matches this glob, such as '*-mkl-py3.12-*' (repeatable)",
            "NAME",
        ),
        "changed": ("", "keep only rows whose files differ from this git revision, such as origin/main", "REVISION"),
        "format": ("table", "output format: table, json, github, gitlab or bake"),
        "runner": (
            [],
            "WHEEL[:PLATFORM]=LABEL, the CI runner for such rows, such as source=my-large (repeatable)",
            "WHEEL=LABEL",
        ),
        "output": ("build/bake", "folder for the build contexts of --format bake", "PATH"),
    },
    examples=(
        "invoke matrix                       # what can be built, as a table",
        "invoke matrix --format github --only '*-mkl-*'",
        "invoke matrix --fleet fleet.json --format gitlab",
    ),
)
def matrix(
    *,
    format: str,
    output: str,
    changed: str,
    runner: Sequence[str] = (),
    fleet: str = "",
    root: Path = ROOT,
    **options: list[str],
) -> None:
    """Print the rows of a CI matrix: every combination that can be built, in a stable order."""
    from tfbuild.ci import formats
    from tfbuild.ci import matrix as rows

    if format not in formats.FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of: {', '.join(formats.FORMATS)}")
    if runner and format not in ("github", "gitlab"):
        raise UsageError("--runner applies to CI jobs only", hint="--format github or gitlab")
    if changed:
        needs_clone("--changed")
    requested = {name if name == "only" else f"{name}s": tuple(values) for name, values in options.items()}
    selected = rows.select(rows.MatrixRequest(**requested, images=_images(fleet, options) if fleet else ()))
    if changed:
        arguments = [f"--{name}={value}" for name, values in options.items() for value in values]
        arguments += [f"--fleet={Path(fleet).resolve()}"] if fleet else []
        selected = rows.changed(selected, changed, arguments, root)
    for line in rows.refusals(selected):
        say(line)
    if format == "table":
        show_matrix(selected.rows)
    elif format == "json":
        out(formats.to_json(selected))
    elif format == "bake":
        folder = Path(output)
        text = formats.to_bake(selected, folder)
        formats.write_contexts(selected, folder, lambda identifier: say(f"{folder / identifier}"))
        print(text, end="")
    else:
        selected = show_jobs(selected, format, runner)
    say(counted(len(selected.rows), "row"))


def _images(file: str, options: dict[str, list[str]]) -> tuple[tuple[str, str], ...]:
    """Return platform and instruction set of each image in the file that `invoke fleet --json` wrote."""
    from tfbuild import fleet as fleets

    if used := [f"--{name}" for name in ("cpu", "platform", "wheel") if options[name]]:
        raise UsageError(
            f"{', '.join(used)} cannot be combined with --fleet, whose images have their own",
            hint="leave out one of them",
        )
    return tuple((image.platform, image.cpu) for image in fleets.read(Path(file)).images)


def show_jobs(selected: "Matrix", system: str, runner: Sequence[str]) -> "Matrix":
    """Print the jobs of a CI system, and return the rows that it has a machine for."""
    from tfbuild.ci import formats, runners

    schedule = runners.schedule(selected, system, runner)
    print(formats.to_github(schedule) if system == "github" else formats.to_gitlab(schedule))
    for note in schedule.notes:
        say(f"note: {note}")
    return replace(selected, rows=tuple(build for build, _ in schedule.rows))


@verb(
    JSON,
    examples=(
        "invoke support",
        "invoke support --json",
    ),
)
def support(*, json: bool) -> None:
    """Print as Markdown which release builds for which Python, target and platform, and how certain that is."""
    from tfbuild.plan import support as table

    rows = list(table.rows())
    if json:
        out(table.to_json(rows))
    else:
        print(as_typed(table.to_markdown(rows)), end="")
