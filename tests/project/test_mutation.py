"""Planted defects: that every room has some, and tests that can notice them."""

import pytest

from benchmarks import mutation
from tests.checkout import ROOT


@pytest.mark.parametrize("room", mutation.ROOMS)
def test_every_room_can_be_sampled(room: str) -> None:
    assert [*mutation.ordered(ROOT, room, "x"), *mutation.RELATED.get(room, ())], "no test would find a defect"
    assert len(mutation.defects(ROOT, room)) > 50
