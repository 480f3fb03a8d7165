"""Choose the published image that a host should run, check it, and pull it.

It is checked before the download, by a few small requests: its manifest and its configuration by their digests, its
labels, its layers' presence, and its signature if that is demanded. An image that fails is passed over with its reason.
"""

from tfbuild.cpu import Cpu, isa
from tfbuild.engine import Engine
from tfbuild.errors import NothingFits, RegistryRefused, VerificationFailed
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import IMAGES, Damaged, Manifest
from tfbuild.plan import MACHINES
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Choice, PassedOver, Published
from tfbuild.publish.signing import Demand
from tfbuild.util.progress import Progress

# Images of one release that are tried, as in pull.sh.
MOST_TRIED = 100


def choose_image(registry: Registry, host: Cpu, *, release: str, target: str, python: str) -> Choice:
    """Return the image that this host should run, from the index of a release ("": the newest). Raises NothingFits."""
    release = release.removeprefix(indexes.LATEST)
    tag = f"{release or indexes.LATEST}-{target}"
    index = registry.manifest(tag)
    if index is None:
        offered = [name for name in registry.tags() if name.count("-") == 1 and not name.startswith("sha256-")]
        raise NothingFits(
            f"{registry.repository} has no {tag}",
            hint=f"it has: {', '.join(offered[-12:]) or 'no images of tfbuild yet'}",
        )
    all_pythons = choose.matching(indexes.read_index(index), release=release, target=target, python="")
    published = [image for image in all_pythons if python in ("", image.python)]
    if not published:
        others = sorted({image.python for image in all_pythons}, key=lambda text: (len(text), text))
        lacks = f"{registry.repository}:{tag} has no image{f' with Python {python}' if others else ''}"
        raise NothingFits(lacks, hint=f"it has: {', '.join(others)}" if others else "name another --release, or none")
    return choose.choose(
        published, platform=MACHINES[host.arch], features=frozenset(isa.of_cpu(host, exact=True).features)
    )


def accept(registry: Registry, choice: Choice, demand: Demand | None = None) -> tuple[Published, Manifest, Choice]:
    """Return the best image that fits and passes its checks, its manifest, and the choice among it and the worse ones.

    Raises NothingFits if nothing fits. If none passes: VerificationFailed where a digest, labels or a signature are
    wrong, else RegistryRefused. That is raised at once where the registry does not answer.
    """
    if choice.best is None:
        why = "; ".join(choose.passed_over_lines(choice.passed_over))
        raise NothingFits(
            f"no image of this release in {registry.repository} runs on this host{f': {why}' if why else ''}",
            hint="build one here: invoke build --cpu host",
        )
    refused: list[PassedOver] = []
    wrong: VerificationFailed | None = None
    for position, image in enumerate(choice.fitting[:MOST_TRIED]):
        try:
            manifest = _checked(registry, image, demand)
        except (Damaged, VerificationFailed) as error:
            refused.append(PassedOver(id=image.id, reason=error.reason, notable=True))
            wrong = error if isinstance(error, VerificationFailed) else wrong
        else:
            return image, manifest, choice.among(choice.fitting[position:], refused)
    why = f"{registry.repository} has no image that can be pulled: {'; '.join(choose.passed_over_lines(refused))}"
    if wrong is not None:
        raise VerificationFailed(why, hint=wrong.hint or "do not use them, and tell whoever publishes them")
    raise RegistryRefused(why, hint="push one of them again; or try again later, or from another network")


def _checked(registry: Registry, image: Published, demand: Demand | None) -> Manifest:
    """Return the manifest of an image that is what its index says. Raises Damaged or VerificationFailed."""
    manifest = registry.manifest(image.digest)
    if manifest is None:
        raise Damaged("it is missing in the registry")
    if manifest.media_type not in IMAGES:
        raise Damaged(f"it is not an image but {manifest.media_type or 'of an unknown type'}")
    labelled = indexes.of_config(registry.config(manifest), image.digest)
    if labelled is None or labelled.labels != image.labels:
        raise VerificationFailed("its labels are not what its index says")
    if demand is not None:
        demand(f"{registry.repository}@{image.digest}")
    if layer := registry.missing_layer(manifest):
        raise Damaged(f"its layer {layer} is missing in the registry")
    return manifest


def pull(engine: Engine, registry: Registry, image: Published, manifest: Manifest, progress: Progress) -> str:
    """Download an image, and return its name on this engine. Raises VerificationFailed if another one arrives."""
    reference = f"{registry.repository}@{image.digest}"
    engine.pull(reference, progress)
    if engine.image(reference).id not in manifest.ids:
        raise VerificationFailed(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{image.id}"
    engine.tag(reference, name)
    return name
