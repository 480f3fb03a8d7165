"""The verbs between an engine and a registry."""

from dataclasses import replace
from pathlib import Path

from tfbuild.cli.listing import show_choice, show_passed_over, show_pulled, show_pushed, show_rehearsed
from tfbuild.cli.options import JSON, ON_ENGINE, PLAN, REGISTRY, certificates, registry_of
from tfbuild.cli.output import out, say, say_note
from tfbuild.cli.verbs import verb
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import NothingFits, UsageError, VerificationFailed
from tfbuild.util.files import REPORTS


@verb(
    ON_ENGINE,
    REGISTRY,
    {
        "force": (False, "move the fixed tag even if it names another image in the registry"),
        "sign": (False, "sign it with cosign, which must be installed, by your identity or that of the CI"),
        "sign-options": ("", "sign it with these options of `cosign sign`: '--key cosign.key'"),
        "dry-run": (False, "only check; exit with the code that the push would exit with"),
        "access": (False, "only ask the registry whether it accepts a push; IMAGE need not exist yet"),
        "indexes": (False, "push no image, but compute the indexes of one that is in the registry"),
        "yank": ("", "push no image, but take one out of the registry's indexes, for this reason", "REASON"),
    },
    JSON,
    examples=(
        "invoke push tfbuild:2.21.0-mkl-py3.11-f16c --registry ghcr.io/us/tfbuild",
        "invoke push tfbuild:2.21.0-mkl-py3.11-f16c --dry-run    # only check",
        "invoke push 2.21.0-mkl-py3.11-f16c --access    # before a build",
        "invoke push 2.21.0-mkl-py3.11-f16c --yank 'crashes in MatMul, issue 123'",
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
    yank: str,
    dry_run: bool,
    json: bool,
) -> None:
    """Publish a verified IMAGE with its SBOM and provenance, and add it to its release's indexes."""
    from tfbuild.engine import Engine, connection
    from tfbuild.publish import pushing, signing
    from tfbuild.util.progress import Progress

    signs = bool(sign or sign_options)
    modes = [name for name, given in {"--access": access, "--indexes": indexes, "--yank": yank}.items() if given]
    rest = {"--force": force, "--sign": signs, "--dry-run": dry_run}
    if modes and (more := [*modes[1:], *(name for name, given in rest.items() if given)]):
        raise UsageError(f"{modes[0]} pushes no image", hint=f"leave out {' and '.join(more)}")
    destination = registry_of(registry, ca_cert, image)
    if access:
        show_rehearsed(*pushing.access(destination, image), json=json)
    elif indexes:
        show_pushed(pushing.finish(destination, image, say_note), json=json)
    elif yank:
        ref = pushing.yank(destination, image, yank, say_note)
        out({"image": ref, "reason": yank}) if json else print(ref)
    else:
        signer = signing.signer(sign_options, destination.ca) if signs else None
        connected = Engine.connect(connection.choose(engine))
        if dry_run:
            ready = pushing.prepare(connected, image, destination, REPORTS, force=force)
            destination.refuse_unless_writable()
            show_rehearsed(ready.ref, ready.there.digest if ready.there else "", json=json, uploads=ready.whole is None)
            return
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
        "python": replace(PLAN["python"], help="Python of the image (default: the newest)"),
        "signed": ("", "require a signature that cosign accepts with these options: '--key cosign.pub'", "OPTIONS"),
        "dry-run": (False, "only choose, without downloading"),
    },
    JSON,
    examples=(
        "invoke pull --registry ghcr.io/us/tfbuild",
        "invoke pull --release 2.21 --python 3.12     # with TFBUILD_REGISTRY set",
        "invoke pull --dry-run               # only choose",
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
    cpuinfo: str,
    signed: str,
    dry_run: bool,
    json: bool,
) -> None:
    """Pull from a registry the best image that this host can run, and say why it is."""
    from tfbuild.engine import Engine, connection
    from tfbuild.publish import pulling, signing
    from tfbuild.util.progress import Progress

    chosen = connection.choose(engine)
    source = registry_of(registry, ca_cert)
    demand = signing.demand_of(signed, source.ca)
    host = running_cpu(cpuinfo, ca_cert, chosen)
    choice = pulling.select(source, host, release=release, target=target, python=python)
    try:
        accepted = pulling.accept(source, choice, demand)
    except (NothingFits, VerificationFailed):
        if json:
            show_pulled(replace(choice, fitting=()))
        raise
    choice = accepted.choice
    reference = f"{source.repository}@{accepted.image.digest}"
    if dry_run or json:
        show_passed_over(choice, notable=json)
    if not json:
        show_choice(choice)
    image = "" if dry_run else pulling.pull(Engine.connect(chosen), source, accepted, Progress())
    if json:
        show_pulled(choice, reference=reference, image=image, signed=demand is not None)
    else:
        print(image or reference)
        if image:
            say(f"docker run --rm -it {image} python")


def running_cpu(cpuinfo: str, ca_cert: str, chosen: str) -> Cpu:
    """Return the CPU that will run the image: that of --cpuinfo, else that of the engine's machine."""
    from tfbuild.engine import connection

    if not cpuinfo and connection.elsewhere(chosen):
        from tfbuild.pipeline.maker import Maker
        from tfbuild.pipeline.run import Run

        return Maker(run=Run(engine=chosen, ca=certificates(ca_cert))).cpu()
    return detect_cpu(Path(cpuinfo) if cpuinfo else None)
