"""A reservoir's sample is unbiased: shown by going through every course that chance can take."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from gristmill.reservoir import Reservoir
from tests.gristmill.chance import courses


@pytest.mark.parametrize(("capacity", "added"), [(1, 4), (2, 2), (2, 5), (3, 5), (4, 6)])
def test_each_item_stands_for_one_on_average(capacity: int, added: int) -> None:
    def play(course: random.Random) -> dict[int, int]:
        reservoir: Reservoir[int] = Reservoir(capacity, course)
        for item in range(added):
            reservoir.add(item)
        return dict(reservoir.take())

    average = dict.fromkeys(range(added), Fraction(0))
    certain = Fraction(0)
    for probability, weights in courses(play):
        certain += probability
        assert sum(weights.values()) == added
        assert len(weights) == min(capacity, added)
        for item, weight in weights.items():
            average[item] += probability * weight
    assert certain == 1
    assert set(average.values()) == {1}


def test_taking_empties_it() -> None:
    reservoir: Reservoir[str] = Reservoir(2)
    assert reservoir.take() == []
    for item in "abc":
        reservoir.add(item)
    assert len(reservoir) == 2
    assert sum(weight for _, weight in reservoir.take()) == 3
    reservoir.add("d")
    assert reservoir.take() == [("d", 1)]
