"""The verbs that make images, wheels and bundles, and those that check them."""

import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.listing import show_plan
from tfbuild.cli.options import (
    JSON,
    MAKE,
    ON_ENGINE,
    PLAN,
    RUN,
    TIMED,
    engine_of,
    image_on,
    registry_of,
    require_extra,
    run_of,
)
from tfbuild.cli.output import confirmed, out, say, say_note
from tfbuild.cli.planning import select_and_print_notes
from tfbuild.cli.verbs import SETTINGS, verb
from tfbuild.errors import Interrupted, UsageError
from tfbuild.plan import Build, Request, RunRequest
from tfbuild.util.files import REPORTS
from tfbuild.util.options import given_to_compile, make
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import counted, days

if TYPE_CHECKING:
    from tfbuild.publish.lock import Lock
    from tfbuild.verify.records import Report


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
    chosen = select_and_print_notes(make(Request, options), run)
    maker = Maker(run=run)
    for note in ignored_options(chosen, options):
        say_note(note)
    if dry_run:
        context = maker.render(chosen)
        out([{**chosen.to_json(), "context_digest": context.digest}]) if json else show_plan(chosen)
        say(f"dry run: the build context is in {context.folder}; nothing was started")
        return
    result = maker.build(chosen)
    finish(result.report, result.image, json=json)


def ignored_options(build: Build, options: Mapping[str, Any]) -> list[str]:
    """Return a note on compile options where nothing is compiled.

    They are not errors, because a CI matrix gives all of its rows the same options.
    """
    ignored = given_to_compile(make(RunRequest, options)) if build.wheel.kind != "source" else ()
    return [f"{', '.join(ignored)}: ignored, because --wheel {build.wheel.kind} compiles nothing"] if ignored else []


# Starts a worker of buildbox, whose programs are in /opt/buildbox; casd beside it keeps what actions share.
WORKER = """\
docker run --detach --init --restart unless-stopped --network host \\
    --volume /opt/buildbox:/opt/buildbox:ro {image} sh -c '
    PATH=/opt/buildbox/bin:$PATH
    buildbox-casd --cas-remote={url} --bind=unix:/tmp/casd.sock /tmp/casd &
    exec buildbox-worker --bots-remote={url} --cas-remote=unix:/tmp/casd.sock \\
        --buildbox-run=buildbox-run-hosttools --concurrent-jobs=$(nproc) "$(hostname)-$(date +%s%N)"'"""


@verb(
    PLAN,
    MAKE,
    SETTINGS,
    {
        "repository": ("", "push it to this repository, such as registry.example.com/us/worker", "HOST/PATH"),
        "need-disk": RUN["need-disk"],
    },
    JSON,
    examples=(
        "invoke worker-image --target mkl --cpu x86-64-v3",
        "invoke worker-image --cpu x86-64-v3 --repository registry.example.com/worker",
    ),
)
def worker_image(*, repository: str, json: bool, **options: Any) -> None:
    """Make the image in which an executor's workers compile: the builder's compiler and libraries, without a source."""
    from tfbuild.pipeline.maker import Maker

    run = run_of(options)
    maker = Maker(run=run)
    image, builder = maker.worker_image(select_and_print_notes(make(Request, options), run), repository)
    if repository:
        maker.engine.push(image, maker.progress)
    command = WORKER.format(image=image, url="http://SCHEDULER:50051")
    chosen_by = f"container-image=docker://{image}"
    if json:
        out({"image": image, "builder": f"sha256:{builder}", "property": chosen_by, "command": command})
        return
    print(image)
    say(f"start a worker on each machine:\n{command}")
    say(f"if the executor chooses workers by image: --remote-property {chosen_by}")


