"""The verbs that only read and plan: they start nothing and need no engine."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tfbuild import facts
from tfbuild.cli.options import JSON, PLAN, RUN, certificates, host_cpu
from tfbuild.cli.output import (
    out,
    result,
    say,
    say_note,
    show_choice,
    show_cpus,
    show_features,
    show_fields,
    show_gain,
    show_plan,
)
from tfbuild.cli.verbs import COMMAND_LINE, SETTINGS, Rows, verb
from tfbuild.cpu import Cpu, compilers, isa, read_text, recordings
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import Unsupported, UsageError
from tfbuild.plan import PLATFORMS, Build, Request, choose_platform, unused_by_official_wheel, usual
from tfbuild.plan import select as select_build
from tfbuild.plan.request import WHEEL_OPTIONS
from tfbuild.plan.rules import cpu_notes, named_architecture, requested_set
from tfbuild.util.files import WORK
from tfbuild.util.options import make
from tfbuild.util.progress import Progress

if TYPE_CHECKING:
    from tfbuild.pipeline.machine import HostSystem
    from tfbuild.pipeline.run import Run
    from tfbuild.plan.explain import FeatureRow

CPUINFO: Rows = {"cpuinfo": replace(PLAN["cpuinfo"], help="recorded CPU to read in place of this machine's")}
# What --wheel begins with for a wheel of an index.
INDEX = "index:"


@verb(
    CPUINFO,
    JSON,
    examples=("invoke detect", "invoke detect --cpuinfo web1.txt    # recorded: cat /proc/cpuinfo > web1.txt"),
)
def detect(*, cpuinfo: str, json: bool) -> None:
    """Show this CPU's features and level, and which features the official wheel leaves unused."""
    from tfbuild.bench import gain as gains

    cpu = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    if json:
        out(
            {
                "vendor": cpu.vendor,
                "model": cpu.model,
                "arch": cpu.arch,
                "level": cpu.level or None,
                "features": list(cpu.features),
                "unused_by_official_wheel": list(unused_by_official_wheel(cpu)),
                "lacks_for_official_wheel": list(gains.lacks_for_official_wheel(cpu)),
                "masked": [{"feature": name, "reason": reason} for name, reason in isa.hidden(cpu).items()],
                "disagreements": [
                    {**asdict(item), "held": item.held, "reason": item.reason} for item in cpu.disagreements
                ],
            }
        )
        return
    show_fields(
        [
            ("CPU", f"{cpu.model} ({cpu.vendor}, {cpu.arch})"),
            ("level", cpu.level or f"below {facts.levels(cpu.arch)[0].name}"),
            ("features", " ".join(cpu.features)),
            gains.official_wheel_here(cpu),
            *(("masked", f"{name}: {reason}") for name, reason in isa.hidden(cpu).items()),
            *(("disputed", f"{item.feature}: {item.reason}") for item in cpu.disagreements),
        ]
    )


