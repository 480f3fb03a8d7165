"""Take an image out of its indexes: an artifact under the tag ID.yanked says why, and no index names ID any more.

To offer it again, that tag is deleted in the registry, and the indexes are computed once more (`push ID --indexes`).
"""

import json

from tfbuild.context import labels
from tfbuild.errors import Yanked
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.util.terminal import printable

YANKED = "application/vnd.tfbuild.yanked"
REASON = f"{labels.PREFIX}yanked"
MOST_REASON = 200


def tag(identifier: str) -> str:
    """Return the tag that takes an image out of the indexes."""
    return f"{identifier}.yanked"


def record(registry: Registry, identifier: str, reason: str) -> None:
    """Write why an image is yanked."""
    registry.upload(referrers.EMPTY)
    layer = {
        "mediaType": referrers.EMPTY_TYPE,
        "digest": manifests.digest_of(referrers.EMPTY),
        "size": len(referrers.EMPTY),
    }
    content = json.dumps(referrers.artifact(YANKED, [layer], {REASON: reason}), indent=2).encode()
    registry.put(tag(identifier), content, manifests.IMAGES[0])


def reason(registry: Registry, identifier: str) -> str:
    """Return why an image was yanked; "" if it was not."""
    manifest = registry.manifest(tag(identifier))
    if manifest is None:
        return ""
    annotations = manifest.json().get("annotations")
    text = annotations.get(REASON) if isinstance(annotations, dict) else ""
    return printable(str(text or "without a reason"), MOST_REASON)


def refuse_yanked(registry: Registry, identifier: str) -> None:
    """Raise Yanked if an image was yanked."""
    if why := reason(registry, identifier):
        raise Yanked(
            f"{identifier} was yanked: {why}",
            hint=f"to offer it again, delete the tag {tag(identifier)} in the registry, and push it with --indexes",
        )
