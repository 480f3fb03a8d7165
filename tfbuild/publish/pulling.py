"""Choose the published image that fits a host, and pull it."""

from collections.abc import Callable, Collection

from tfbuild.context import image_name
from tfbuild.cpu import Cpu
from tfbuild.engine import Engine, transfer
from tfbuild.errors import NothingFits, RegistryRefused, VerificationFailed
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.referrers import Demand
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes
from tfbuild.publish.candidates import Accepted
from tfbuild.publish.choose import Choice, PassedOver, Published
from tfbuild.util.progress import Progress

# Images of a release that are asked for a signature, and letters of an identifier that nobody can read.
MOST_ASKED = 20
MOST_ID = 128


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
    without: Collection[str] = (),
) -> Choice:
    """The image that this host should run, by the registry's index; no image is downloaded. Raises NothingFits.

    It is of the newest release (that begins with `release` and is published with `python`), whatever the host. With
    `any_release`, it is the best image of all of them. Identifiers in `skip` are passed over, and so are the releases
    in `without`.
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
    published = [image for image in published if image.release not in without]
    if all_pythons and not published and not without:
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


def select_signed(registry: Registry, selection: Callable[..., Choice], demand: Demand) -> Choice:
    """Return the choice of the newest release of which any image is signed: anybody who may push can add newer ones.

    `selection` is `select` with all arguments but `without`. The choice names the releases that were passed over. If
    none is signed, it is that of the newest release.
    """
    first = choice = selection()
    without: list[str] = []
    while choice.newest and not any(_is_signed(registry, image, demand) for image in choice.newest[:MOST_ASKED]):
        without.append(choice.newest[0].release)
        choice = selection(without=without)
    if not without:
        return choice
    reason = "no image of this release has a signature that cosign accepts"
    rows = [PassedOver(id=f"TensorFlow {release}", reason=reason, better=True) for release in without]
    return choice.passing(rows) if choice.newest else first


def _is_signed(registry: Registry, image: Published, demand: Demand) -> bool:
    try:
        demand(f"{registry.repository}@{image.digest}")
    except VerificationFailed:
        return False
    return True


def _unreadable(index: Manifest) -> list[PassedOver]:
    """The images that an index describes in a way that this tfbuild cannot read, or somebody made unreadable."""
    rows = [row for row in indexes.index_rows(index) if row.image is None and row.id]
    reason = "its row in the index cannot be read: a newer tfbuild wrote it, or somebody changed it"
    return [PassedOver(id=ascii(row.id)[1:-1][:MOST_ID], reason=reason, better=True) for row in rows]


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
