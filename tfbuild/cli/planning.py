"""The verbs that only read and plan: they start nothing and need no engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild import facts
from tfbuild.cli.options import JSON, PLAN, ROOT, host_cpu, request_of
from tfbuild.cli.output import out, say, up_to_date
from tfbuild.cli.verbs import verb
from tfbuild.cpu import detect as detect_cpu
from tfbuild.cpu import isa
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.facts import base_images, releases, targets
from tfbuild.plan import PLATFORMS, Build, Request, asked_set, choose_platform, unused_by_official_wheel
from tfbuild.plan import select as select_build
from tfbuild.util.quantities import positive

if TYPE_CHECKING:
    from tfbuild.ci.matrix import Matrix
    from tfbuild.pipeline.run import Run

WORK = Path("build")


@verb({"cpuinfo": ("", "read this recording in place of this machine")}, JSON)
def detect(*, cpuinfo: str, json: bool) -> None:
    """This CPU's features and level, and what the official wheel leaves unused on it."""
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
    print(f"{cpu.model} ({cpu.vendor}, {cpu.arch})")
    print(f"level     {cpu.level or 'below ' + facts.levels(cpu.arch)[0].name}")
    print(f"features  {' '.join(cpu.features)}")
    print(f"unused    {' '.join(unused) or 'nothing'} (by TensorFlow's official wheel)")
    for item in isa.hidden(cpu):
        print(f"masked    {item.feature}: {item.reason}")
    for row in cpu.disagreements:
        print(f"disputed  {row.feature}: {row.reason}")


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "prefer-vector-width", "platform")},
    {
        "compiler": ("", "gcc-12, clang-18 (default: the release's own, gcc-12 where none is named)"),
        "release": ("", "leave out what breaks this TensorFlow release (default: of no release)"),
    },
    JSON,
)
def copts(*, cpu: str, cpuinfo: str, platform: str, json: bool, **options: str) -> None:
    """The Bazel copts for a CPU and a compiler, in one line that can be pasted."""
    place = choose_platform(Request(platform=platform))
    request = Request(cpu=cpu or "host", cpuinfo=cpuinfo, platform=place)
    asked = asked_set(request, PLATFORMS[place], host_cpu(cpuinfo))
    assert asked is not None  # "host" is asked for where nothing else is
    release = releases.find(options["release"]) if options["release"] else ""
    flags = isa.flags(
        asked,
        options["compiler"] or base_images.compiler(release),
        release=release,
        prefer_vector_width=options["prefer_vector_width"],
        named=cpu,
    )
    if json:
        out(
            {
                "compiler": flags.compiler,
                "instruction_set": flags.instruction_set.name,
                "copts": list(flags.copts),
                "dropped": [{"feature": item.feature, "reason": item.reason} for item in flags.dropped],
                "notes": list(flags.notes),
            }
        )
        return
    print(" ".join(flags.copts))
    for item in flags.dropped:
        say(f"dropped {item.feature}: {item.reason}")
    for note in flags.notes:
        say(f"note: {note}")


@verb(
    {name: PLAN[name] for name in ("cpu", "cpuinfo", "compiler", "platform")},
    {"release": ("", "TensorFlow release, 2.21.0 or 2.21 (default: the newest)")},
    JSON,
)
def explain(*, json: bool, **options: Any) -> None:
    """Every CPU feature: in the CPU, in which level, kept as which flag or why not, used by what."""
    from tfbuild.plan import explain as explaining

    found = explaining.explain(Request(**options))
    for note in found.notes:
        say(f"note: {note}")
    out(found.to_json()) if json else explaining.show(found)


@verb(
    {
        "images": ("3", "the most builds"),
        "skip-unreachable": (False, "go on without the hosts that cannot be read"),
        "timeout": ("20", "seconds for each ssh host"),
        "ssh-config": ("", "for ssh, in place of ~/.ssh/config"),
    },
    JSON,
)
def fleet(*hosts: str, images: str, timeout: str, ssh_config: str, skip_unreachable: bool, json: bool) -> None:
    """The fewest images that cover HOSTS...: recorded cpuinfo files, folders, lists of ssh hosts."""
    from tfbuild import fleet as fleets
    from tfbuild.fleet.hosts import gather

    most, seconds = positive("images", images), positive("timeout", timeout)
    config = Path(ssh_config) if ssh_config else None
    found = gather(hosts, timeout=seconds, config=config, skip=skip_unreachable)
    for one in found.skipped:
        say(f"skipped {one.name}: {one.reason}" + (f"; {one.hint}" if one.hint else ""))
    chosen = fleets.choose(found.hosts, most, found.skipped)
    print(fleets.to_json(chosen)) if json else fleets.show(chosen)


@verb(PLAN, JSON)
def plan(*, json: bool, **options: Any) -> None:
    """The resolved build, with no engine near."""
    chosen = select(request_of(options))
    if json:
        out([chosen.to_json()])
        return
    show_plan(chosen)


def show_plan(build: Build) -> None:
    """Print the plan as aligned lines; empty fields are left out."""
    shown: dict[str, object] = {"id": build.id} | {
        key: value for key, value in build.to_json().items() if key not in ("id", "notes", "wheel")
    }
    shown["wheel"] = " ".join((build.wheel.kind, build.wheel.requirement, *build.wheel.constraints)).strip()
    for key, value in shown.items():
        if value:
            print(f"{key.replace('_', ' '):21}{_line(value)}")
    for note in build.notes:
        print(f"{'note':21}{note}")


