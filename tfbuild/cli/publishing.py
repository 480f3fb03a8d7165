"""The verbs for finished images: SBOM, registry, and the images on the engine."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.listing import show_choice, show_images, show_passed_over, show_pulled, show_pushed, show_rehearsed
from tfbuild.cli.options import (
    JSON,
    ON_ENGINE,
    PLAN,
    REGISTRY,
    certificates,
    engine_of,
    host_cpu,
    image_on,
    registry_of,
    require_extra,
)
from tfbuild.cli.output import confirmed, out, say, say_note
from tfbuild.cli.verbs import variable, verb
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import EngineMissing, Interrupted, NothingFits, TfbuildError, UsageError, VerificationFailed
from tfbuild.util.files import REPORTS
from tfbuild.util.quantities import counted

if TYPE_CHECKING:
    from tfbuild.publish.lock import Lock


@verb(
    ON_ENGINE,
    {
        "output": ("", "file to write (default: stdout)", "PATH"),
        "format": ("cyclonedx", "cyclonedx (version 1.6, the default) or spdx (version 2.3)"),
    },
    JSON,
    examples=(
        "invoke sbom tfbuild:2.21.0-mkl-py3.11-f16c --output sbom.json",
        "invoke sbom tfbuild:2.21.0-mkl-py3.11-f16c --format spdx",
    ),
)
def sbom(image: str, *, engine: str, output: str, format: str, json: bool) -> None:
    """Write the software bill of materials of IMAGE, from its files."""
    if format not in ("cyclonedx", "spdx"):
        raise UsageError(f"--format {format!r} is unknown", hint="--format cyclonedx, or --format spdx")
    require_extra("publish", "sbom")
    from tfbuild.publish import attachments
    from tfbuild.publish import sbom as bills

    connected = engine_of(engine)
    image = image_on(connected, image)
    bill = bills.of_image(connected, connected.image(image), image)
    content = bills.to_spdx(bill) if format == "spdx" else bill
    if output:
        attachments.write(Path(output), content)
    if json and output:
        out({"image": image, "sbom": output, "components": len(bills.component_names(bill))})
    elif output:
        print(output)
    else:
        sys.stdout.write(content.decode())


@verb(
    ON_ENGINE,
    REGISTRY,
    {
        "force": (False, "move the fixed tag even if it names another image in the registry"),
        "sign": (False, "sign it with cosign, which must be installed, by your identity or that of the CI"),
        "sign-options": ("", "sign it with these options of `cosign sign`: '--key cosign.key'"),
        "dry-run": (False, "only check; exit with the code that the push would exit with"),
        "access": (False, "only ask the registry whether it accepts a push; IMAGE need not exist yet"),
        "indexes": (False, "push no image, but add one that is in the registry to its release's indexes"),
        "signed": (
            "",
            "with --indexes: require a signature that cosign accepts with these options: '--key cosign.pub'",
        ),
    },
    JSON,
    examples=(
        "invoke push tfbuild:2.21.0-mkl-py3.11-f16c --registry ghcr.io/us/tfbuild",
        "invoke push tfbuild:2.21.0-mkl-py3.11-f16c --dry-run    # only check",
        "invoke push 2.21.0-mkl-py3.11-f16c --access    # before a build",
    ),
)
def push(
    image: str,
    *,
    engine: str,
    registry: str,
    ca_cert: str,
    force: bool,
    sign: bool,
    sign_options: str,
    access: bool,
    indexes: bool,
    signed: str,
    dry_run: bool,
    json: bool,
) -> None:
    """Publish a verified IMAGE with its SBOM and provenance, and add it to its release's indexes."""
    from tfbuild.engine import Engine, connection
    from tfbuild.publish import pushing, signing
    from tfbuild.util.progress import Progress

    if not access:
        require_extra("publish", "push")
    chosen = connection.choose(engine)
    destination = registry_of(registry, ca_cert, image)
    signs = bool(sign or sign_options)
    exclusive = {"--access": access, "--indexes": indexes, "--force": force, "--sign": signs and access}
    given = [name for name, value in exclusive.items() if value]
    if (indexes or access) and len(given) > 1:
        raise UsageError(f"{given[0]} pushes no image", hint=f"leave out {' and '.join(given[1:])}")
    if signed and not indexes:
        raise UsageError("--signed is for --indexes", hint="--sign signs an image that is pushed")
    signer = signing.signer(sign_options, destination.ca) if signs else None
    if access:
        ref, digest = pushing.access(destination, image)
        show_rehearsed(ref, digest, json=json)
    elif indexes:
        demand = signing.demand_of(signed, destination.ca)
        finished = pushing.finish(destination, image, REPORTS, say_note, demand=demand, sign=signer, dry_run=dry_run)
        show_pushed(finished, json=json, dry_run=dry_run)
    elif dry_run:
        ready = pushing.rehearse(Engine.connect(chosen), image, destination, REPORTS, force=force)
        digest = ready.there.digest if ready.there else ""
        show_rehearsed(ready.ref, digest, json=json, uploads=ready.existing is None)
    else:
        connected = Engine.connect(chosen)
        with connected.watched("the push"):
            pushed = pushing.push(connected, image, destination, REPORTS, force=force, progress=Progress(), sign=signer)
        show_pushed(pushed, json=json)


