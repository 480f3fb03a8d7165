"""Whether a published image should be built again though its context is the same: its base was updated, or it is old.

Nothing is compiled for that: `invoke build --reuse IMAGE` takes TensorFlow from the published image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tfbuild.context.labels import read_labels
from tfbuild.errors import RegistryRefused, Stale, UsageError
from tfbuild.oci.client import Registry
from tfbuild.oci.references import parse_image
from tfbuild.pipeline.base_image import REPOSITORY as MADE_HERE
from tfbuild.publish import check, choose
from tfbuild.publish.check import CheckedImage


@dataclass(frozen=True, kw_only=True)
class BaseNow:
    """An image's base; `now`: the digest that its tag names today, "" if that is unknown, for the reason `note`."""

    name: str
    digest: str
    now: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """Whether an image should be rebuilt. `base`: None if it was not compared; `options`: of the build.

    `reasons`: why, by "base" and "age"; none for an image that can stay as it is.
    """

    base: BaseNow | None
    reasons: Mapping[str, str]
    options: str

    def to_json(self) -> dict[str, object]:
        base = self.base
        return {
            "base": {"name": base.name, "digest": base.digest, "now": base.now or None} if base else None,
            "rebuild": [{"reason": kind, "text": text} for kind, text in self.reasons.items()],
            "rebuild_options": self.options if self.reasons else None,
        }


def judge(image: CheckedImage, *, compare_base: bool, max_age: timedelta | None, ca: Path | None = None) -> Freshness:
    """Compare the digest of an image's base with what its tag names now, and the image's age with `max_age`."""
    base = base_now(image, ca) if compare_base else None
    reasons = {}
    if base is not None and base.now and base.now != base.digest:
        reasons["base"] = f"its base {base.name} was updated: {base.digest} is now {base.now}"
    if max_age is not None and (too_old := _too_old(image, max_age)):
        reasons["age"] = too_old
    return Freshness(base=base, reasons=reasons, options=rebuild_options(image))


def base_now(image: CheckedImage, ca: Path | None = None) -> BaseNow:
    """Ask the base's registry, without downloading it, which digest its tag names now; never raises."""
    labels = read_labels(image.labels)
    name, digest = labels.base_name, labels.base_digest
    if not name or "@" in name:
        return BaseNow(name=name, digest=digest, note="it names no tag")
    if name.partition(":")[0] == MADE_HERE:
        return BaseNow(name=name, digest=digest, note="it was made from Debian's packages; --max-age limits its age")
    try:
        repository, tag = parse_image(name)
        now = Registry(repository, ca=ca).digest(tag)
    except (RegistryRefused, UsageError) as error:
        return BaseNow(name=name, digest=digest, note=error.reason)
    return BaseNow(name=name, digest=digest, now=now, note="" if now else f"{repository} has no tag {tag}")


def _too_old(image: CheckedImage, max_age: timedelta) -> str:
    """Return why the image is too old, or ""."""
    created = choose.moment(image.published.created)
    if created is None:
        return "nothing says when it was built"
    age = datetime.now(UTC) - created
    if age < -check.CLOCKS_DIFFER:
        return f"it claims to have been built in the future, on {created:%Y-%m-%d}"
    return f"it was built {age.days} days ago, on {created:%Y-%m-%d}" if age > max_age else ""


def rebuild_options(image: CheckedImage) -> str:
    """Return the options of `invoke build` that rebuild an image on the current base and packages, without compiling.

    An official wheel is installed anew, with the newest versions of what it requires.
    """
    reuse = "" if read_labels(image.labels).get("wheel") == "official" else f" --reuse {image.reference}"
    return f"--no-cache{reuse}"


def refuse_stale(image: CheckedImage, freshness: Freshness) -> None:
    """Raise Stale if the image should be rebuilt."""
    if freshness.reasons:
        raise Stale(
            f"{image.id} should be rebuilt: {'; '.join(freshness.reasons.values())}",
            hint=f"build it again with {freshness.options}, and push it with --force",
        )
