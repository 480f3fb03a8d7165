"""Which published image a host should run. Nothing here acts.

An image fits where the host has all of its features. Of those that fit, a set that contains another is better; between
sets of which neither does, the wider vectors decide (facts/vectors.toml), then the number of features. Between images
of one set the newer release wins, then the newer Python, then the newer build, which may only say in what order CI
came to build them.

Across releases the set goes first too: whoever names no release asks for the fastest image for this CPU, and no release
is published for all CPUs. A newer release that is passed over for that is told with its reason.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from packaging.version import Version

from tfbuild import facts
from tfbuild.facts import Facts
from tfbuild.plan import PLATFORMS


class Vector(Facts, frozen=True):
    arch: str
    features: tuple[str, ...]


class VectorTable(Facts, frozen=True):
    vector: tuple[Vector, ...]


@dataclass(frozen=True, kw_only=True)
class Published:
    """An image in a registry. `features`: canonical names; `created`: RFC 3339; `digest`: of its manifest."""

    id: str
    digest: str
    release: str
    target: str
    python: str
    platform: str
    instruction_set: str
    features: frozenset[str]
    created: str


# Of an image that does not say when it was made.
NEVER = datetime(1, 1, 1, tzinfo=UTC)


def moment(created: str) -> datetime | None:
    """An RFC 3339 time in UTC (without an offset it is taken for that); None where it is none.

    As texts "10:00:00.5Z" would come before "10:00:00Z", and "11:00+02:00" behind both.
    """
    try:
        # Engines give nanoseconds, of which Python reads six digits.
        found = datetime.fromisoformat(created)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`best` None: nothing fits; `nearest` is then the one that lacks the fewest features, which are `missing`."""

    best: Published | None
    nearest: Published | None
    missing: tuple[str, ...]
    passed_over: tuple[PassedOver, ...]


def choose(published: Iterable[Published], *, platform: str, features: frozenset[str]) -> Choice:
    """The best image for a host with `features`; the same for every order of `published`."""
    ranked = sorted(set(published), key=rank, reverse=True)
    here = [image for image in ranked if image.platform == platform]
    fitting = [image for image in here if image.features <= features]
    best = fitting[0] if fitting else None
    nearest = None if best else min(here, key=lambda image: (len(image.features - features), image.id), default=None)
    missing = tuple(sorted(nearest.features - features)) if nearest else ()
    passed = tuple(
        PassedOver(id=image.id, reason=_reason(image, best, platform, features)) for image in ranked if image != best
    )
    return Choice(best=best, nearest=nearest, missing=missing, passed_over=passed)


def rank(image: Published) -> tuple[tuple[bool, ...], int, Version, Version, datetime, str, str]:
    """Larger is better, among the images of one platform."""
    made = moment(image.created) or NEVER
    return *speed(image), Version(image.release), Version(image.python), made, image.id, image.digest


def speed(image: Published) -> tuple[tuple[bool, ...], int]:
    """Larger is faster; always larger for a set than for one within it."""
    rows = facts.load("vectors", VectorTable).vector
    telling = next(row.features for row in rows if row.arch == PLATFORMS[image.platform])
    return tuple(name in image.features for name in telling), len(image.features)


def _reason(image: Published, best: Published | None, platform: str, features: frozenset[str]) -> str:
    if image.platform != platform:
        return f"for {image.platform}"
    if lacking := sorted(image.features - features):
        return f"this CPU lacks {' '.join(lacking)}"
    assert best is not None  # this one fits, so that there is a best
    if speed(image) < speed(best):
        newer = Version(image.release) > Version(best.release)
        asked = f"; --release {image.release} chooses among its own" if newer else ""
        return f"{best.instruction_set} uses more of this CPU than {image.instruction_set}{asked}"
    if image.release != best.release:
        return f"{best.release} is newer"
    if image.python != best.python:
        return f"Python {best.python} is newer; --python {image.python} chooses among such images"
    return "an older build"


def matching(published: Iterable[Published], *, release: str, target: str, python: str) -> Sequence[Published]:
    """Those of a release ("2.21" means every 2.21.x; "" any), a target and a Python ("" any)."""
    return [
        image
        for image in published
        if image.target == target
        and (not release or image.release == release or image.release.startswith(f"{release}."))
        and (not python or image.python == python)
    ]
