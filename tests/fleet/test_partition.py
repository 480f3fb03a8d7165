"""The search for the best groups, compared with trying every choice of images."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tfbuild.fleet import partition
from tfbuild.fleet.partition import Cost

WIDTH = 7
sets = st.lists(st.integers(0, 2**WIDTH - 1), min_size=1, max_size=6, unique=True)


def costs(members: list[int], weights: list[int]) -> Cost:
    """Monotone in the image: each bit that a member has and the image lacks costs its own weight."""

    def cost(index: int, image: int) -> int:
        lost = members[index] & ~image
        return (1 + index % 3) * sum(weights[bit] for bit in range(WIDTH) if lost >> bit & 1)

    return cost


def cheapest(members: list[int], most: int, cost: Cost) -> int:
    """Try every set of at most `most` images among the intersections of all subsets of the members."""
    images = set()
    for size in range(1, len(members) + 1):
        for subset in itertools.combinations(members, size):
            image = subset[0]
            for other in subset:
                image &= other
            images.add(image)
    totals = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(images, n) for n in range(1, most + 1)):
        each = [
            [cost(index, image) for image in chosen if image & ~own == 0]  # it runs there
            for index, own in enumerate(members)
        ]
        if all(each):
            totals.append(sum(map(min, each)))
    return min(totals)


@given(sets, st.integers(1, 4), st.lists(st.integers(0, 9), min_size=WIDTH, max_size=WIDTH))
def test_no_choice_of_images_is_cheaper(members: list[int], most: int, weights: list[int]) -> None:
    cost = costs(members, weights)
    cover = partition.cover(members, most, cost)
    assert cover.proved
    assert cover.cost == cheapest(members, min(most, len(members)), cost)
    assert len(cover.groups) <= most
    assert sorted(index for group in cover.groups for index in group) == list(range(len(members)))


def test_a_good_start_is_improved_by_the_least_amount() -> None:
    """Merging the two that add the least first costs more here."""
    for members, weights, most, least in (
        ([31, 25, 2, 30], [1, 2, 2, 1, 1, 3, 1], 2, 8),
        ([9, 10, 14, 4, 19], [3, 3, 3, 3, 3, 3, 2], 3, 18),
    ):
        assert partition.cover(members, most, costs(members, weights)).cost == least


@given(sets, st.lists(st.integers(0, 9), min_size=WIDTH, max_size=WIDTH))
def test_one_more_image_never_costs_more(members: list[int], weights: list[int]) -> None:
    cost = costs(members, weights)
    totals = [partition.cover(members, most, cost).cost for most in range(1, len(members) + 1)]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0


def test_beyond_its_limits_the_search_returns_an_unproved_cover() -> None:
    members = [1 << number for number in range(partition.MOST_EXACT + 1)]

    def cost(index: int, image: int) -> int:
        return (members[index] & ~image).bit_count()

    cover = partition.cover(members, 4, cost)
    assert not cover.proved
    assert len(cover.groups) <= 4
    # The members have nothing in common: each loses everything unless it is alone.
    assert cover.cost == len(members) - 3


def test_a_known_cover_is_never_made_worse() -> None:
    members = [1 << number for number in range(partition.MOST_EXACT + 1)]

    def cost(index: int, image: int) -> int:
        return (members[index] & ~image).bit_count() * (index + 1)

    best = partition.Cover(
        groups=(tuple(range(len(members) - 1)), (len(members) - 1,)), cost=sum(range(len(members))), proved=False
    )
    assert partition.cover(members, 2, cost, best).cost <= best.cost
