"""Choose the published image that fits a host, and pull it."""

from collections.abc import Collection

from tfbuild.cpu import Cpu
from tfbuild.engine import Engine, image_name, transfer
from tfbuild.errors import NothingFits, RegistryRefused
from tfbuild.oci import references
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes
from tfbuild.publish.candidates import Accepted
from tfbuild.publish.choose import Choice, PassedOver
from tfbuild.util.progress import Progress


def select(
    registry: Registry,
    host: Cpu,
    features: frozenset[str],
    *,
    release: str,
    target: str,
    python: str,
    any_release: bool = False,
    skip: Collection[str] = (),
) -> Choice:
    """The image that this host should run, by the registry's index; no image is downloaded. Raises NothingFits.

    It is of the newest release (that begins with `release` and is published with `python`), whatever the host. With
    `any_release`, it is the best image of all of them. Identifiers in `skip` are passed over.
    """
    tag = f"{release or indexes.ANY}-{target}"
    index = registry.manifest(tag)
    if index is None:
        offered = [name for name in registry.tags() if name.count("-") == 1]
        raise NothingFits(
            f"{registry.repository} has no {tag}",
            hint=f"it has: {', '.join(offered[:12]) or 'no images of tfbuild yet'}",
        )
    all_pythons = choose.matching(indexes.read_index(index), release=release, target=target, python="")
    published = choose.matching(all_pythons, release=release, target=target, python=python)
    if all_pythons and not published:
        others = sorted({image.python for image in all_pythons}, key=lambda text: (len(text), text))
        raise NothingFits(
            f"{registry.repository}:{tag} has no image with Python {python}", hint=f"it has: {', '.join(others)}"
        )
    choice = choose.choose(published, platform=MACHINES[host.arch], features=features, any_release=any_release)
    names = {image_name.parse(name).reference for name in skip}
    left = [image for image in choice.fitting if image.id not in names]
    first = choice.fitting.index(left[0]) if left else len(choice.fitting)
    rows = [
        PassedOver(id=image.id, reason="--skip", better=position < first)
        for position, image in enumerate(choice.fitting)
        if image.id in names
    ]
    return choice.among(left).passing([*rows, *_unreadable(index)])


def _unreadable(index: Manifest) -> list[PassedOver]:
    """The images that an index describes in a way that this tfbuild cannot read, or somebody made unreadable."""
    rows = [row for row in indexes.index_rows(index) if row.image is None and references.TAG.fullmatch(row.id)]
    reason = "its row in the index cannot be read: a newer tfbuild wrote it, or somebody changed it"
    return [PassedOver(id=row.id, reason=reason, better=True) for row in rows]


def pull(engine: Engine, registry: Registry, accepted: Accepted, progress: Progress) -> str:
    """Download an image, and return its name on this engine. Raises RegistryRefused if another one arrives."""
    reference = f"{registry.repository}@{accepted.image.digest}"
    transfer.again(lambda: engine.pull(reference, progress), progress)
    arrived = engine.image(reference)
    own = indexes.of_labels(arrived.labels, accepted.image.created, accepted.image.digest)
    if arrived.id not in accepted.manifest.ids or own != accepted.image:
        raise RegistryRefused(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{accepted.image.id}"
    engine.tag(reference, name)
    return name
