"""Which published image a host should run. This only decides; it pulls nothing.

The newest release comes first, whatever the host, so that one command gives a whole fleet one TensorFlow. An image
fits if the host has all of its features. Of two sets that fit, the wider vectors decide (facts/vectors.toml), then the
number of features that make a difference to TensorFlow. Of images with equal sets the newer Python
wins, then the default target, then one without an accelerator, then the newer build (which may only reflect the order
in which CI built them).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from packaging.version import Version

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.facts import Facts, targets
from tfbuild.plan import PLATFORMS
from tfbuild.util.quantities import few

# Labels of an image that are repeated in its descriptor in an index.
LABELS = ("id", "release", "target", "python", "platform", "instruction-set", "features")


class Vector(Facts, frozen=True):
    arch: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry, or a wheel. `features`: canonical names; `created`: RFC 3339.

    `digest`, and of an image `media_type` and `size`: of its manifest.
    """

    id: str
    digest: str
    release: str
    target: str
    python: str
    platform: str
    instruction_set: str
    features: frozenset[str]
    created: str
    media_type: str = ""
    size: int = 0

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels without their prefix, as indexes repeat them."""
        own = {name: getattr(self, name.replace("-", "_")) for name in LABELS}
        return own | {"features": " ".join(sorted(self.features))}


# Images named of those with one reason.
MOST_NAMED = 2
# For an image without a creation time.
NO_TIME = datetime(1, 1, 1, tzinfo=UTC)


def parse_time(created: str) -> datetime | None:
    """Parse an RFC 3339 time; without an offset it is UTC. None if it is not one.

    Compared as text, "10:00:00.5Z" would come before "10:00:00Z", and "11:00+02:00" after both.
    """
    try:
        # Engines write nanoseconds, of which Python keeps six digits.
        time = datetime.fromisoformat(created)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """`notable`: only `reason` kept it from being chosen, or it is as good for another target."""

    id: str
    reason: str
    notable: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`fitting`: all images of the newest release that the host could run, the best first."""

    fitting: tuple[Published, ...]
    passed_over: tuple[PassedOver, ...]

    @property
    def best(self) -> Published | None:
        """The image that the host should run; None if nothing fits."""
        return next(iter(self.fitting), None)

    def among(self, fitting: Sequence[Published], refused: Sequence[PassedOver] = ()) -> "Choice":
        """Return the choice among those images that are left; the others were `refused`, each for its reason."""
        compared = {image.id: _inferior(image, fitting[0]) for image in fitting[1:]}
        gone = {*(image.id for image in fitting[:1]), *(row.id for row in refused)}
        rest = (compared.get(row.id, row) for row in self.passed_over if row.id not in gone)
        return replace(self, fitting=tuple(fitting), passed_over=(*refused, *rest))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.best.id if self.best else None,
            "passed_over": [{"id": other.id, "reason": other.reason} for other in self.passed_over],
        }


def choose(
    published: Iterable[Published], *, platform: str, features: frozenset[str], misfits: Mapping[str, str] = {}
) -> Choice:
    """Return the best image of the newest release for a host with `features`, whatever the order of `published`.

    `misfits`: by the identifier, why the host cannot take one, whatever its CPU; "" if it can.
    """
    every = sorted(set(published), key=rank, reverse=True)
    ranked = [image for image in every if not misfits.get(image.id)]
    newest = max((image.release for image in ranked), key=Version, default="")
    current = [image for image in ranked if (image.platform, image.release) == (platform, newest)]
    fitting = tuple(image for image in current if image.features <= features)
    best = fitting[0] if fitting else None
    rest = [_passed_over(image, best, newest, platform, features) for image in ranked if image != best]
    refused = [
        PassedOver(id=name, reason=misfits[name], notable=best is None or Version(release) > Version(newest))
        for name, release in ((image.id, image.release) for image in every if misfits.get(image.id))
    ]
    return Choice(fitting=fitting, passed_over=(*refused, *rest))