@verb(
    ON_ENGINE,
    REGISTRY,
    {name: PLAN[name] for name in ("target", "cpuinfo")},
    {
        "release": replace(
            PLAN["release"],
            help="TensorFlow release, such as 2.21.0 or 2.21 (default: the newest one that is published for any host)",
        ),
        "any-release": (False, "take the largest instruction set that fits, even if only an older release has it"),
        "python": replace(PLAN["python"], help="Python of the image (default: the newest)"),
        "skip": ([], "pass over the image with this identifier (repeatable)"),
        "signed": ("", "require a signature that cosign accepts with these options: '--key cosign.pub'", "OPTIONS"),
        "lock": ("", "file that locks the images of a fleet: take those in it; if it is missing, write it", "FILE"),
        "dry-run": (False, "only choose, without downloading"),
    },
    JSON,
    examples=(
        "invoke pull --registry ghcr.io/us/tfbuild",
        "invoke pull --release 2.21 --python 3.12     # with TFBUILD_REGISTRY set",
        "invoke pull --dry-run               # only choose",
        "invoke pull --lock tfbuild.lock     # what all hosts with this file run",
    ),
)
def pull(
    *,
    engine: str,
    registry: str,
    ca_cert: str,
    release: str,
    target: str,
    python: str,
    any_release: bool,
    cpuinfo: str,
    skip: list[str],
    signed: str,
    lock: str,
    dry_run: bool,
    json: bool,
) -> None:
    """Pull from a registry the best image that this host can run, and say why it is."""
    from tfbuild.engine import Engine, connection
    from tfbuild.publish import lock as locks
    from tfbuild.publish import pulling, signing
    from tfbuild.util.progress import Progress

    chosen = connection.choose(engine)
    locked = locks.read_lock(Path(lock), to_write=True) if lock else None
    narrowing: dict[str, Any] = {"release": release, "target": target, "python": python, "skip": skip}
    narrowing["any_release"] = any_release
    _refuse_contradiction(lock, locked, narrowing)
    source = registry_of(registry, ca_cert, f"{locked.registry}:x" if locked else "")
    demand = signing.demand_of(signed, source.ca)
    host = running_cpu(cpuinfo, ca_cert, chosen)
    selected = partial(pulling.select, source, host, **narrowing, demand=demand, note=say_note)
    if locked is None:
        choice = pulling.select_signed(source, selected, demand) if demand else selected()
        if lock:
            locked = locks.write_lock(Path(lock), source, choice, say_note, demand)
            say(f"wrote {lock}: TensorFlow {locked.release} in {counted(len(locked.images), 'image')}")
    choice = locks.select(locked, host) if locked else choice
    if choice.best is None:
        show_passed_over(choice)
    try:
        accepted = locks.accept(source, locked, choice, say_note, demand)
    except (NothingFits, VerificationFailed) as error:
        if json:
            second = error.second if isinstance(error, pulling.Altered) else None
            show_pulled(choice.among(()), second=second.id if second else "")
        raise
    left = choice.fitting[choice.fitting.index(accepted.image) :]
    choice = choice.among(left).passing(accepted.passed_over)
    reference = f"{source.repository}@{accepted.image.digest}"
    if dry_run or json:
        show_passed_over(choice, notable=json)
    if not json:
        show_choice(choice, any_release=any_release, locked_by=lock)
    image = "" if dry_run else pulling.pull(Engine.connect(chosen), source, accepted, Progress())
    if json:
        show_pulled(choice, reference=reference, image=image, signed=demand is not None)
    else:
        print(image or reference)
        if image:
            say(f"docker run --rm -it {image} python")


def _refuse_contradiction(path: str, lock: "Lock | None", narrowing: Mapping[str, Any]) -> None:
    """Raise UsageError for options that contradict a lock."""
    if path and narrowing["any_release"]:
        raise UsageError("--lock locks the images of one release", hint="leave out --any-release")
    given = [f"--{name}" for name, value in narrowing.items() if value and name != "target"]
    if lock and given:
        raise UsageError(
            f"{path} already decides what to pull", hint=f"leave out {' and '.join(given)}, or remove {path}"
        )
    if lock and lock.target != narrowing["target"]:
        raise UsageError(f"{path} locks images for {lock.target}", hint=f"--target {lock.target}, or remove {path}")


def running_cpu(cpuinfo: str, ca_cert: str, chosen: str) -> Cpu:
    """Return the CPU that will run the image: that of --cpuinfo, else that of the engine's machine."""
    from tfbuild.engine import connection

    if not cpuinfo and connection.elsewhere(chosen):
        from tfbuild.pipeline.maker import Maker
        from tfbuild.pipeline.run import Run

        return Maker(run=Run(engine=chosen, ca=certificates(ca_cert))).cpu()
    return detect_cpu(Path(cpuinfo) if cpuinfo else None)


