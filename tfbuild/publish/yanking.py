"""Yank a published image: no index offers it any more, and the attached record says why."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tfbuild.errors import RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Forged, Mangled, Manifest, Missing
from tfbuild.publish import attachments, check, index_updates, indexes
from tfbuild.publish.choose import Published


@dataclass(frozen=True, kw_only=True)
class Yank:
    """`recorded`: whether the reason is attached to the image, of which a part may be missing in the registry."""

    ref: str
    digest: str
    reason: str
    recorded: bool

    def to_json(self) -> dict[str, Any]:
        return {"image": self.ref, "digest": self.digest, "reason": self.reason or None, "recorded": self.recorded}


def yank(
    registry: Registry,
    name: str,
    reason: str,
    note: indexes.Note = indexes.quietly,
    sign: referrers.Sign | None = None,
) -> Yank:
    """Take an image out of its indexes, for a reason; without a reason, offer a yanked one again.

    Its fixed tag stays. Raises UnknownImage if neither a fixed tag nor an index names it.
    """
    identifier = check.tag_of(registry, name)
    if identifier.startswith("sha256:"):
        raise UsageError(f"{name!r} is a digest", hint="name the image by its identifier, from `invoke images`")
    image, manifest = _find(registry, identifier)
    if manifest is not None:
        _record(registry, identifier, manifest, reason)
    index_updates.update(registry, image, note, sign)
    return Yank(
        ref=f"{registry.repository}:{identifier}", digest=image.digest, reason=reason, recorded=manifest is not None
    )


def _find(registry: Registry, identifier: str) -> tuple[Published, Manifest | None]:
    """Return the image under a fixed tag and its manifest.

    If the registry lacks a part of it, or nobody can read it, the image is as an index describes it, without manifest.
    """
    try:
        manifest = registry.manifest(identifier)
        image = index_updates.read_image(registry, manifest)
    except (Missing, Forged):
        manifest = image = None
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        indexed = index_updates.indexed_images(registry, identifier)
        image = next((image for image in indexed if image.id == identifier), None)
    if image is None or image.id != identifier:
        raise UnknownImage(f"{registry.repository} has no image {identifier}", hint="invoke images --registry")
    return image, manifest


def _record(registry: Registry, identifier: str, manifest: Manifest, reason: str) -> None:
    """Attach a record with a date after those of all others: the last one counts, and theirs may be of the future.

    Raises RegistryRefused if another one overrides it; nothing is attached where that is known before.
    """
    now = datetime.now(UTC)
    try:
        dates = (date for date, _ in attachments.yanks(registry, manifest))
        now = max([now, *(date + timedelta(microseconds=1) for date in dates)])
    except (VerificationFailed, Mangled, OverflowError):
        _refuse_overridden(registry, identifier, manifest, reason, "nothing was changed")
    created = now.isoformat()
    content = json.dumps({"digest": manifest.digest, "reason": reason, "created": created}, indent=2).encode()
    record = referrers.Attachment(
        media_type=attachments.YANK, title="withdrawal.json", created=created, content=content
    )
    referrers.attach(registry, record, manifest)
    # Whoever may push can attach one at the same time.
    _refuse_overridden(registry, identifier, manifest, reason, "this one is attached too, without effect")


def _refuse_overridden(registry: Registry, identifier: str, manifest: Manifest, reason: str, left: str) -> None:
    """Raise RegistryRefused unless the record that counts offers the image, or with a `reason` yanks it."""
    now = attachments.yank_reason(registry, manifest)
    if bool(now) != bool(reason):
        raise RegistryRefused(
            f"{identifier} is still {f'yanked: {now}' if now else 'offered'}; another record of a yank is attached to "
            f"it, which overrides this one ({left})",
            hint=f"delete the records attached to {manifest.digest} in the registry, and repeat this command",
        )
