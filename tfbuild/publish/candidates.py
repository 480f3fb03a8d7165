"""The chosen image is checked before it is pulled: by a few small requests, without its layers.

An image that the registry lost is passed over, and so is one without a signature that the user requires. An image that
is not the one that its index and its provenance describe was changed by somebody: it is refused, and the next one that
fits is named as the second choice, for the user to decide.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tfbuild.context.labels import of_configuration
from tfbuild.errors import NothingFits, RegistryRefused, TfbuildError, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Damaged, Manifest
from tfbuild.publish import described, indexes, provenance
from tfbuild.publish.choose import Choice, PassedOver, Published

# Raises VerificationFailed if the image with this reference by digest is not signed.
Demand = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An image that is the one described. `passed_over`: the better ones that are lost or not signed."""

    image: Published
    manifest: Manifest
    passed_over: tuple[PassedOver, ...]


class Altered(VerificationFailed):
    """`image` is not the one that its index and its provenance describe; `second` is the next that fits and is."""

    def __init__(self, error: TfbuildError, image: Published, second: Published | None) -> None:
        offer = (
            f"second choice: {second.id}, by the same command with --skip {image.id}"
            if second
            else "no other image of this release fits and is intact"
        )
        super().__init__(
            f"{image.id} is refused: {error.reason}", hint=f"tell whoever publishes it that it was changed; {offer}"
        )
        self.image, self.second = image, second


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


def accept(
    registry: Registry, choice: Choice, note: indexes.Note = indexes.quietly, demand: Demand | None = None
) -> Accepted:
    """Return the best image that fits and is there, signed (with `demand`) and the one described.

    Raises NothingFits if nothing was chosen, Altered if the best one was changed, VerificationFailed if none is signed,
    RegistryRefused if all are lost.
    """
    if choice.best is None:
        raise nothing_fits(registry, choice)
    passed_over: list[PassedOver] = []
    unsigned: VerificationFailed | None = None
    for position, image in enumerate(choice.fitting):
        manifest = _manifest(registry, image)
        if manifest is None:
            reason = f"the registry lost it; heal it by `invoke push` or `invoke withdraw {image.id}`"
            note(f"not {image.id}: {reason}")
            passed_over.append(PassedOver(id=image.id, reason=reason, better=True))
            continue
        if demand is not None:
            try:
                demand(f"{registry.repository}@{image.digest}")
            except VerificationFailed as error:
                unsigned = unsigned or error
                note(f"not {image.id}: no signature that cosign accepts")
                passed_over.append(PassedOver(id=image.id, reason="no signature that cosign accepts", better=True))
                continue
        try:
            check(registry, image, manifest)
        except VerificationFailed as error:
            rest = choice.among(choice.fitting[position + 1 :])
            raise Altered(error, image, _second(registry, rest, demand)) from error
        return Accepted(image=image, manifest=manifest, passed_over=tuple(passed_over))
    raise unsigned or RegistryRefused(
        f"{registry.repository} lost {', '.join(image.id for image in passed_over)}", hint="push them again"
    )


def _second(registry: Registry, choice: Choice, demand: Demand | None) -> Published | None:
    try:
        return accept(registry, choice, demand=demand).image
    except Altered as error:
        return error.second
    except (NothingFits, VerificationFailed, RegistryRefused):
        return None


def _manifest(registry: Registry, image: Published) -> Manifest | None:
    """The manifest of an image; None if the registry lost it."""
    manifest = registry.manifest(image.digest)
    return manifest if manifest is not None and manifest.media_type in manifests.IMAGES else None


def check(registry: Registry, indexed: Published, manifest: Manifest) -> None:
    """Raise VerificationFailed unless an image has the labels that its index names, and papers that are about it.

    Its provenance names its manifest, its configuration, its labels and its report, and the SBOM that is attached.
    """
    try:
        config = registry.config(manifest)
    except Damaged as error:
        raise VerificationFailed(error.reason) from error
    if indexes.of_config(config, manifest.digest) != indexed:
        raise VerificationFailed(f"it has other labels than its index says ({manifest.digest})")
    statement = described.statement(registry, manifest, of_configuration(config))
    if not statement.resource(provenance.report_name(indexed.id)).sha256:
        raise VerificationFailed("its provenance names no report")
    bill = statement.resource(provenance.sbom_name(indexed.id)).sha256
    if not bill or bill not in referrers.contents(registry, manifest, referrers.SBOM):
        raise VerificationFailed(f"the SBOM that its provenance names is not attached to it ({bill or 'none'})")
