"""The verbs that make images, wheels and bundles, and those that prove what one is."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.options import (
    COMPILE,
    ENGINE,
    JSON,
    MAKE,
    PLAN,
    REPORTS,
    TIMED,
    engine_of,
    fill,
    registry_of,
    request_of,
    run_of,
)
from tfbuild.cli.output import out, say
from tfbuild.cli.planning import select_and_tell, show_plan
from tfbuild.cli.verbs import verb
from tfbuild.errors import UsageError
from tfbuild.plan import Build

if TYPE_CHECKING:
    from tfbuild.verify.records import Report


@verb(
    PLAN,
    MAKE,
    COMPILE,
    {
        "reverify": (False, "verify again, though nothing changed since the stored report"),
        "no-verify": (False, "build only; the image keeps the name IDENTIFIER-unverified"),
        **TIMED,
        "dry-run": (False, "plan and render, start nothing"),
    },
    JSON,
)
def build(*, json: bool, dry_run: bool, **options: Any) -> None:
    """Detect, plan, render, build, verify, tag, report."""
    from tfbuild.pipeline import Maker

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    made = Maker(run=run)
    for note in unheeded(chosen, options):
        say(f"note: {note}")
    if dry_run:
        context = made.render(chosen)
        out([chosen.to_json()]) if json else show_plan(chosen)
        say(f"dry run: the build context is in {context.folder}; nothing was started")
        return
    result = made.build(chosen)
    finish(result.report, result.image, json=json)


def unheeded(build: Build, options: Mapping[str, Any]) -> list[str]:
    """Return notes on options for a compile where nothing is compiled: a CI matrix gives all its rows the same ones."""
    from tfbuild.pipeline.run import RunRequest

    used = fill(RunRequest, options).for_compiling() if build.wheel.kind != "source" else ()
    return [f"{', '.join(used)}: of no use, for --wheel {build.wheel.kind} compiles nothing"] if used else []


@verb(PLAN, MAKE, COMPILE, {"output": ("dist", "folder for the wheel")}, JSON)
def wheel(*, output: str, json: bool, **options: Any) -> None:
    """Compile the wheel alone, with a JSON beside it that says how."""
    from tfbuild.pipeline import Maker

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    made = Maker(run=run).wheel(chosen, Path(output))
    if json:
        out({"id": chosen.id, "wheel": str(made.wheel), "sidecar": str(made.sidecar), "sha256": made.sha256})
    else:
        print(made.wheel)


@verb(
    PLAN,
    MAKE,
    {
        "output": ("bundle", "the folder; what is in it is not downloaded again"),
        "wheel-only": (False, "what `invoke wheel` downloads, without what its image would"),
        "need-disk": COMPILE["need-disk"],
        "dry-run": (False, "plan, start nothing"),
    },
    JSON,
)
def bundle(*, output: str, wheel_only: bool, dry_run: bool, json: bool, **options: Any) -> None:
    """Download all that a build does into one folder, from which `--mirror FOLDER` builds without a network."""
    from tfbuild import pipeline

    run = run_of(options)
    chosen = select_and_tell(request_of(options), run)
    if run.bundle:
        raise UsageError("a bundle is not filled from another one", hint="copy the folder; or --mirror URL")
    if run.network not in ("", "host"):
        raise UsageError(
            f"what fills a bundle is served on this machine, which --network {run.network} cannot reach",
            hint="leave out --network",
        )
    builds = pipeline.downloads(chosen, wheel_only=wheel_only)
    identifiers = [build.id for build in builds]
    if dry_run:
        out({"folder": output, "builds": identifiers}) if json else print(*identifiers, sep="\n")
        say(f"dry run: what these builds download would go to {output}; nothing was started")
        return
    filled = pipeline.Maker(run=run).bundle(builds, Path(output))
    if json:
        out({"folder": output, "builds": identifiers, "files": filled.files, "bytes": filled.size})
    else:
        print(output)
        say(f"{filled.files} files, {filled.size / 1e9:.2f} GB; `--mirror {output}` builds from them without a network")


@verb(
    MAKE,
    {
        "registry": ("", "check the IMAGE that this repository (HOST/PATH) has; no layer is downloaded for that"),
        "pull": (False, "with --registry: download it too, compare its SBOM with its files, and verify it in full"),
        "context": ("", "with --registry: was it made from the context of this digest (`invoke dockerfile --json`)?"),
        "signed": (
            "",
            "with --registry: demand a signature that cosign finds good by these options: '--key cosign.pub'",
        ),
        **TIMED,
    },
    JSON,
)
def verify(image: str, *, json: bool, registry: str, pull: bool, context: str, signed: str, **options: Any) -> None:
    """Prove that IMAGE is what its labels claim, or (--registry) what its provenance and SBOM describe."""
    if registry:
        verify_published(image, registry, pull=pull, context=context, signed=signed, json=json, **options)
        return
    if pull or context or signed:
        raise UsageError("--pull, --context and --signed are for an image in a registry", hint="--registry HOST/PATH")
    from tfbuild.pipeline import Maker

    finish(Maker(run=run_of(options)).verify(image), image, json=json)


def verify_published(
    image: str, registry: str, *, pull: bool, context: str, signed: str, json: bool, **options: Any
) -> None:
    """Check that a registry's image is the one described; with `pull` check its files too, and verify it."""
    from tfbuild.pipeline import Maker
    from tfbuild.publish import described, signing

    run = run_of(options)
    words = signing.options(signed)
    place = registry_of(registry, options["ca_cert"])
    found = described.check(place, image, REPORTS)
    for note in found.notes:
        say(f"note: {note}")
    if context:
        described.refuse_outdated(found, context)
    described.refuse_unfinished(found)
    if words:
        signing.demand(found.reference, words, ca=place.ca)
    if not pull:
        if json:
            out({**found.to_json(), "signed": True if words else None})
            return
        print(f"{found.reference}")
        say(f"{found.id} is the image that its provenance and its SBOM describe")
        return
    made = Maker(run=run)
    described.pull(made.engine, place, found, made.progress)
    finish(made.verify(found.reference), found.reference, json=json)


