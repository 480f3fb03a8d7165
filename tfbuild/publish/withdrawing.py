"""Withdraw a published image: no index offers it any more, and its attached withdrawal says why."""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tfbuild.errors import RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Forged, Lost, Mangled, Manifest
from tfbuild.publish import check, index_state, indexes, withdrawals
from tfbuild.publish.choose import Published


@dataclass(frozen=True, kw_only=True)
class Withdrawal:
    """`recorded`: whether the reason is attached to the image, of which the registry may have lost a part."""

    ref: str
    digest: str
    reason: str
    recorded: bool

    def to_json(self) -> dict[str, Any]:
        return {"image": self.ref, "digest": self.digest, "reason": self.reason or None, "recorded": self.recorded}


def withdraw(
    registry: Registry,
    name: str,
    reason: str,
    note: indexes.Note = indexes.quietly,
    sign: referrers.Sign | None = None,
) -> Withdrawal:
    """Take an image out of its indexes, for a reason; without a reason, offer a withdrawn one again.

    Its fixed tag stays. Raises UnknownImage if neither a fixed tag nor an index names it.
    """
    identifier = check.tag_of(registry, name)
    if identifier.startswith("sha256:"):
        raise UsageError(f"{name!r} is a digest", hint="name the image by its identifier, from `invoke images`")
    manifest = _sound(registry, identifier)
    image = _published(registry, identifier, manifest)
    if manifest is not None:
        _record(registry, manifest, reason)
        _refuse_without_effect(registry, manifest, identifier, reason)
    indexes.update(registry, image, note, sign)
    return Withdrawal(
        ref=f"{registry.repository}:{identifier}", digest=image.digest, reason=reason, recorded=manifest is not None
    )


def _sound(registry: Registry, identifier: str) -> Manifest | None:
    """What a fixed tag names; None if the registry lost it or a part of it, or nobody can read it."""
    try:
        manifest = registry.manifest(identifier)
        indexes.read_image(registry, manifest)
    except (Lost, Forged):
        return None
    return manifest


def _published(registry: Registry, identifier: str, manifest: Manifest | None) -> Published:
    """The image under a fixed tag; if the registry lost it, the one that an index describes."""
    if manifest is not None and manifest.media_type in manifests.IMAGES:
        image = indexes.of_config(registry.config(manifest), manifest.digest)
    else:
        image = next(
            (other for other in index_state.of_its_release(registry, identifier) if other.id == identifier), None
        )
    if image is None or image.id != identifier:
        raise UnknownImage(f"{registry.repository} has no image {identifier}", hint="invoke images --registry")
    return image


def _record(registry: Registry, manifest: Manifest, reason: str) -> None:
    created = _later(registry, manifest).isoformat()
    content = json.dumps({"digest": manifest.digest, "reason": reason, "created": created}, indent=2).encode()
    withdrawal = referrers.Attachment(
        media_type=withdrawals.WITHDRAWAL, title="withdrawal.json", created=created, content=content
    )
    referrers.attach(registry, withdrawal, manifest)


def _later(registry: Registry, manifest: Manifest) -> datetime:
    """Return the time now or, if an attached withdrawal claims to be of the future, one after that.

    The last withdrawal counts, and whoever may push can attach one with any date.
    """
    now = datetime.now(UTC)
    with suppress(VerificationFailed, Mangled, OverflowError):
        dates = (date for date, _ in withdrawals.withdrawals(registry, manifest))
        return max([now, *(date + timedelta(microseconds=1) for date in dates)])
    return now


def _refuse_without_effect(registry: Registry, manifest: Manifest, identifier: str, reason: str) -> None:
    """Raise RegistryRefused if the withdrawal that was just attached does not count, because of another one."""
    standing_reason = withdrawals.withdrawal(registry, manifest)
    if bool(standing_reason) != bool(reason):
        raise RegistryRefused(
            f"{identifier} is still {f'withdrawn: {standing_reason}' if standing_reason else 'offered'}; "
            "another withdrawal is attached to it, which overrides this one",
            hint=f"delete the withdrawals attached to {manifest.digest} in the registry, and repeat this command",
        )
