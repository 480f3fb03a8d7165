"""The verbs between an engine and a registry, and those of an index of wheels for pip, uv and `tfbuild install`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tfbuild.cli.options import JSON, ON_ENGINE, PLAN, REGISTRY, certificates, registry_of
from tfbuild.cli.output import result, say, say_note, show_choice, show_passed_over, show_pulled, show_pushed
from tfbuild.cli.verbs import variable, verb
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import NothingFits, UsageError, VerificationFailed
from tfbuild.facts import targets
from tfbuild.util.files import REPORTS
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import counted
from tfbuild.util.terminal import printable


@verb(
    ON_ENGINE,
    REGISTRY,
    {
        "force": (False, "move the fixed tag even if it names another image in the registry"),
        "sign": (False, "sign the image with cosign, which must be installed, with your identity or the CI's"),
        "sign-options": ("", "sign the image with these OPTIONS of `cosign sign`, such as '--key cosign.key'"),
        "access": (False, "only ask the registry whether it accepts a push; IMAGE need not exist yet"),
        "indexes": (False, "push no image; recompute the indexes of an IMAGE that is in the registry"),
        "yank": ("", "push no image; take IMAGE out of the registry's indexes, for this reason", "REASON"),
    },
    JSON,
    examples=(
        "invoke push tfbuild:2.21.0-mkl-py3.11-f16c --registry ghcr.io/us/tfbuild",
        "invoke push 2.21.0-mkl-py3.11-f16c --access    # before a build",
        "invoke push 2.21.0-mkl-py3.11-f16c --yank 'crashes in MatMul, issue 123'",
    ),
)
def push(image: str, *, engine: str, registry: str, ca_cert: str, yank: str, json: bool, **options: Any) -> None:
    """Publish a verified IMAGE with its SBOM and provenance, and add it to its release's indexes."""
    from tfbuild.engine import Engine
    from tfbuild.publish import pushing, signing

    force, access, indexes, sign_options = (options[name] for name in ("force", "access", "indexes", "sign_options"))
    signs = options["sign"] or sign_options
    given = {"access": access, "indexes": indexes, "yank": yank, "force": force, "sign": signs, "engine": engine}
    used = [f"--{name}" for name, value in given.items() if value]
    if (access or indexes or yank) and used[1:]:
        raise UsageError(f"{used[0]} pushes no image", hint=f"leave out {' and '.join(used[1:])}")
    destination = registry_of(registry, ca_cert, image)
    if access:
        ref, digest = pushing.access(destination, image)
        now = f"the tag now names {digest}" if digest else "the tag does not exist yet"
        result({"image": ref, "there": digest or None}, ref, f"can be pushed; {now}", json=json)
    elif indexes:
        show_pushed(pushing.finish(destination, image, say_note), json=json)
    elif yank:
        ref = pushing.yank(destination, image, yank, say_note)
        result({"image": ref, "reason": yank}, ref, json=json)
    else:
        signer = signing.signer(sign_options, destination.ca) if signs else None
        connected = Engine.connect(engine)
        with connected.watched("the push"):
            pushed = pushing.push(connected, image, destination, REPORTS, force=force, progress=Progress(), sign=signer)
        show_pushed(pushed, json=json)


@verb(
    ON_ENGINE,
    REGISTRY,
    {name: PLAN[name] for name in ("target", "cpuinfo")},
    {
        "release": replace(
            PLAN["release"], help="TensorFlow release, such as 2.21 (default: the newest one published for any host)"
        ),
        "python": replace(PLAN["python"], help="Python of the image (default: the newest)"),
        "signed": ("", "require a signature that cosign accepts with OPTIONS, such as '--key cosign.pub'", "OPTIONS"),
        "dry-run": (False, "only choose, without downloading"),
    },
    JSON,
    examples=(
        "invoke pull --registry ghcr.io/us/tfbuild",
        "invoke pull --release 2.21 --dry-run   # with TFBUILD_REGISTRY set",
    ),
)
def pull(
    *, engine: str, registry: str, ca_cert: str, cpuinfo: str, signed: str, dry_run: bool, json: bool, **wanted: str
) -> None:
    """Pull a registry's best image for this host, and say why it was chosen."""
    from tfbuild.engine import Engine
    from tfbuild.publish import pulling, signing

    source = registry_of(registry, ca_cert)
    demand = signing.demand_of(signed, source.ca)
    host = running_cpu(cpuinfo, ca_cert, engine)
    choice = pulling.choose_image(source, host, **wanted)
    try:
        best, manifest, choice = pulling.accept(source, choice, demand)
    except (NothingFits, VerificationFailed):
        if json:
            show_pulled(replace(choice, fitting=()))
        raise
    reference = f"{source.repository}@{best.digest}"
    if dry_run or json:
        show_passed_over(choice, notable=json)
    if not json:
        show_choice(choice)
    image = "" if dry_run else pulling.pull(Engine.connect(engine), source, best, manifest, Progress())
    if json:
        show_pulled(choice, reference=reference, image=image, signed=demand is not None)
    else:
        print(image or reference)
        if image:
            there = f" --{'host' if '://' in engine else 'context'} {engine}" if engine else ""
            say(f"docker{there} run --rm -it {image} python")


