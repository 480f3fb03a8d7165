"""Find the best cover: CPUs in at most K groups, each with one image for what all of its members have.

An image for a group of CPUs is best compiled for all that they have in common. So images are intersections of subsets
of the CPUs, and a choice of images is a partition of the CPUs. The search (branch and bound over partitions) proves
that no other is better, for up to MOST_EXACT different CPUs and MOST_NODES partial partitions; in the worst case there
are K^n / K! of them. Beyond either limit it returns the best partition so far, and `proved` is false.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

MOST_EXACT = 64
MOST_NODES = 50_000

# Returns what a CPU (its index) loses with an image (a bit set within its own): monotone, 0 for its own set.
Cost = Callable[[int, int], int]


@dataclass(frozen=True, kw_only=True)
class Cover:
    """`groups`: indices of members; `cost`: of all of them."""

    groups: tuple[tuple[int, ...], ...]
    cost: int
    proved: bool


@dataclass(kw_only=True)
class _Group:
    image: int
    members: tuple[int, ...]
    cost: int


def cover(members: Sequence[int], most: int, cost: Cost, known: Cover | None = None) -> Cover:
    """Return the cheapest partition into at most `most` groups; `known`: one to improve on.

    `cost(index, image)`: what the member at that index loses with an image.
    """
    if most >= len(members):
        return Cover(groups=tuple((index,) for index in range(len(members))), cost=0, proved=True)
    search = _Search(members=members, most=most, cost=cost)
    for start in (search.merged(), known.groups if known else ()):
        if start:
            search.offer([search.group(indices) for indices in start])
    if len(members) <= MOST_EXACT:
        search.run()
    return Cover(
        groups=search.best, cost=search.least, proved=search.nodes <= MOST_NODES and len(members) <= MOST_EXACT
    )


@dataclass(kw_only=True)
class _Search:
    """Branch and bound over partitions; `best` is the cheapest one seen, and `least` its cost."""

    members: Sequence[int]
    most: int
    cost: Cost
    best: tuple[tuple[int, ...], ...] = ()
    least: int = -1
    nodes: int = 0
    order: list[int] = field(default_factory=list)
    pairs: list[list[int]] = field(default_factory=list)

    def group(self, indices: Sequence[int]) -> _Group:
        """Return the group of these members, with the image for what all of them have."""
        image = self.members[indices[0]]
        for index in indices:
            image &= self.members[index]
        return _Group(image=image, members=tuple(indices), cost=sum(self.cost(index, image) for index in indices))

    def merged(self) -> list[tuple[int, ...]]:
        """Return a good start: one group per member, then the two merged that add the least cost, until few enough."""

        @cache
        def costs(group: tuple[int, ...]) -> int:
            return self.group(group).cost

        @cache
        def more(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
            return costs(a + b) - costs(a) - costs(b), a + b

        groups: list[tuple[int, ...]] = [(index,) for index in range(len(self.members))]
        while len(groups) > self.most:
            a, b = min(itertools.combinations(groups, 2), key=lambda pair: more(*pair))
            groups = [group for group in groups if group not in (a, b)] + [a + b]
        return groups

    def offer(self, groups: Sequence[_Group]) -> None:
        total = sum(group.cost for group in groups)
        if self.least < 0 or total < self.least:
            self.least, self.best = total, tuple(sorted(tuple(sorted(group.members)) for group in groups))

    def run(self) -> None:
        self.pairs = [[self.cost(i, own & other) for other in self.members] for i, own in enumerate(self.members)]
        self.order = self._spread()
        self._assign(0, [])

    def _spread(self) -> list[int]:
        """Return the members, those with the least in common first: they open the groups, so that bounds grow early."""
        left = list(range(len(self.members)))
        order = [max(left, key=lambda i: (sum(self.pairs[i]), -i))]
        while len(order) < len(left):
            rest = (i for i in left if i not in order)
            order.append(max(rest, key=lambda i: (min(self.pairs[i][j] + self.pairs[j][i] for j in order), -i)))
        return order

    def _assign(self, position: int, groups: list[_Group]) -> None:
        """Try the member at `position` in each group and in one of its own, unless that cannot become the best."""
        if position == len(self.order):
            self.offer(groups)
            return
        self.nodes += 1
        if self.nodes > MOST_NODES or self._bound(position, groups) >= self.least:
            return
        index = self.order[position]
        unions = [(self.group((*group.members, index)), number) for number, group in enumerate(groups)]
        unions.sort(key=lambda union: (union[0].cost - groups[union[1]].cost, union[1]))
        if len(groups) < self.most:
            self._assign(position + 1, [*groups, self.group((index,))])
        for union, number in unions:
            self._assign(position + 1, [*groups[:number], union, *groups[number + 1 :]])

    def _bound(self, position: int, groups: list[_Group]) -> int:
        """Return the least that any completion costs.

        A member that is left opens a group (for nothing, as long as there are slots), joins an existing one, or shares
        one with another member that is left: then its image is within what the two have in common.
        """
        rest = self.order[position:]
        slots = self.most - len(groups)
        shares = []
        for index in rest:
            own = self.members[index]
            least = [self.cost(index, group.image & own) for group in groups]
            least += [self.pairs[index][other] for other in rest if other != index] if slots else []
            shares.append(min(least, default=0))
        shares.sort()
        return sum(group.cost for group in groups) + sum(shares[: max(0, len(shares) - slots)])
