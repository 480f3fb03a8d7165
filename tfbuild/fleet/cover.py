"""Choose the images that cover a fleet's CPUs at the least loss.

An image is best compiled for all that its CPUs have in common, so only intersections of their sets come into question.
Up to MOST_CHOICES choices of images, all are tried; beyond that, groups of CPUs are merged, the cheapest pair first.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from math import comb

MOST_CHOICES = 20_000

Features = frozenset[str]
# What a CPU's set loses with an image within it, the most important part first: (speed, features of unknown use, all).
Loss = tuple[float, int, int]


def cover(
    sets: Sequence[Features], most: int, loss: Callable[[Features, Features], Loss]
) -> tuple[tuple[Features, ...], bool]:
    """Return the features of at most `most` images that cover these different sets, and whether none are better.

    `loss(own, image)`: what CPUs with the set `own` lose with that image. Of equal losses, fewer images are
    better. Sets of different architectures have no feature in common, and never share an image.
    """
    loss = cache(loss)
    candidates = _intersections(sets)
    if sum(comb(len(candidates), count) for count in range(1, most + 1)) > MOST_CHOICES:
        return _merged(sets, most, loss), False
    sizes = range(1, min(most, len(candidates)) + 1)
    choices = itertools.chain.from_iterable(itertools.combinations(candidates, size) for size in sizes)
    return min(choices, key=lambda images: _total(sets, images, loss)), True


def best(own: Features, images: Sequence[Features], loss: Callable[[Features, Features], Loss]) -> Features | None:
    """Return the image with which CPUs with that set lose least; None if they can run none."""
    return min((image for image in images if image <= own), key=lambda image: loss(own, image), default=None)


def _intersections(sets: Sequence[Features]) -> list[Features]:
    """Return the intersections of all subsets, in a stable order, or as many of them as are too many to try."""
    found: set[Features] = set()
    for own in sets:
        found |= {own} | {own & other for other in found}
        if len(found) > MOST_CHOICES:
            break
    return sorted(found - {frozenset()}, key=lambda image: (len(image), sorted(image)))


def _total(
    sets: Sequence[Features], images: Sequence[Features], loss: Callable[[Features, Features], Loss]
) -> tuple[float, float, int, int]:
    losses = [loss(own, image) for own in sets if (image := best(own, images, loss)) is not None]
    speed, unknown, unused = map(sum, zip(*losses, strict=True)) if losses else (0, 0, 0)
    return (speed, unknown, len(images), unused) if len(losses) == len(sets) else (float("inf"), 0, 0, 0)


def _merged(sets: Sequence[Features], most: int, loss: Callable[[Features, Features], Loss]) -> tuple[Features, ...]:
    """Return an image for each set, then merge the pair that adds the least loss, until few enough and none is free."""

    def lost(group: tuple[Features, ...]) -> tuple[float, ...]:
        image = frozenset.intersection(*group)
        return tuple(map(sum, zip(*(loss(own, image) for own in group), strict=True)))

    @cache
    def added(first: tuple[Features, ...], second: tuple[Features, ...]) -> tuple[float, ...]:
        return tuple(both - a - b for both, a, b in zip(lost(first + second), lost(first), lost(second), strict=True))

    groups: list[tuple[Features, ...]] = [(own,) for own in sets]
    while pairs := [(a, b) for a, b in itertools.combinations(groups, 2) if frozenset.intersection(*a, *b)]:
        first, second = min(pairs, key=lambda pair: added(*pair))
        if len(groups) <= most and any(added(first, second)[:2]):
            break
        groups = [group for group in groups if group not in (first, second)] + [first + second]
    return tuple(frozenset.intersection(*group) for group in groups)
