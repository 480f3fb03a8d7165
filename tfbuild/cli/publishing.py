"""The verbs for images that are made: SBOM, registry, and what is on this machine."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.options import ENGINE, JSON, PLAN, REGISTRY, REPORTS, certificates, engine_of, host_cpu, registry_of
from tfbuild.cli.output import out, say
from tfbuild.cli.verbs import verb
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import EngineMissing, Interrupted, TfbuildError, UsageError

if TYPE_CHECKING:
    from tfbuild.engine.selection import EngineChoice
    from tfbuild.publish.inventory import Entry


@verb({"engine": ENGINE["engine"]}, {"output": ("", "write it to this file (default: stdout)")}, JSON)
def sbom(image: str, *, engine: str, output: str, json: bool) -> None:
    """The software bill of materials of IMAGE as CycloneDX 1.6, read out of its files."""
    from tfbuild.publish import attachments
    from tfbuild.publish import sbom as bills

    connected = engine_of(engine)
    content = bills.of_image(connected, connected.image(image), image)
    if output:
        attachments.write(Path(output), content)
    if json and output:
        out({"image": image, "sbom": output, "components": len(bills.named(content))})
    elif output:
        print(output)
    else:
        sys.stdout.write(content.decode())


@verb(
    {"engine": ENGINE["engine"]},
    REGISTRY,
    {
        "force": (False, "move the fixed tag, though it is another image in the registry"),
        "sign": (False, "sign it with cosign, which must be installed, by the identity that you or the CI has"),
        "sign-options": ("", "sign it by these options of `cosign sign`: '--key cosign.key'"),
        "dry-run": (False, "only ask the registry whether it takes a push; IMAGE need not be there yet"),
        "indexes": (False, "push no image: finish the push of one that is there but for its release's indexes"),
    },
    JSON,
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
    indexes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Publish IMAGE, which must be verified, with its SBOM and provenance, and in its release's indexes."""
    from tfbuild import publish
    from tfbuild.engine import Engine, selection
    from tfbuild.publish import signing
    from tfbuild.util.progress import Progress

    chosen = selection.choose(engine)
    place = registry_of(registry, ca_cert)
    words = signing.options(sign_options) if sign or sign_options else None
    if indexes and (force or words is not None):
        raise UsageError("--indexes pushes no image", hint="leave out --force and --sign")
    if dry_run:
        ref, there = publish.rehearse(place, image)
        if json:
            out({"image": ref, "there": there or None})
            return
        print(ref)
        say(f"may be pushed; {f'the tag is {there} now' if there else 'there is no such tag yet'}")
        return
    if indexes:
        done = publish.finish(place, image, REPORTS, say)
    else:
        connected = Engine.connect(chosen=chosen)
        done = publish.push(connected, image, place, REPORTS, force=force, progress=Progress(), sign=words)
    if json:
        out(
            {
                "image": done.ref,
                "digest": done.digest,
                "uploaded": done.uploaded,
                "indexes": list(done.moved),
                "sbom": done.papers.sbom if done.papers else None,
                "provenance": done.papers.provenance if done.papers else None,
                "signed": done.signed,
            }
        )
        return
    print(f"{done.ref}@{done.digest}")
    say(f"{'pushed' if done.uploaded else 'was there already'}; in {', '.join(done.moved)}")