def _line(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@verb(PLAN, {"output": ("", "folder of the build context (default: build/IDENTIFIER/context)")}, JSON)
def dockerfile(*, output: str, json: bool, **options: Any) -> None:
    """Write the build context: a folder that plain `docker build` accepts."""
    from tfbuild.context import dockerfile as rendering

    chosen = select(request_of(options))
    context = rendering.write(chosen, Path(output) if output else WORK / chosen.id / "context")
    if json:
        out({"id": chosen.id, "folder": str(context.folder), "digest": context.digest})
    else:
        print(context.folder)


def select(request: Request) -> Build:
    """Return the build that is asked for, on this machine."""
    return select_build(request, host_cpu(request.cpuinfo))


def select_for(request: Request, run: "Run") -> Build:
    """Do as select does, for the engine of a run: where it is on another machine, by that one's platform and CPU."""
    if not run.engine.elsewhere():
        return select(request)
    from tfbuild.pipeline import Maker

    made = Maker(run=run)
    request = replace(request, platform=request.platform or made.engine.platform)
    if request.cpuinfo or request.cpu not in ("", "host") or request.wheel not in ("", "source"):
        return select(request)
    return select_build(request, made.cpu())


def select_and_tell(request: Request, run: "Run") -> Build:
    """Select the build for a run, and print its notes."""
    chosen = select_for(request, run)
    for note in chosen.notes:
        say(f"note: {note}")
    return chosen


@verb(
    {
        "release": ([], "TensorFlow release, again for more (default: the newest of each way)"),
        "target": ([], f"{targets.spelled()}, again for more (default: {' and '.join(targets.of_matrix())})"),
        "python": ([], "Python, again for more (default: all that the release and the base images have)"),
        "cpu": ([], "instruction set of builds from source, again for more (default: the platform's levels)"),
        "platform": ([], "linux/amd64 or linux/arm64 (default: both)"),
        "wheel": ([], "official or source (default: both)"),
        "fleet": ("", "builds from source for the images in this file: invoke fleet HOSTS --json > FILE"),
        "only": ([], "keep rows whose identifier fits this glob, again for more: '*-mkl-py3.12-*'"),
        "changed": ("", "keep rows whose files differ from this state of the repository: origin/main"),
        "format": ("json", "json, github, gitlab or bake"),
        "runner": ([], "WHEEL[:PLATFORM]=LABEL: the CI's machine for such rows, again for more: source=my-large"),
        "output": ("build/bake", "bake's folder for the build contexts"),
    }
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
    """The rows of a CI matrix: every combination that can be built, in a stable order."""
    from tfbuild.ci import matrix as rows

    if format not in rows.FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of: {', '.join(rows.FORMATS)}")
    if runner and format not in ("github", "gitlab"):
        raise UsageError("--runner names machines of jobs", hint="--format github or gitlab")
    asked = {name if name == "only" else f"{name}s": tuple(values) for name, values in options.items()}
    found = rows.select(rows.Asked(**asked, images=_images(fleet, options) if fleet else ()))
    if changed:
        words = [f"--{name}={value}" for name, values in options.items() for value in values]
        words += [f"--fleet={Path(fleet).resolve()}"] if fleet else []
        found = rows.changed(found, changed, words, root)
    for line in rows.refusals(found):
        say(line)
    if format == "json":
        out(rows.to_json(found))
    elif format == "bake":
        folder = Path(output)
        rows.write_contexts(found, folder, lambda identifier: say(f"{folder / identifier}"))
        print(rows.to_bake(found, folder))
    else:
        found = show_jobs(found, format, runner)
    say(f"{len(found.rows)} rows")


def _images(file: str, options: dict[str, list[str]]) -> tuple[tuple[str, str], ...]:
    """Platform and instruction set of each image in the file that `invoke fleet --json` wrote."""
    from tfbuild import fleet as fleets

    if used := [f"--{name}" for name in ("cpu", "platform", "wheel") if options[name]]:
        raise UsageError(f"{', '.join(used)}: the images of --fleet have their own", hint="leave one of them out")
    return tuple((image.platform, image.cpu) for image in fleets.read(Path(file)).images)


def show_jobs(found: "Matrix", system: str, runner: Sequence[str]) -> "Matrix":
    """Print the jobs of a CI system, and return the rows that it has a machine for."""
    from tfbuild.ci import matrix as rows

    schedule = rows.schedule(found, system, runner)
    print(rows.to_github(schedule) if system == "github" else rows.to_gitlab(schedule))
    for note in schedule.notes:
        say(f"note: {note}")
    return replace(found, rows=tuple(build for build, _ in schedule.rows))


@verb({"check": (False, "compare docs/support.md only, and fail where it is stale")}, JSON)
def support(*, check: bool, json: bool, root: Path = ROOT) -> None:
    """Which release builds for which Python, target and platform, how certain, on what evidence, as Markdown."""
    from tfbuild.plan import support as table

    found = list(table.rows())
    text, path = table.to_markdown(found), root / table.FILE
    if check:
        if not up_to_date(path, text):
            raise TfbuildError(f"{table.FILE} is not what the plans say now", hint="invoke docs")
    elif json:
        out(table.to_json(found))
    else:
        print(text, end="")