def finish(report: "Report | None", image: str, *, json: bool) -> None:
    """Print the outcome; a report that fails ends in VerificationFailed after it was printed."""
    from tfbuild.verify import report as reporting

    if report is None:
        out({"image": image, "verified": False}) if json else print(image)
        return
    if json:
        sys.stdout.write(reporting.to_json(report) + "\n")
    else:
        reporting.show(report, sys.stdout)
        say(f"image {image}, report {reporting.path(report, REPORTS).with_suffix('.md')}")
    reporting.raise_if_failed(report, image)


@verb({"engine": ENGINE["engine"]}, {"full": (False, "read all of the code, not a sample: minutes")}, JSON)
def inspect(subject: str, *, engine: str, full: bool, json: bool) -> None:
    """What SUBJECT (a wheel, an image or a library) was compiled for, by its machine code; nothing of it is run."""
    from tfbuild.binary import inspector
    from tfbuild.util.progress import Progress
    from tfbuild.verify import libraries

    if inspector.is_image(subject):
        found = libraries.image(engine_of(engine), subject, full=full, progress=Progress())
    else:
        found = inspector.inspect(Path(subject), full=full, progress=Progress())
    if json:
        out(found.to_json())
        return
    print(f"{found.subject}: compiled for {found.main.name}")
    for name, library in found.libraries.items():
        print(f"\n{name}: {library.how()}")
        print(f"{'feature':20}{'per 1000':>10}{'regions':>10}")
        for row in library.families:
            mark = "  compiled for it" if row.compiled else ""
            print(f"{row.feature:20}{row.rate:10.3f}{100 * row.share:8.1f} %{mark}")
    if found.guard and found.guard.compiled:
        print(f"\nguard: compiled for {' '.join(found.guard.compiled)}; unused {' '.join(found.guard.unused)}")
        print(f"guard: {'; '.join(found.disagreements()) or 'agrees with the code'}")


@verb({"stop": (False, "stop the engine that tfbuild started"), "json": JSON["json"]})
def engine(*, stop: bool, json: bool) -> None:
    """Make sure that a container engine answers; install and start Debian's where none does and this is root."""
    from tfbuild.engine import daemon
    from tfbuild.util.progress import Progress

    progress = Progress()
    if stop:
        stopped = daemon.stop(progress)
        if json:
            out({"stopped": stopped})
            return
        say("stopped the engine that tfbuild had started" if stopped else "no engine of tfbuild's own is running")
        return
    answer = daemon.ensure(progress)
    if json:
        out({"version": answer.version, "platform": answer.platform})
    else:
        say(f"engine {answer.version} ({answer.platform}) answers")
