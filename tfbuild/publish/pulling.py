"""Choose the published image that fits a host, and pull it."""

from tfbuild.cpu import Cpu
from tfbuild.engine import Engine, transfer
from tfbuild.errors import NothingFits, RegistryRefused
from tfbuild.oci import manifests
from tfbuild.oci.client import Registry
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Choice, Published
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
) -> Choice:
    """The image that this host should run, by the registry's index; no image is downloaded. Raises NothingFits.

    It is of the newest release (that begins with `release` and is published with `python`), whatever the host. With
    `any_release`, it is the best image of all of them.
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
    return choose.choose(published, platform=MACHINES[host.arch], features=features, any_release=any_release)


def pull(engine: Engine, registry: Registry, choice: Choice, progress: Progress) -> str:
    """Download the chosen image, and return its name on this engine.

    Raises NothingFits if nothing was chosen, RegistryRefused if the image is not the one that the index describes.
    """
    best = choice.best
    if best is None:
        raise nothing_fits(registry, choice)
    manifest = registry.manifest(best.digest)
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        raise RegistryRefused(f"{registry.repository} lost {best.id} ({best.digest})", hint="push it again")
    _refuse_other(best, indexes.of_config(registry.config(manifest), best.digest))
    reference = f"{registry.repository}@{best.digest}"
    transfer.again(lambda: engine.pull(reference, progress), progress)
    if engine.image(reference).id not in manifest.ids:
        raise RegistryRefused(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{best.id}"
    engine.tag(reference, name)
    return name


def _refuse_other(indexed: Published, actual: Published | None) -> None:
    """Raise RegistryRefused if an image's own labels differ from those in its index."""
    if actual != indexed:
        raise RegistryRefused(
            f"{indexed.id} has other labels than its index says: one of them was changed",
            hint="tell whoever publishes it; another --release may be intact",
        )


def nothing_fits(registry: Registry, choice: Choice) -> NothingFits:
    nearest = choice.nearest
    lacking = f"; the nearest is {nearest.id}, for which this CPU lacks {' '.join(choice.missing)}" if nearest else ""
    if choice.older:
        return NothingFits(
            f"no image of the newest release in {registry.repository} runs on this host{lacking}",
            hint=f"--any-release chooses {choice.older.id}, of an older release",
        )
    return NothingFits(
        f"no matching image in {registry.repository} runs on this host{lacking}",
        hint="build one here: invoke build --cpu host; or leave out --release and --python, which exclude images",
    )