@verb(
    PLAN,
    MAKE,
    SETTINGS,
    {
        "output": ("bundle", "folder to fill (default: bundle); existing files are not downloaded again", "PATH"),
        "wheel-only": (False, "only what `invoke wheel` downloads, not what an image needs"),
        "need-disk": RUN["need-disk"],
        "dry-run": (False, "only plan"),
    },
    JSON,
    examples=(
        "invoke bundle --target mkl --cpu x86-64-v3",
        "invoke build --target mkl --cpu x86-64-v3 --mirror bundle    # offline",
    ),
)
def bundle(*, output: str, wheel_only: bool, dry_run: bool, json: bool, **options: Any) -> None:
    """Download everything that a build needs into one folder, for building offline with `--mirror FOLDER`."""
    from tfbuild.pipeline.maker import Maker, downloads

    run = run_of(options)
    chosen = select_and_print_notes(make(Request, options), run)
    if run.bundle:
        raise UsageError("a bundle cannot be filled from another one", hint="copy the folder, or use --mirror URL")
    if run.network not in ("", "host"):
        raise UsageError(
            f"--network {run.network} cannot reach this machine, which serves the downloads of a bundle",
            hint="leave out --network",
        )
    builds = downloads(chosen, wheel_only=wheel_only)
    identifiers = [build.id for build in builds]
    if dry_run:
        out({"folder": output, "builds": identifiers}) if json else print(*identifiers, sep="\n")
        say(f"dry run: the downloads of these builds would go to {output}; nothing was started")
        return
    filled = Maker(run=run).bundle(builds, Path(output))
    if json:
        out({"folder": output, "builds": identifiers, "files": filled.files, "bytes": filled.size})
    else:
        print(output)
        say(f"{filled.files} files, {filled.size / 1e9:.2f} GB; `--mirror {output}` builds from them without a network")


@verb(
    ON_ENGINE,
    {
        "base": (
            "auto",
            "the --base of the build, to find the official wheel's image for the speed comparison (default: auto)",
            "IMAGE",
        ),
        "ca-cert": RUN["ca-cert"],
        "registry": (
            "",
            "check IMAGE in this repository (HOST/PATH) instead, without downloading its layers",
            "HOST/PATH",
        ),
        "pull": (False, "with --registry: also download it, compare its SBOM with its files, and verify it in full"),
        "context": (
            "",
            "with --registry: require this digest of its build context (`invoke dockerfile --json`), and that its base "
            "image was not updated since",
            "DIGEST",
        ),
        "max-age": ("", "with --registry: require an image that is not older than this, such as 30d"),
        "signed": (
            "",
            "with --registry: require a signature that cosign accepts with these options: '--key cosign.pub'",
            "OPTIONS",
        ),
        "lock": ("", "require the image that is locked in this file (see `invoke pull --lock`)", "FILE"),
        **TIMED,
    },
    JSON,
    examples=(
        "invoke verify tfbuild:2.21.0-mkl-py3.11-f16c",
        "invoke verify 2.21.0-mkl-py3.11-f16c --registry ghcr.io/us/tfbuild",
    ),
)
def verify(
    image: str, *, json: bool, registry: str, pull: bool, context: str, max_age: str, signed: str, **options: Any
) -> None:
    """Check that IMAGE is what its labels claim or, with --registry, what its provenance and SBOM describe."""
    lock = _lock(options.pop("lock"))
    if registry:
        age = days(max_age)
        verify_published(
            image, registry, lock, pull=pull, context=context, max_age=age, signed=signed, json=json, **options
        )
        return
    if pull or context or max_age or signed:
        raise UsageError(
            "--pull, --context, --max-age and --signed are for an image in a registry", hint="--registry HOST/PATH"
        )
    from tfbuild.pipeline.maker import Maker

    maker = Maker(run=run_of(options))
    found = image_on(maker.engine, image)
    if lock is not None:
        from tfbuild.context.labels import read_labels
        from tfbuild.publish import lock as locks

        local = maker.engine.image(found)
        locks.refuse_other(lock, read_labels(local.labels).id, local.digests)
    finish(maker.verify(found), found, json=json)


def _lock(path: str) -> "Lock | None":
    """Return the lock in a file; None without a path. Raises UsageError if there is no such file."""
    if not path:
        return None
    from tfbuild.publish import lock as locks

    if (lock := locks.read_lock(Path(path))) is None:
        raise UsageError(f"there is no {path}", hint=f"invoke pull --lock {path} writes it")
    return lock


