"""Push and pull: from a verified image to a registry, and from a registry to the host that it fits."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tfbuild.context import labels
from tfbuild.context.labels import REPOSITORY
from tfbuild.cpu import Cpu
from tfbuild.engine import Engine, transfer
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import client
from tfbuild.oci.client import Manifest, Registry
from tfbuild.plan import MACHINES
from tfbuild.publish import attachments, choose, described, indexes, signing
from tfbuild.publish.attachments import AttachedPapers
from tfbuild.publish.choose import Choice, Published
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """`ref`: the fixed tag; `moved`: the indexes that gather it; `uploaded` false: the registry had it already.

    `papers`: what was attached to it; `papers` and `signed` are None where neither was looked at.
    """

    ref: str
    digest: str
    moved: tuple[str, ...]
    uploaded: bool
    papers: AttachedPapers | None
    signed: bool | None


def push(
    engine: Engine,
    image: str,
    registry: Registry,
    reports: Path,
    *,
    force: bool,
    progress: Progress,
    sign: tuple[str, ...] | None = None,
) -> Pushed:
    """Publishes a verified image under its identifier and in the indexes of its release and target.

    It arrives under a tag of its own; cosign signs its digest (with `sign`, cosign's options), SBOM and provenance are
    attached to it, and only then does its fixed tag name it, and the indexes after that.
    Raises VerificationFailed where no report says that this very image passed, RegistryRefused where the fixed tag is
    another image and `force` is not given.
    """
    if sign is not None:
        signing.need()
    found = engine.image(image)
    identifier = labels.identifier(image, found.labels)
    refuse_unverified(image, identifier, found.id, reports)
    ref = f"{registry.repository}:{identifier}"
    there = registry.manifest(identifier)
    if _is(there, found.id):
        arrived = there
    else:
        # Before the upload: it may take an hour.
        _refuse_moving(ref, there, force=force)
        arrived = _arrive(engine, found.id, registry, identifier, progress)
    published = indexes.of_config(registry.config(arrived), arrived.digest)
    if published is None:
        raise RegistryRefused(f"{ref} has labels that cannot be read", hint="build it again with this tfbuild")
    if sign is not None:
        signing.sign(f"{registry.repository}@{arrived.digest}", sign, ca=registry.ca)
    with progress.step("push: SBOM and provenance"):
        papers = attachments.attach(engine, found, registry, arrived, reports)
    with progress.step("push: tags and indexes"):
        if arrived is not there:
            _fix(registry, ref, arrived, force=force)
        registry.discard(client.arriving_tag(found.id))
        moved = indexes.gather(registry, published, progress)
    if registry.digest(identifier) != arrived.digest:
        raise RegistryRefused(f"{ref} became another image meanwhile", hint="did somebody else push it just now?")
    return Pushed(
        ref=ref,
        digest=arrived.digest,
        moved=tuple(moved),
        uploaded=arrived is not there,
        papers=papers,
        signed=sign is not None,
    )


def _is(there: Manifest | None, image: str) -> TypeGuard[Manifest]:
    return there is not None and image in there.ids


def _refuse_moving(ref: str, there: Manifest | None, *, force: bool) -> None:
    """RegistryRefused where the fixed tag `ref` stands for another image, `there`, and is not to be moved."""
    if there is not None and not force:
        raise RegistryRefused(
            f"{ref} is another image there ({there.digest})",
            hint="a fixed tag is not moved; --force moves it all the same",
        )


def _arrive(engine: Engine, image: str, registry: Registry, identifier: str, progress: Progress) -> Manifest:
    """Uploads an image under its arriving tag, which nothing offers or lists, unless it is there."""
    tag = client.arriving_tag(image)
    ref = f"{registry.repository}:{tag}"
    arrived = registry.manifest(tag)
    if _is(arrived, image):
        return arrived
    transfer.again(lambda: _upload(engine, image, ref, progress), progress)
    # Where the same image was pushed twice at once, the other push has its fixed tag name it, and took this one away.
    for name in (tag, identifier):
        arrived = registry.manifest(name)
        if _is(arrived, image):
            return arrived
    raise RegistryRefused(f"{ref} is not the image that was pushed", hint="did somebody else push it just now?")


def _upload(engine: Engine, image: str, ref: str, progress: Progress) -> None:
    engine.tag(image, ref)
    try:
        engine.push(ref, progress)
    finally:
        # Pushes of the same image at once have one name, which the first that ends takes away.
        with suppress(UnknownImage):
            # An image goes with its last name.
            if engine.image(image).tags != (ref,):
                engine.untag(ref)


def _fix(registry: Registry, ref: str, arrived: Manifest, *, force: bool) -> None:
    """Lets the fixed tag `ref` name what arrived.

    The protocol has no "only if nobody else did": between the look and the move there is one request.
    """
    identifier = ref.rpartition(":")[2]
    there = registry.manifest(identifier)
    if there is not None and there.digest == arrived.digest:
        return
    _refuse_moving(ref, there, force=force)
    registry.put(identifier, arrived.content, arrived.media_type)


def rehearse(registry: Registry, asked: str) -> tuple[str, str]:
    """The fixed tag that a push of `asked` would make, and the digest that it stands for now, or "".

    Nothing is asked of the image, which may be yet to come. Raises RegistryRefused where the registry takes no push.
    """
    identifier = described.tag_of(registry, asked)
    if not client.TAG.fullmatch(identifier):
        raise UsageError(f"{asked!r} names no tag", hint="its identifier, as `invoke plan` has it")
    registry.refuse_unless_writable()
    ref = f"{registry.repository}:{identifier}"
    there = registry.manifest(identifier)
    return ref, there.digest if there is not None else ""


def finish(registry: Registry, asked: str, reports: Path, note: indexes.Note = indexes.quietly) -> Pushed:
    """Brings the push of an image to its end that is in the registry with its papers: its indexes alone.

    `note` is told what is damaged there. Raises what described.check does, Unfinished where the image or its papers
    never arrived.
    """
    found = described.check(registry, asked, reports)
    return Pushed(
        ref=f"{registry.repository}:{found.id}",
        digest=found.digest,
        moved=tuple(indexes.gather(registry, found.published, note)),
        uploaded=False,
        papers=None,
        signed=None,
    )


def refuse_unverified(image: str, identifier: str, image_id: str, reports: Path) -> None:
    """VerificationFailed where `reports` has no report that says that this very image passed."""
    report = reporting.stored(reports, identifier)
    if report is None or not report.passed or report.image.id != image_id:
        raise VerificationFailed(
            f"{image} is not verified: {reports / identifier}.json does not say that this image passed",
            hint=f"invoke verify {REPOSITORY}:{identifier}",
        )


def select(
    registry: Registry, host: Cpu, features: frozenset[str], *, release: str, target: str, python: str
) -> Choice:
    """What this host should run, by the registry's index; nothing of an image is downloaded. Raises NothingFits.

    Without a `release` it is the best of all of them.
    """
    tag = f"{release or indexes.LATEST}-{target}"
    index = registry.manifest(tag)
    if index is None:
        tags = registry.tags()
        offered = [name for name in tags if name.count("-") == 1]
        raise NothingFits(
            f"{registry.repository} has no {tag}", hint=f"it has: {', '.join(offered[:12]) or 'nothing of tfbuild yet'}"
        )
    known = choose.matching(indexes.read_index(index), release=release, target=target, python="")
    published = choose.matching(known, release=release, target=target, python=python)
    if known and not published:
        others = sorted({image.python for image in known}, key=lambda text: (len(text), text))
        raise NothingFits(
            f"{registry.repository}:{tag} has no image with Python {python}", hint=f"it has: {', '.join(others)}"
        )
    return choose.choose(published, platform=MACHINES[host.arch], features=features)


def pull(engine: Engine, registry: Registry, choice: Choice, progress: Progress) -> str:
    """Downloads the chosen image; its name on this engine. What arrives must be what the index said.

    Raises NothingFits where nothing was chosen, RegistryRefused where the image is another than it claims to be.
    """
    best = choice.best
    if best is None:
        raise nothing_fits(registry, choice)
    manifest = registry.manifest(best.digest)
    if manifest is None or manifest.media_type not in client.IMAGES:
        raise RegistryRefused(f"{registry.repository} lost {best.id} ({best.digest})", hint="push it again")
    refuse_other(best, indexes.of_config(registry.config(manifest), best.digest))
    reference = f"{registry.repository}@{best.digest}"
    transfer.again(lambda: engine.pull(reference, progress), progress)
    if engine.image(reference).id not in manifest.ids:
        raise RegistryRefused(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{best.id}"
    engine.tag(reference, name)
    return name


def refuse_other(promised: Published, found: Published | None) -> None:
    """RegistryRefused where an image's own labels are not what its index says of it."""
    if found != promised:
        raise RegistryRefused(
            f"{promised.id} has other labels than its index says: one of them was changed",
            hint="tell whoever publishes it; another --release may be sound",
        )


def nothing_fits(registry: Registry, choice: Choice) -> NothingFits:
    near = choice.nearest
    lacking = f"; the nearest is {near.id}, for which this CPU lacks {' '.join(choice.missing)}" if near else ""
    return NothingFits(
        f"nothing of what was asked for in {registry.repository} runs on this host{lacking}",
        hint="build one here: invoke build --cpu host; --release and --python leave images out",
    )
