"""The verbs that make images, wheels and bundles, and those that check and measure them."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.options import COMPILE, JSON, MAKE, ON_ENGINE, PLAN, RUN, image_on, registry_of, run_of
from tfbuild.cli.output import out, result, say, say_note, show_plan
from tfbuild.cli.planning import print_notes, select_at_engine, select_on_host
from tfbuild.cli.verbs import SETTINGS, verb
from tfbuild.errors import UsageError
from tfbuild.facts import toolchains
from tfbuild.plan import Request, RunRequest
from tfbuild.plan.request import WHEEL_OPTIONS
from tfbuild.util.files import REPORTS
from tfbuild.util.options import given_to_compile, make
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import counted

if TYPE_CHECKING:
    from tfbuild.verify.report import Report


@verb(
    PLAN,
    RUN,
    SETTINGS,
    {"dry-run": (False, "only plan, and write the build context")},
    JSON,
    examples=(
        "invoke build --target mkl --wheel official      # the official wheel; minutes",
        "invoke build --target mkl                       # compile for this CPU; hours",
        "invoke build --target mkl --release 2.20 --cpu x86-64-v3 --dry-run",
    ),
)
def build(*, json: bool, dry_run: bool, **options: Any) -> None:
    """Build an image for a CPU, verify it, and write a report."""
    from tfbuild.pipeline.maker import Maker

    run = run_of(options)
    chosen = select_at_engine(make(Request, options), run)
    maker = Maker(run=run)
    origin = "--reuse" if run.reuse else f"--wheel {chosen.wheel.kind}"
    # No error: a CI matrix gives all of its rows the same options.
    if origin != "--wheel source" and (ignored := given_to_compile(make(RunRequest, options))):
        say_note(f"{', '.join(ignored)}: ignored, because {origin} compiles nothing")
    if dry_run:
        context = maker.render(chosen)
        out([{**chosen.to_json(), "context_digest": context.digest}]) if json else show_plan(chosen)
        say(f"dry run: the build context is in {context.folder}; nothing was started")
        return
    print_notes(chosen)
    built = maker.build(chosen)
    finish(built.report, built.image, json=json)


@verb(
    PLAN,
    MAKE,
    COMPILE,
    SETTINGS,
    {
        "output": ("dist", "folder for the wheel (default: dist)", "PATH"),
        "libtensorflow": (False, "also compile the C library, up to 2.19: libtensorflow-ID.tar.gz beside the wheel"),
    },
    WHEEL_OPTIONS,
    JSON,
    examples=(
        "invoke wheel --target cpu --release 2.20 --cpu x86-64-v3 --time-limit 5h30m",
        "invoke wheel --target mkl --no-container    # without a container engine",
    ),
)
def wheel(*, output: str, libtensorflow: bool, no_container: bool, json: bool, **options: Any) -> None:
    """Compile only the wheel, and write a JSON file beside it that says how it was built."""
    from tfbuild.pipeline import host
    from tfbuild.pipeline.maker import Maker

    engine = {"engine": ""} if no_container else {}  # that of a file of options is for images
    run = replace(run_of({**options, **engine}), libtensorflow=libtensorflow)
    if run.bundle and (no_container or libtensorflow):
        why = "--no-container uses no images" if no_container else "it lacks what --libtensorflow downloads"
        raise UsageError(f"a bundle cannot be used here: {why}", hint="--mirror URL")
    if no_container:
        if options["remote_executor"]:
            raise UsageError("--remote-executor cannot be combined with --no-container", hint="leave one of them out")
        chosen, machine = select_on_host(make(Request, options), options["origins"])
        print_notes(chosen)
        exported = host.wheel(chosen, machine, run, Path(output), Progress())
    else:
        chosen = select_at_engine(make(Request, options), run)
        print_notes(chosen)
        if chosen.toolchain and (debian := toolchains.debian_of(chosen.base_image)):
            say_note(f"the wheel may need its base's glibc, {debian.glibc}; on older systems it runs only in an image")
        exported = Maker(run=run).wheel(chosen, Path(output))
    files = {"wheel": str(exported.wheel), "sidecar": str(exported.sidecar), "sha256": exported.sha256}
    files |= {"libtensorflow": str(exported.library)} if exported.library else {}
    result({"id": chosen.id, **files}, str(exported.wheel), json=json)


@verb(
    PLAN,
    MAKE,
    SETTINGS,
    {
        "output": ("bundle.tar", "file to write (default: bundle.tar)", "FILE"),
        "wheel-only": (False, "only what `invoke wheel` downloads, not what an image needs"),
        "no-cache": RUN["no-cache"],
        "need-disk": RUN["need-disk"],
        "dry-run": (False, "only plan"),
    },
    JSON,
    examples=(
        "invoke bundle --target mkl --cpu x86-64-v3",
        "invoke build --target mkl --cpu x86-64-v3 --mirror bundle.tar    # offline",
    ),
)
def bundle(*, output: str, wheel_only: bool, dry_run: bool, json: bool, **options: Any) -> None:
    """Download everything that a build needs, as images in one file, for building offline with `--mirror FILE`."""
    from tfbuild.pipeline.maker import Maker, downloads

    # The file takes the place of what has its name: as root, even of /dev/null.
    if (path := Path(output)).exists() and not path.is_file():
        free = shlex.quote(str(path / "bundle.tar")) if path.is_dir() else "bundle.tar"
        raise UsageError(f"--output {output} is not a file, and a bundle is one", hint=f"--output {free}")
    run = run_of(options)
    chosen = select_at_engine(make(Request, options), run)
    print_notes(chosen)
    if wheel_only and chosen.toolchain is None:
        raise UsageError("--wheel-only is for compiles, and --wheel compiles nothing", hint="leave one of them out")
    builds = downloads(chosen, wheel_only=wheel_only)
    document = {"file": output, "builds": [build.id for build in builds]}
    if dry_run:
        result(document, "\n".join(document["builds"]), json=json)
        say(f"dry run: the downloads of these builds would go to {output}; nothing was started")
        return
    Maker(run=run).bundle(builds, Path(output), wheel_only=wheel_only)
    size = Path(output).stat().st_size
    said = f"{size / 1e9:.2f} GB; `--mirror {shlex.quote(output)}` builds from it without a network"
    result({**document, "bytes": size}, output, said, json=json)


@verb(
    ON_ENGINE,
    {
        "base": ("auto", "the --base of the build, to compare its speed on the same base (default: auto)"),
        "ca-cert": RUN["ca-cert"],
        "registry": ("", "check IMAGE in this repository instead, without downloading its layers", "HOST/PATH"),
        "pull": (False, "with --registry: also download it, and verify it in full"),
        "python": ("", "verify the TensorFlow in this environment instead of IMAGE, without an engine", "VENV"),
        "context": ("", "with --registry: require this context digest, and a base that is up to date", "DIGEST"),
        "signed": ("", "with --registry: require a signature, checked by cosign with these options", "OPTIONS"),
        "no-throughput": RUN["no-throughput"],
    },
    JSON,
    examples=(
        "invoke verify tfbuild:2.21.0-mkl-py3.11-f16c",
        "invoke verify 2.21.0-mkl-py3.11-f16c --registry ghcr.io/us/tfbuild",
    ),
)
def verify(image: str = "", *, python: str, json: bool, registry: str, pull: bool, **options: Any) -> None:
    """Check that IMAGE is what its labels claim or, with --registry, that it is published as a whole."""
    context, signed = options.pop("context"), options.pop("signed")
    if bool(image) == bool(python):
        raise UsageError("verify needs either IMAGE or --python VENV", hint="invoke verify IMAGE")
    useless = tuple(options) if python else ("engine", "base", "no_throughput") if registry and not pull else ()
    if given := [f"--{name.replace('_', '-')}" for name in useless if options[name] not in ("", "auto", False)]:
        raise UsageError(f"{', '.join(given)}: only for an image on an engine", hint=f"leave out {' and '.join(given)}")
    if registry and image:
        verify_published(image, registry, pull=pull, context=context, signed=signed, json=json, **options)
        return
    if registry or pull or context or signed:
        hint = "invoke verify IMAGE --registry HOST/PATH"
        raise UsageError("--registry, --pull, --context and --signed are for an IMAGE in a registry", hint=hint)
    if python:
        from tfbuild.verify import session

        finish(session.verify_installed(python, Progress(), REPORTS), python, json=json)
        return
    from tfbuild.pipeline.maker import Maker

    maker = Maker(run=run_of(options))
    found = image_on(maker.engine, image)
    finish(maker.verify(found), found, json=json)


def verify_published(
    image: str, registry: str, *, pull: bool, context: str, signed: str, json: bool, **options: Any
) -> None:
    """Check an image in a registry without its layers; with `pull`, also download and verify it."""
    from tfbuild.pipeline.maker import Maker
    from tfbuild.publish import indexes, pushing, signing

    place = registry_of(registry, options["ca_cert"])
    demand = signing.demand_of(signed, place.ca)
    found = pushing.find_published(place, image, demand)
    base = pushing.base_of(found, place.ca) if context else None
    if base and base.note:
        say_note(f"the base {base.name} is not compared: {base.note}")
    rebuild = bool(base and base.updated)
    if context:
        indexes.refuse_yanked(place, found.image.id)
        pushing.refuse_outdated(found, context)
    if json and (rebuild or not pull):
        state = {"base": base.to_json() if base else None, "signed": True if demand else None}
        out({**found.to_json(), **state, "rebuild_options": pushing.rebuild_options(found)})
    pushing.refuse_unfinished(place, found, base)
    if pull:
        maker = Maker(run=run_of(options))
        maker.engine.pull(found.reference, maker.progress)
        finish(maker.verify(found.reference), found.reference, json=json)
    elif not json:
        print(found.reference)
        say(f"{found.image.id} is published")


def finish(report: "Report | None", image: str, *, json: bool) -> None:
    """Print the outcome, then raise VerificationFailed if the report fails."""
    from tfbuild.measure import records
    from tfbuild.verify import report as reporting

    if report is None:
        result({"image": image, "verified": False}, image, json=json)
        return
    if json:
        sys.stdout.write(records.to_json(report))
    else:
        reporting.show_report(report)
        say(f"image {image}, report {reporting.report_path(report, REPORTS).with_suffix('.html')}")
    reporting.raise_if_failed(report, image)


@verb(
    ON_ENGINE,
    {
        "full": (False, "read all of the code, not a sample; takes minutes"),
        "sbom": (False, "print the software bill of materials of an image instead, as CycloneDX"),
    },
    JSON,
    examples=(
        "invoke inspect tensorflow_cpu-2.20.0-cp312-cp312-manylinux_2_17_x86_64.whl",
        "invoke inspect tfbuild:2.21.0-mkl-py3.11-f16c --sbom > sbom.json",
    ),
)
def inspect(subject: str, *, engine: str, full: bool, sbom: bool, json: bool) -> None:
    """Show what SUBJECT (wheel, image, installed package or library) was compiled for; nothing in it is run."""
    from tfbuild.binary import inspector
    from tfbuild.engine import Engine

    of_image = inspector.is_image(subject)
    if sbom and (full or not of_image):
        raise UsageError("--sbom is for an image, and without --full", hint="invoke inspect IMAGE --sbom")
    if engine and not of_image:
        raise UsageError("--engine is for an image", hint="leave out --engine")
    if sbom:
        from tfbuild.publish import sbom as bills

        connected = Engine.connect(engine)
        image = connected.image(image_on(connected, subject))
        sys.stdout.write(bills.document(image, bills.read_contents(connected, image.id)).decode())
        return
    from tfbuild.verify import libraries

    if of_image:
        connected = Engine.connect(engine)
        inspection = libraries.inspect_image(connected, image_on(connected, subject), full=full, progress=Progress())
    else:
        inspection = inspector.inspect(Path(subject), full=full, progress=Progress())
    if json:
        out(inspection.to_json())
        return
    print(f"{inspection.subject}: compiled for {inspection.name}")
    for name, library in inspection.libraries.items():
        print(f"\n{name}: {library.how()}\n{'feature':20}{'per 1000':>10}{'regions':>10}")
        for row in library.families:
            mark = "  compiled for it" if row.compiled else ""
            print(f"{row.feature:20}{row.rate:10.3f}{100 * row.share:8.1f} %{mark}")
    if (guard := inspection.guard) and guard.compiled:
        print(f"\nguard: compiled for {' '.join(guard.compiled)}; unused {' '.join(guard.unused)}")
        print(f"guard: {'; '.join(inspection.disagreements()) or 'agrees with the code'}")


@verb(
    {
        "stop": (False, "stop the engine that tfbuild started, unless containers run on it"),
        "yes": (False, "with --stop: even if containers run on it"),
    },
    JSON,
    examples=("invoke engine build --target mkl --wheel official    # one after the other", "invoke engine --stop"),
)
def engine(*, stop: bool, yes: bool, json: bool) -> None:
    """Make sure that a container engine answers; as root on Debian or Ubuntu, install and start one if needed."""
    from tfbuild.engine import daemon

    if yes and not stop:
        raise UsageError("--yes is for --stop", hint="invoke engine --stop --yes")
    if stop:
        if number := 0 if yes else daemon.running_containers():
            raise UsageError(f"this would also stop {counted(number, 'container')}", hint="invoke engine --stop --yes")
        stopped = daemon.stop(Progress())
        said = "stopped the engine that tfbuild had started" if stopped else "no engine that tfbuild started is running"
        result({"stopped": stopped}, "", said, json=json)
        return
    running = daemon.ensure(Progress())
    said = f"engine {running.version} ({running.platform}) answers"
    result({"version": running.version, "platform": running.platform}, "", said, json=json)


@verb(
    {
        "only": ([], "only this experiment (repeatable)", "NAME"),
        "quick": (False, "about a minute: one or two cases of the main experiments"),
        "model": ([], "this whole model, such as resnet50 (repeatable), or the folder of a SavedModel of your own"),
        "shape": ([], "sizes of an input of the SavedModel, such as ids=1,128 (repeatable)", "NAME=N,N"),
        "batch-size": ("", "items per step of --model (default: each model's own; measured for a SavedModel)", "N"),
        "full": (False, "up to an hour: every case, with the narrowest intervals"),
        "budget": (
            "",
            "time for the whole run, such as 90s, 5m or 1h (default: 5m; the last preparation may add 4m)",
            "TIME",
        ),
        "against": ("", "image (or environment) to compare with in `isa`, `overhead` and `all`", "IMAGE"),
        "python": ("", "measure the TensorFlow in this environment instead of IMAGE, without an engine", "VENV"),
        "name": ("", "name of the report, reports/NAME.json (default: bench-IDENTIFIER, which replaces an older one)"),
        "list": (False, "only list the experiments: their questions, what is compared, and for how long"),
    },
    JSON,
    examples=("invoke bench --list", "invoke bench --python VENV", "invoke bench IMAGE --model DIR --shape ids=1,128"),
)
def bench(image: str = "", *, only: list[str], json: bool, model: list[str], shape: list[str], **options: Any) -> None:
    """Measure the performance guide's claims on this machine, in IMAGE or in an installed TensorFlow."""
    from tfbuild.bench import command

    listed, batch_size, name, python = (options.pop(key) for key in ("list", "batch_size", "name", "python"))
    settings = command.with_saved_model(command.run_settings(**options), model, shape, batch_size)
    rows = command.rows_of(only, settings, model, batch_size)
    if listed:
        command.show_rows(rows, settings, json=json)
    elif bool(image) != bool(python):
        command.run(image, rows, settings, REPORTS, json=json, name=name, python=python)
    else:
        raise UsageError("bench needs either IMAGE or --python VENV", hint="invoke bench IMAGE, or invoke bench --list")