def running_cpu(cpuinfo: str, ca_cert: str, engine: str) -> Cpu:
    """Return the CPU that will run the image: that of --cpuinfo, else that of the engine's machine."""
    from tfbuild.engine import connection

    if not cpuinfo and connection.elsewhere(engine):
        from tfbuild.pipeline.maker import Maker
        from tfbuild.pipeline.run import Run

        return Maker(run=Run(engine=engine, ca=certificates(ca_cert))).cpu()
    return detect_cpu(Path(cpuinfo) if cpuinfo else None)


@verb(
    {
        "wheels": ("", "folder with the wheels to add, as `invoke wheel` writes it (default: dist)", "DIR"),
        "url": ("", "the address at which FOLDER will be served, for printed addresses and its page", "URL"),
        "name": ("", "rename the added wheels, for example to tensorflow, for packages that require that name"),
        "local-version": (False, "end versions with the instruction set: 2.14.1+tfbuild.x86.64.v3"),
        "yank": ([], "add no wheels; yank these or, with an empty REASON, offer them again", "SET/WHEEL=REASON"),
        "variants": (False, "experimental: also make an index where uv with wheel variants finds its CPU's wheel"),
        "sign": (False, "sign choose.json with cosign, with your identity or the CI's"),
        "sign-options": ("", "sign choose.json with these OPTIONS of `cosign sign-blob`, such as '--key cosign.key'"),
    },
    examples=(
        "invoke index public --url https://wheels.example.com --local-version",
        "invoke index public --yank '*/tensorflow_cpu-2.21.0-*=crashes in MatMul'",
    ),
)
def index(
    folder: str, *, wheels: str, url: str, yank: list[str], sign: bool, sign_options: str, **options: Any
) -> None:
    """Add wheels to the static indexes in FOLDER, one for each instruction set."""
    from tfbuild.publish import signing, wheel_index, wheel_rows

    if unclear := next((text for text in yank if "=" not in text), None):
        hint = f"--yank '{unclear}=REASON'; '{unclear}=' offers them again"
        raise UsageError(f"--yank {unclear} has no reason", hint=hint)
    yanks = {pattern: printable(reason.strip()) for pattern, _, reason in (text.partition("=") for text in yank)}
    name, local, variants = options["name"], options["local_version"], options["variants"]
    # Without wheels, an index that is there is made anew from its pool.
    again = not wheels and not any(Path("dist").glob("*.whl")) and Path(folder, wheel_rows.CHOICES_FILE).is_file()
    adding = {"--wheels": wheels, "--name": name, "--local-version": local}
    if (yanks or again) and (unused := next((option for option, value in adding.items() if value), None)):
        why = "--yank adds none" if yanks else "there are none in dist"
        raise UsageError(f"{unused} is for added wheels, and {why}", hint=f"leave out {unused}")
    files = [] if yanks or again else wheel_index.of_folder(Path(wheels or "dist"))
    signer = signing.file_signer(sign_options) if sign or sign_options else None
    more = {"project": name, "local": local, "url": url, "sign": signer, "yanks": yanks, "variants": variants}
    rows = wheel_index.index(Path(folder), files, say_note, **more)
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
        "signed": ("", "require a signature that cosign accepts with OPTIONS, such as '--key cosign.pub'", "OPTIONS"),
        "dry-run": (False, "only choose, without downloading"),
    },
    examples=(
        "invoke install --index https://wheels.example.com",
        "invoke install --release 2.14 --dry-run      # with TFBUILD_INDEX set",
    ),
)
def install(*, index: str, python: str, cpuinfo: str, ca_cert: str, signed: str, dry_run: bool, **options: Any) -> None:
    """Install an index's best wheel for this CPU and this environment, and say why it was chosen."""
    from tfbuild.publish import installing

    address = index or variable("TFBUILD_INDEX")
    if not address:
        raise UsageError("no index is named", hint="--index URL, or TFBUILD_INDEX")
    if target := options["target"]:
        targets.get(target)
    source = installing.WheelSource(address, certificates(ca_cert))
    host = detect_cpu(Path(cpuinfo) if cpuinfo else None)
    rows = source.wheels(signed)
    environment = installing.environment(python)
    choice = installing.choose_wheel(rows, environment, host, release=options["release"], target=target)
    if dry_run:
        show_passed_over(choice)
    row = installing.chosen_row(rows, choice, source.name)
    show_choice(choice)
    if not dry_run:
        say(installing.install(source, row, environment, Progress()))
    print(source.address(row.file))