@verb(
    {"cpu": replace(PLAN["cpu"], help="another CPU, by its name, as `invoke build` takes it")},
    CPUINFO,
    JSON,
    examples=("invoke gain", "invoke gain --cpu 'Xeon Gold 6148'", "invoke gain --cpuinfo -    # lscpu's output"),
)
def gain(*, cpu: str, cpuinfo: str, json: bool) -> None:
    """Say whether a build from source is worth it on this CPU: what was measured for such CPUs, and how to measure."""
    from tfbuild.bench import gain as gains

    if cpu and cpuinfo:
        for note in cpu_notes(Request(cpu=cpu, cpuinfo=cpuinfo), PLATFORMS[choose_platform(Request(cpu=cpu))]):
            say_note(note)
    answer = gains.gain(gains.named(cpu, host_cpu(cpuinfo)) if cpu else detect_cpu(Path(cpuinfo) if cpuinfo else None))
    out(msgspec.to_builtins(answer)) if json else show_gain(answer)


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "platform")},
    {
        "prefer-vector-width": PLAN["prefer-vector-width"],
        "compiler": PLAN["compiler"],
        "release": replace(PLAN["release"], help="TensorFlow release, for its compiler (default: the newest)"),
    },
    {"explain": (False, "also print every CPU feature: its level, its flag or why it has none, and what uses it")},
    JSON,
    examples=(
        "invoke copts --cpu haswell --compiler gcc-12   # without --cpu, for this CPU",
        "invoke copts --cpu sapphirerapids --release 2.20 --explain",
    ),
)
def copts(*, cpu: str, cpuinfo: str, platform: str, explain: bool, json: bool, **options: str) -> None:
    """Print the Bazel copts for a CPU and a compiler, to paste, or explain every CPU feature."""
    asked, host = Request(cpu=cpu, platform=platform), host_cpu(cpuinfo)
    chosen = choose_platform(asked)
    request = Request(cpu=cpu, cpuinfo=cpuinfo, platform=chosen)
    instruction_set = requested_set(request, PLATFORMS[chosen], host)
    release, compiler = usual(PLATFORMS[chosen], options["release"], options["compiler"])
    width = options["prefer_vector_width"]
    flags = compilers.flags(instruction_set, compiler, release=release, prefer_vector_width=width)
    rows: list[FeatureRow] = []
    if explain:
        from tfbuild.plan import explain as explaining

        named = requested_set(request, PLATFORMS[chosen], host, exact=True)
        cpuid = recordings.diagnostics(read_text(Path(cpuinfo)) if cpuinfo else recordings.loader_text()) is not None
        read = host if isa.means_host(cpu) else None
        rows += explaining.feature_rows(named, instruction_set, flags, release, read, cpuid=cpuid)
    notes = cpu_notes(request, PLATFORMS[chosen])
    if other := named_architecture(asked):
        notes.insert(0, f"{cpu} is for {other}: shown for {chosen}")
    if json:
        document = {"release": release, "compiler": flags.compiler, "instruction_set": flags.instruction_set.name}
        dropped = [{"feature": name, "reason": reason} for name, reason in flags.dropped]
        lists = {"copts": flags.copts, "dropped": dropped, "notes": notes}
        out({**document, **lists, **({"features": [asdict(row) for row in rows]} if explain else {})})
        return
    show_features(rows) if explain else print(" ".join(flags.copts))
    say(f"for {flags.instruction_set.name}: TensorFlow {release}, {compiler}")
    for name, reason in flags.dropped:
        say_note(f"{name} is left out: {reason}")
    for note in notes:
        say_note(note)


@verb(JSON, examples=("invoke cpus", "invoke cpus 'xeon gold'", "invoke cpus avx512"))
def cpus(text: str = "", *, json: bool) -> None:
    """List the values of --cpu: levels, CPUs with the processors that they are in, and features."""
    entries = isa.search(text)
    out([asdict(entry) for entry in entries]) if json else show_cpus(entries)


@verb(
    PLAN,
    SETTINGS,
    WHEEL_OPTIONS,
    {"full": (False, "also show Bazel's flags, the source, the features, and why each fix and each base is needed")},
    JSON,
    examples=(
        "invoke plan --target mkl --release 2.20 --python 3.12 --cpu x86-64-v3",
        "invoke plan --target cpu --wheel official",
    ),
)
def plan(*, full: bool, json: bool, **options: Any) -> None:
    """Show what would be built, and with what; needs no engine."""
    origins = options["origins"]
    request = make(Request, options)
    if options["no_container"]:
        from tfbuild.pipeline import machine as machines

        chosen, machine = select_on_host(request, origins)
        try:
            machines.require(chosen, machine)
        except Unsupported as error:
            chosen = replace(chosen, notes=(*chosen.notes, f"{error.reason}: {error.hint}"))
    else:
        chosen = select(request)
    if json:
        values = {name: {"value": options[name.replace("-", "_")], "from": origin} for name, origin in origins.items()}
        out([{**chosen.to_json(), "options": values}])
        return
    # What was just typed needs no repetition.
    show_plan(chosen, origins=origins if {*origins.values()} - {COMMAND_LINE} else {}, full=full)


