"""The verbs that plan many builds: for a fleet of hosts, for CI, and all that are supported."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import to_builtins

from tfbuild.cli.options import JSON
from tfbuild.cli.output import out, say, say_note
from tfbuild.cli.planning import INDEX
from tfbuild.cli.verbs import verb
from tfbuild.errors import UsageError
from tfbuild.facts import targets
from tfbuild.plan import options_file
from tfbuild.plan.options_file import OptionsFile
from tfbuild.util.quantities import counted, positive

# What the images of a fleet have of their own.
IMAGE_OPTIONS = ("cpu", "platform", "wheel")


@verb(
    {
        "also": ([], "another recorded file or folder (repeatable)", "PATH"),
        "images": ("3", "largest number of images to choose (default: 3)", "K"),
    },
    JSON,
    examples=("invoke fleet recorded/ --also /proc/cpuinfo --images 2 --json > fleet.json",),
)
def fleet(hosts: str, *, also: list[str], images: str, json: bool) -> None:
    """Choose the images that serve HOSTS (a recorded /proc/cpuinfo, or a folder of them) best."""
    from tfbuild import fleet as fleets

    chosen = fleets.choose(fleets.read_hosts((hosts, *also)), positive("images", images))
    out(to_builtins(chosen)) if json else fleets.show_fleet(chosen)


@verb(
    {
        "release": ([], "TensorFlow release (repeatable; default: the newest of each kind of build)", "VERSION"),
        "target": ([], f"{targets.spelled()} (repeatable; default: {' and '.join(targets.matrix_targets())})"),
        "python": ([], "Python (repeatable; default: all that the release and the base images have)", "VERSION"),
        "cpu": ([], "instruction set of builds from source (repeatable; default: the platform's levels)"),
        "platform": ([], "linux/amd64 or linux/arm64 (default: both)"),
        "wheel": ([], "official or source (default: both)"),
        "options": ("", "file whose [[build]] tables are the rows (default: tfbuild.toml or pyproject.toml)", "FILE"),
        "fleet": ("", "build the images in this file from source; `invoke fleet --json` writes it", "FILE"),
        "only": ([], "keep rows whose identifier matches this glob, such as '*-mkl-py3.12-*' (repeatable)", "GLOB"),
        "format": ("table", "output format: table, json, bake, github or gitlab (default: table)"),
        "runner": ([], "WHEEL[:PLATFORM]=LABEL: the CI runner for these rows: source=my-large (repeatable)", "RUNNER"),
        "output": ("", "folder for the build contexts of --format bake (default: build/bake)", "PATH"),
    },
    examples=(
        "invoke matrix --format github --only '*-mkl-*'",
        "invoke matrix --fleet fleet.json --format gitlab",
    ),
)
def matrix(
    *, format: str, output: str, runner: Sequence[str] = (), fleet: str = "", options: str = "", **chosen: list[str]
) -> None:
    """Print the rows of a CI matrix, in a stable order: all combinations that can be built, or a file's list."""
    from tfbuild.ci import formats
    from tfbuild.ci.matrix import MatrixRequest, schedule, select_builds
    from tfbuild.pipeline.build_context import write_context

    if (form := formats.FORMATS.get(format)) is None:
        raise UsageError(f"unknown format {format!r}", hint=f"one of: {', '.join(formats.FORMATS)}")
    if runner and not form.ci:
        systems = (f"--format {name}" for name, other in formats.FORMATS.items() if other.ci)
        raise UsageError("--runner applies to CI jobs only", hint=" or ".join(systems))
    if output and not form.contexts:
        raise UsageError("--output is the folder of --format bake", hint="leave it out, and redirect stdout: > FILE")
    requested = {name if name == "only" else f"{name}s": tuple(values) for name, values in chosen.items()}
    images, listed = _images(fleet, chosen) if fleet else (), _listed(options, {**chosen, "fleet": [fleet]})
    builds, refused = select_builds(MatrixRequest(**requested, images=images, builds=listed.builds))
    for reason, count in refused.most_common():
        say(f"{counted(count, 'combination')} cannot be built: {reason}")
    folder = Path(output or "build/bake")
    rows, notes = schedule(builds, format, runner) if form.ci else ([(build, "") for build in builds], [])
    text = formats.render_rows(format, rows, folder)
    for build in builds if form.contexts else ():
        say(str(write_context(build, folder / build.id).folder))
    print(text, end="")
    for note in notes:
        say_note(note)
    say(counted(len(rows), "row"))


def _listed(file: str, chosen: Mapping[str, Sequence[str]]) -> OptionsFile:
    """Return the file with the list of builds. Raises UsageError for options of other rows."""
    listed = options_file.find_options_file(file)
    used = [f"--{name}" for name, values in chosen.items() if any(values) and name != "only"]
    if listed.builds and used:
        hint = "--only GLOB keeps some of them; to ignore the list, run in another folder or name another --options"
        raise UsageError(f"{', '.join(used)} cannot be combined with the builds that {listed.path} lists", hint=hint)
    if any(build.wheel.startswith(INDEX) for build in listed.builds):
        hint = "name the wheel's file, or build it by itself: invoke build --wheel index:URL"
        raise UsageError(f"{listed.path}: a row cannot take a wheel from an index: the best one changes", hint=hint)
    if not listed.builds and (file or (listed.values and not used)):
        say_note(f"{listed.path} has no [[build]]: its options are for a single build and are ignored here")
    return listed


def _images(file: str, options: Mapping[str, list[str]]) -> tuple[tuple[str, str], ...]:
    """Return platform and instruction set of each image in the file that `invoke fleet --json` wrote."""
    from tfbuild import fleet as fleets

    if used := [f"--{name}" for name in IMAGE_OPTIONS if options[name]]:
        raise UsageError(f"{', '.join(used)} cannot be combined with --fleet", hint="leave out one of them")
    return tuple((image.platform, image.cpu) for image in fleets.read_fleet(Path(file)).images)