def explanation(choice: Choice) -> list[str]:
    """Say in one line what the best image is, and in another why."""
    best = choice.best
    if best is None:
        return []
    notable = passed_over_lines(row for row in choice.passed_over if row.notable)
    return [
        f"{best.id}: TensorFlow {best.release}, Python {best.python}, for {best.instruction_set}, {best.digest}",
        "; ".join(["the newest release, and the largest set of it that this CPU runs", *notable]),
    ]


def passed_over_lines(rows: Iterable[PassedOver]) -> list[str]:
    """Say which images are passed over, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row.reason, []).append(row.id)
    return [f"not {few(ids, MOST_NAMED)}: {reason}" for reason, ids in reasons.items()]


def rank(
    image: Published,
) -> tuple[tuple[bool, ...], int, Version, Version, tuple[bool, bool], datetime, str, str]:
    """Return a sort key for images of one platform: larger is better."""
    created, target = parse_time(image.created) or NO_TIME, _preference(image.target)
    return *speed(image), Version(image.release), Version(image.python), target, created, image.id, image.digest


@cache
def _preference(target: str) -> tuple[bool, bool]:
    known = targets.find_target(target)
    return target == targets.default(), known is None or not known.accelerator


def speed(image: Published) -> tuple[tuple[bool, ...], int]:
    """Return a sort key: larger is faster. A set is never smaller than another that it contains.

    Only the features that make a difference to TensorFlow are counted: otherwise an image for all features of a CPU
    (`--cpu host,exact`) would win over a newer one that lacks only features of no effect.
    """
    return _speed(image.features, PLATFORMS[image.platform])


@cache
def _speed(features: frozenset[str], arch: str) -> tuple[tuple[bool, ...], int]:
    rows = facts.rows("vectors", Vector)
    vectors = next(row.features for row in rows if row.arch == arch)
    return tuple(name in features for name in vectors), len(isa.relevant(features))


def _passed_over(
    image: Published, best: Published | None, newest: str, platform: str, features: frozenset[str]
) -> PassedOver:
    if image.platform != platform:
        return PassedOver(id=image.id, reason=f"for {image.platform}")
    if lacking := sorted(image.features - features):
        notable = image.release == newest and (best is None or rank(image) > rank(best))
        return PassedOver(id=image.id, reason=f"this CPU lacks {' '.join(lacking)}", notable=notable)
    if image.release != newest:
        return PassedOver(id=image.id, reason=f"{newest} is newer; --release {image.release} chooses among its images")
    assert best is not None  # this one fits, so there is a best one
    return _inferior(image, best)


def _inferior(image: Published, best: Published) -> PassedOver:
    """Say why an image that fits was not chosen; notable is one that is as good, and for another target."""
    as_good = (speed(image), image.python) == (speed(best), best.python)
    return PassedOver(id=image.id, reason=_reason(image, best), notable=as_good and image.target != best.target)


def _reason(image: Published, best: Published) -> str:
    if speed(image) < speed(best):
        return f"{best.instruction_set} uses more of this CPU than {image.instruction_set}"
    if image.python != best.python:
        return f"Python {best.python} is newer; --python {image.python} chooses among its images"
    if image.target != best.target:
        return f"--target {image.target} chooses it" if image.target else "it does not say for which target it is"
    return "an older build"


def is_of(release: str, series: str) -> bool:
    """Whether a release is this one ("2.21.0"), or a final one of a series ("2.21", "": any)."""
    within = f"{release}.".startswith(f"{series}." if series else "")
    return release == series or (within and not Version(release).is_prerelease)


def matching(published: Iterable[Published], *, release: str, target: str, python: str) -> Sequence[Published]:
    """Return the images of a release (see `is_of`), a target, and a Python ("": any)."""
    return [
        image
        for image in published
        if (not target or image.target == target)
        and is_of(image.release, release)
        and (not python or image.python == python)
    ]
