"""A reservoir's sample is unbiased: shown by going through every course that chance can take."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from gristmill.reservoir import Reservoir


class Course(random.Random):
    """Takes the choices it is told, then the first; `widths` says how many each could have been."""

    def __init__(self, told: list[int]) -> None:
        super().__init__(0)
        self._told = told
        self.widths: list[int] = []

    def randrange(self, count: int) -> int:  # type: ignore[override]
        place = len(self.widths)
        self.widths.append(count)
        return self._told[place] if place < len(self._told) else 0

    def sample(self, population: range, k: int) -> list[int]:  # type: ignore[override]
        choices = list(itertools.combinations(population, k))
        return list(choices[self.randrange(len(choices))])


def courses(play: Callable[[random.Random], dict[int, int]]) -> Iterator[tuple[Fraction, dict[int, int]]]:
    """Every course of a game with its probability."""
    told: list[int] = []
    while True:
        course = Course(told)
        result = play(course)
        probability = Fraction(1)
        for width in course.widths:
            probability /= width
        yield probability, result
        told = (told + [0] * len(course.widths))[: len(course.widths)]
        while told and told[-1] == course.widths[len(told) - 1] - 1:
            told.pop()
        if not told:
            return
        told[-1] += 1


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