def verify_published(
    image: str,
    registry: str,
    lock: "Lock | None",
    *,
    pull: bool,
    context: str,
    max_age: timedelta | None,
    signed: str,
    json: bool,
    **options: Any,
) -> None:
    """Compare a registry's image with its provenance and SBOM; with `pull`, also check its files and verify it."""
    from tfbuild.pipeline.maker import Maker
    from tfbuild.publish import check, freshness, signing
    from tfbuild.publish import lock as locks

    require_extra("publish", "verify --registry")
    run = run_of(options)
    published_in = registry_of(registry, options["ca_cert"])
    demand = signing.demand_of(signed, published_in.ca)
    published = check.image(published_in, image, REPORTS, demand)
    for note in published.notes:
        say_note(note)
    if lock:
        locks.refuse_other(lock, published.id, frozenset({published.manifest.digest}))
    if context:
        check.refuse_outdated(published, context)
    check.refuse_yanked(published)
    state = freshness.judge(published, compare_base=bool(context), max_age=max_age, ca=published_in.ca)
    if state.base and state.base.note:
        say_note(f"the base {state.base.name} is not compared: {state.base.note}")
    # Not of an image that should be rebuilt: to finish its push would offer an old image that somebody put back.
    if not state.reasons:
        check.refuse_unfinished(published)
    if json and (state.reasons or not pull):
        out({**published.to_json(), **state.to_json(), "signed": True if demand else None})
    freshness.refuse_stale(published, state)
    if not pull:
        if json:
            return
        print(f"{published.reference}")
        say(f"{published.id} is the image that its provenance and its SBOM describe")
        return
    maker = Maker(run=run)
    check.pull(maker.engine, published, maker.progress)
    finish(maker.verify(published.reference), published.reference, json=json)


def finish(report: "Report | None", image: str, *, json: bool) -> None:
    """Print the outcome, then raise VerificationFailed if the report fails."""
    from tfbuild.measure import records
    from tfbuild.verify import page
    from tfbuild.verify import report as reporting

    if report is None:
        out({"image": image, "verified": False}) if json else print(image)
        return
    if json:
        sys.stdout.write(records.to_json(report))
    else:
        page.show(report)
        say(f"image {image}, report {reporting.path(report, REPORTS).with_suffix('.html')}")
    reporting.raise_if_failed(report, image)


@verb(
    ON_ENGINE,
    {"full": (False, "read all of the code instead of a sample, which takes minutes")},
    JSON,
    examples=(
        "invoke inspect tensorflow_cpu-2.20.0-cp312-cp312-manylinux_2_17_x86_64.whl",
        "invoke inspect tfbuild:2.21.0-mkl-py3.11-f16c",
        "invoke inspect venv/lib/python3.12/site-packages/tensorflow",
    ),
)
def inspect(subject: str, *, engine: str, full: bool, json: bool) -> None:
    """Show what SUBJECT (wheel, image, installed package or library) was compiled for; nothing in it is run."""
    from tfbuild.binary import inspector
    from tfbuild.verify import libraries

    if inspector.is_image(subject):
        connected = engine_of(engine)
        inspection = libraries.image(connected, image_on(connected, subject), full=full, progress=Progress())
    else:
        inspection = inspector.inspect(Path(subject), full=full, progress=Progress())
    if json:
        out(inspection.to_json())
        return
    print(f"{inspection.subject}: compiled for {inspection.main.name}")
    for name, library in inspection.libraries.items():
        print(f"\n{name}: {library.how()}")
        print(f"{'feature':20}{'per 1000':>10}{'regions':>10}")
        for row in library.families:
            mark = "  compiled for it" if row.compiled else ""
            print(f"{row.feature:20}{row.rate:10.3f}{100 * row.share:8.1f} %{mark}")
    if (guard := inspection.guard) and guard.compiled:
        print(f"\nguard: compiled for {' '.join(guard.compiled)}; unused {' '.join(guard.unused)}")
        print(f"guard: {'; '.join(inspection.disagreements()) or 'agrees with the code'}")


@verb(
    {"stop": (False, "stop the engine that tfbuild started; asks if containers run on it")},
    {"yes": (False, "stop it without asking")},
    JSON,
    examples=(
        "invoke engine",
        "invoke engine build --target mkl --wheel official    # one after the other",
        "invoke engine --stop",
    ),
)
def engine(*, stop: bool, yes: bool, json: bool) -> None:
    """Make sure that a container engine answers; as root on Debian or Ubuntu, install and start one if needed."""
    from tfbuild.engine import daemon

    progress = Progress()
    if stop:
        number = 0 if yes else daemon.running_containers()
        containers = counted(number, "running container")
        if number and not confirmed(f"stop the engine and {containers}?", otherwise=f"--yes stops {containers}, too"):
            raise Interrupted("the engine was not stopped")
        stopped = daemon.stop(progress)
        if json:
            out({"stopped": stopped})
            return
        say("stopped the engine that tfbuild had started" if stopped else "no engine of tfbuild's own is running")
        return
    running = daemon.ensure(progress)
    if json:
        out({"version": running.version, "platform": running.platform})
    else:
        say(f"engine {running.version} ({running.platform}) answers")