@verb(
    {"engine": ENGINE["engine"]},
    REGISTRY,
    {name: PLAN[name] for name in ("target", "cpuinfo")},
    {
        "release": ("", "2.21.0 or 2.21 (default: any; the largest instruction set decides, then the newest release)"),
        "python": ("", "Python of the image (default: the newest)"),
        "signed": ("", "demand a signature that cosign finds good by these options: '--key cosign.pub'"),
        "dry-run": (False, "choose, and download nothing"),
    },
    JSON,
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
    """Pull the best image of a registry that this host can run, and say why not the others."""
    from tfbuild import publish
    from tfbuild.engine import Engine, selection
    from tfbuild.publish import signing
    from tfbuild.util.progress import Progress

    chosen = selection.choose(engine)
    words = signing.options(signed)
    place = registry_of(registry, ca_cert)
    host = running_cpu(cpuinfo, ca_cert, chosen)
    features = frozenset(isa.of_cpu(host).features)
    choice = publish.select(place, host, features, release=release, target=target, python=python)
    for one in choice.passed_over:
        say(f"not {one.id}: {one.reason}")
    told: dict[str, Any] = {
        "id": None,
        "reference": None,
        "image": None,
        "passed_over": [{"id": one.id, "reason": one.reason} for one in choice.passed_over],
        "nearest": choice.nearest.id if choice.nearest else None,
        "missing": list(choice.missing),
        "signed": None,
    }
    if choice.best is None:
        if json:
            out(told)
        raise publish.nothing_fits(place, choice)
    digest = f"{place.repository}@{choice.best.digest}"
    if words:
        signing.demand(digest, words, ca=place.ca)
    ref = "" if dry_run else publish.pull(Engine.connect(chosen=chosen), place, choice, Progress())
    if json:
        known = {"id": choice.best.id, "reference": digest, "image": ref or None}
        out({**told, **known, "signed": True if words else None})
    else:
        print(ref or digest)


def running_cpu(cpuinfo: str, ca_cert: str, chosen: "EngineChoice") -> Cpu:
    """Return the CPU that what is pulled will run on: the engine's machine's, where the user names none."""
    if not cpuinfo and chosen.elsewhere():
        from tfbuild.pipeline import Maker
        from tfbuild.pipeline.run import Run

        return Maker(run=Run(engine=chosen, ca=certificates(ca_cert))).cpu()
    return detect_cpu(Path(cpuinfo) if cpuinfo else None)


@verb({"engine": ENGINE["engine"]}, REGISTRY, JSON)
def images(*, engine: str, registry: str, ca_cert: str, json: bool) -> None:
    """The images here and in the registry: size, age, instruction set, verified or not, whether this host runs them."""
    from tfbuild.engine import Engine, selection
    from tfbuild.publish import inventory

    chosen = selection.choose(engine)
    named = registry or os.environ.get("TFBUILD_REGISTRY")
    place = registry_of(registry, ca_cert) if named else None
    connected: Engine | None = None
    try:
        connected = Engine.connect(chosen=chosen)
        host = running_cpu("", ca_cert, chosen) if chosen.elsewhere() else host_cpu("")
    except EngineMissing as error:
        if place is None:
            raise
        connected, host = None, host_cpu("")
        say(f"note: {error.reason}: the registry alone is listed, for the CPU of this machine")
    features = frozenset(isa.of_cpu(host).features) if host else frozenset()
    found = inventory.local(connected, REPORTS, host, features) if connected is not None else []
    if place is not None:
        found += inventory.remote(place, host, features, say)
    if json:
        out([entry.to_json() for entry in found])
    else:
        show_images(found)


def show_images(entries: Sequence["Entry"]) -> None:
    """Print one row an image."""
    from rich.console import Console
    from rich.table import Table

    from tfbuild.publish import inventory

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table("image", "for", "size", "age", "verified", "runs here", box=None, pad_edge=False)
    for entry in entries:
        verified = {True: "yes", False: "no", None: "by who pushed it"}[entry.verified]
        if entry.offered is False:
            verified = "not offered"
        runs = "yes" if entry.runs else f"no, lacks {' '.join(entry.lacks)}"
        table.add_row(
            entry.name,
            entry.instruction_set,
            f"{entry.size / 1e6:,.0f} MB",
            inventory.age(entry.created),
            verified,
            runs,
        )
    console.print(table)


@verb(
    {
        "keep": (
            [],
            "keep only identifiers that fit this glob, again for more (default: all but failed and unverified)",
        ),
        "dry-run": (False, "show what would go, and remove nothing"),
        "yes": (False, "do not ask"),
    },
    {"engine": ENGINE["engine"]},
    JSON,
)
def prune(*, engine: str, keep: list[str], dry_run: bool, yes: bool, json: bool) -> None:
    """Remove images of tfbuild's from the engine: failed, unverified and unnamed ones, or all but some. Asks first."""
    from tfbuild.publish import inventory

    connected = engine_of(engine)
    going = inventory.prunable(inventory.local(connected, REPORTS, None, frozenset()), keep)
    for entry in going:
        say(f"{entry.name if entry.name != inventory.UNNAMED else entry.digest}  {inventory.age(entry.created)}")
    if not (dry_run or yes or not going) and not confirmed(f"remove these {len(going)} images?"):
        raise Interrupted("nothing was removed")
    kept = {} if dry_run else inventory.remove(connected, going)
    removed = [] if dry_run else [entry.name for entry in going if entry not in kept]
    if json:
        out({"removed": removed, "going": [entry.name for entry in going]})
    else:
        say(f"would remove {len(going)} images" if dry_run else f"removed {len(removed)} images")
    if kept:
        told = "; ".join(f"{entry.name}: {reason}" for entry, reason in kept.items())
        raise TfbuildError(f"{len(kept)} images stay: {told}", hint="end what uses them, and prune again")


def confirmed(question: str) -> bool:
    """Return the user's answer; raises UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked", hint="--yes, or --dry-run to see what would go")
    say(f"{question} [y/N]")
    return input().strip().lower() in ("y", "yes")
