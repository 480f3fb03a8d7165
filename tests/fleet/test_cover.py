"""The choice of images, compared with trying every partition of the CPUs into groups."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbuild.fleet import fleet as covers
from tfbuild.fleet.fleet import Features, Loss, best, cover

NAMES = "abcdefg"
SETS = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=5, unique=True)
WEIGHTS = st.lists(st.integers(0, 9), min_size=len(NAMES), max_size=len(NAMES))


def weighing(weights: Sequence[int]) -> Callable[[Features, Features], Loss]:
    """Each feature that a CPU has and its image lacks costs its own weight."""
    return lambda own, image: (sum(weights[NAMES.index(name)] for name in own - image), 0, len(own - image))


def partitions(sets: list[Features]) -> Iterator[list[list[Features]]]:
    if not sets:
        yield []
        return
    first, *rest = sets
    for groups in partitions(rest):
        yield [[first], *groups]
        for position, group in enumerate(groups):
            yield [*groups[:position], [first, *group], *groups[position + 1 :]]


def cost(sets: list[Features], images: Sequence[Features], loss: Callable[[Features, Features], Loss]) -> Loss:
    """Return what is lost, and how many images it takes."""
    chosen = [(own, best(own, images, loss)) for own in sets]
    losses = [loss(own, image) for own, image in chosen if image is not None]
    assert len(losses) == len(sets)
    return sum(lost for lost, _, _ in losses), len(images), sum(unused for _, _, unused in losses)


@given(SETS, st.integers(1, 4), WEIGHTS)
def test_no_partition_is_cheaper(sets: list[Features], most: int, weights: list[int]) -> None:
    loss = weighing(weights)
    possible = [
        images
        for groups in partitions(sets)
        if len(images := {frozenset.intersection(*group) for group in groups}) <= most and all(images)
    ]
    if not possible:
        return
    chosen, proved = cover(sets, most, loss)
    assert proved
    assert cost(sets, chosen, loss) == min(cost(sets, tuple(images), loss) for images in possible)


@given(SETS, st.integers(2, 4), WEIGHTS)
def test_merging_covers_all_and_is_never_better_than_trying_all(
    sets: list[Features], most: int, weights: list[int]
) -> None:
    sets = [*(own | {"x"} for own in sets), frozenset("y")]  # the last one is of another architecture
    loss = weighing(weights)
    exact, _ = cover(sets, most, loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers, "MOST_CHOICES", 0)
        merged, proved = cover(sets, most, loss)
    assert not proved
    assert len(merged) <= most
    assert cost(sets, merged, loss) >= cost(sets, exact, loss)