@verb(
    PLAN,
    SETTINGS,
    {
        "base": replace(PLAN["base"], help="base image's name (default: the official Python image of the plan)"),
        "pin": (False, "ask the registry for the base image's digest, and write it beside the tag"),
        "ca-cert": RUN["ca-cert"],
        "output": ("", "folder for the build context (default: build/IDENTIFIER/context)", "PATH"),
    },
    JSON,
    examples=("invoke dockerfile --target mkl --wheel official --pin --output context",),
)
def dockerfile(*, output: str, pin: bool, ca_cert: str, json: bool, **options: Any) -> None:
    """Write the build context: a folder that plain `docker build` accepts."""
    from tfbuild.pipeline.build_context import write_context

    chosen = select(make(Request, options), ca=certificates(ca_cert))
    digest = ""
    if pin and "@" not in chosen.base_image:  # else its name has the digest
        from tfbuild.oci.client import image_digest

        digest = image_digest(chosen.base_image, ca=certificates(ca_cert))
    folder = Path(output) if output else WORK / chosen.id / "context"
    context = write_context(chosen, folder, base_digest=digest)
    print_notes(chosen)
    document = {"id": chosen.id, "folder": str(context.folder), "digest": context.digest}
    result(document, str(context.folder), json=json)


def select(request: Request, host: Cpu | None = None, ca: Path | None = None) -> Build:
    """Plan the requested build, by default for this machine's CPU; a wheel of an index is downloaded first."""
    host = host or host_cpu(request.cpuinfo)
    if request.wheel.startswith(INDEX):
        from tfbuild.publish import installing

        source = installing.WheelSource(request.wheel.removeprefix(INDEX), ca or certificates(""))
        request, choice = installing.request_with_wheel(source, request, host, WORK / "wheels", Progress())
        show_choice(choice)
    return select_build(request, host)


def select_on_host(request: Request, origins: dict[str, str]) -> tuple[Build, "HostSystem"]:
    """Plan a compile on this machine itself, without a container. Raises UsageError where nothing is compiled."""
    from tfbuild.pipeline import machine as machines

    # What has no meaning without an engine; a file of options is for images, too.
    for name in ("engine", "base", "network"):
        if origins.get(name) == COMMAND_LINE:
            raise UsageError(f"--{name} cannot be combined with --no-container", hint="leave one of them out")
    request = replace(request, base="auto")
    if request.wheel not in ("", "source"):
        raise UsageError("--no-container is for compiles, and --wheel compiles nothing", hint="--wheel source")
    machine = machines.read_machine()
    host, place = host_cpu(request.cpuinfo), (machine.distribution, machine.glibc)
    return machines.choose(request, machine, lambda asked: select_build(asked, host, place)), machine


def select_at_engine(request: Request, run: "Run") -> Build:
    """Plan the build for a run, on the platform and CPU of the engine's machine."""
    from tfbuild.engine import connection

    host = None
    if connection.elsewhere(run.engine):
        from tfbuild.pipeline.maker import Maker

        maker = Maker(run=run)
        request = replace(request, platform=request.platform or maker.engine.platform)
        for_host = request.cpu or request.wheel in ("", "source") or request.wheel.startswith(INDEX)
        if for_host and not request.cpuinfo and isa.means_host(request.cpu):
            host = maker.cpu()
    return select(request, host, run.ca)


def print_notes(chosen: Build) -> None:
    """Print what was planned, and the plan's notes."""
    compiler = f", {chosen.compiler}" if chosen.compiler else ""
    say(f"{chosen.id}: TensorFlow {chosen.release}, Python {chosen.python}{compiler}")
    for note in chosen.notes:
        say_note(note)