@verb(
    ON_ENGINE,
    REGISTRY,
    {"outdated": (False, "only images here that were yanked, or that have a newer build or release in the registry")},
    JSON,
    examples=(
        "invoke images",
        "invoke images --registry ghcr.io/us/tfbuild",
        "invoke images --outdated    # with TFBUILD_REGISTRY set",
    ),
)
def images(*, engine: str, registry: str, ca_cert: str, outdated: bool, json: bool) -> None:
    """List images on the engine and in the registry: size, age, CPU, verified or not, and whether they run here."""
    from tfbuild.engine import Engine, connection
    from tfbuild.publish import inventory

    chosen = connection.choose(engine)
    named = registry or variable("TFBUILD_REGISTRY")
    remote = registry_of(registry, ca_cert) if named or outdated else None
    connected: Engine | None = None
    try:
        connected = Engine.connect(chosen)
        host = running_cpu("", ca_cert, chosen) if connection.elsewhere(chosen) else host_cpu("")
    except EngineMissing as error:
        if remote is None or outdated:
            raise
        connected, host = None, host_cpu("")
        say_note(f"{error.reason}; listing only the registry, for the CPU of this machine")
    entries = inventory.local(connected, REPORTS, host) if connected is not None else []
    if remote is not None:
        published = inventory.remote(remote, host, say_note)
        if not published:
            say_note(f"{remote.repository} has no images of tfbuild")
        entries = inventory.outdated(entries, published) if outdated else entries + published
    if json:
        out([entry.to_json() for entry in entries])
    else:
        show_images(entries)


@verb(
    REGISTRY,
    {
        "reason": ("", "why hosts should not run it; `invoke images` shows the reason"),
        "undo": (False, "offer the image again"),
        "sign-options": ("", "sign the indexes with these options of `cosign sign`: '--key cosign.key'"),
    },
    JSON,
    aliases=("withdraw",),
    examples=("invoke yank 2.21.0-mkl-py3.11-f16c --reason 'crashes in MatMul, issue 123'",),
)
def yank(
    image: str, *, registry: str, ca_cert: str, reason: str, undo: bool, sign_options: str = "", json: bool
) -> None:
    """Take IMAGE out of the indexes of its registry, so that no host pulls it any more; its own tag stays."""
    from tfbuild.publish import signing, yanking

    if bool(reason.strip()) == undo:
        raise UsageError(
            "yanking needs a reason, and --undo takes none", hint="--reason 'crashes in MatMul', or --undo alone"
        )
    place = registry_of(registry, ca_cert, image)
    signer = signing.signer(sign_options, place.ca) if sign_options else None
    done = yanking.yank(place, image, reason.strip(), say_note, signer)
    if json:
        out(done.to_json())
        return
    print(f"{done.ref}@{done.digest}")
    say("offered again" if undo else "yanked from its indexes")
    if not done.recorded:
        say_note("the registry lost this image or a part of it, so the reason cannot be attached")


@verb(
    {
        "keep": (
            [],
            "keep only identifiers that match this glob (repeatable; default: all but failed and unverified ones)",
            "GLOB",
        ),
        "dry-run": (False, "only show what would be removed"),
        "yes": (False, "do not ask for confirmation"),
    },
    ON_ENGINE,
    JSON,
    examples=(
        "invoke prune --dry-run",
        "invoke prune --keep '2.21.*'",
    ),
)
def prune(*, engine: str, keep: list[str], dry_run: bool, yes: bool, json: bool) -> None:
    """Remove tfbuild's failed, unverified and unnamed images from the engine, or all but those to keep; asks first."""
    from tfbuild.publish import inventory

    connected = engine_of(engine)
    going = inventory.prunable(inventory.local(connected, REPORTS, None), keep)
    for entry in going:
        say(f"{entry.name if entry.name != inventory.UNNAMED else entry.digest}  {inventory.age(entry.created)}")
    if not (dry_run or yes or not going) and not confirmed(
        f"remove {counted(len(going), 'image')}?", otherwise="--yes, or --dry-run to see what would be removed"
    ):
        raise Interrupted("nothing was removed")
    kept = {} if dry_run else inventory.remove(connected, going)
    removed = [] if dry_run else [entry.name for entry in going if entry not in kept]
    if json:
        out({"removed": removed, "going": [entry.name for entry in going]})
    else:
        say(f"would remove {counted(len(going), 'image')}" if dry_run else f"removed {counted(len(removed), 'image')}")
    if kept:
        reasons = "; ".join(f"{entry.name}: {reason}" for entry, reason in kept.items())
        raise TfbuildError(
            f"{counted(len(kept), 'image')} could not be removed: {reasons}",
            hint="stop the containers that use them, and prune again",
        )
