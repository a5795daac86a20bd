"""Every course that chance can take: expected values are sums over all of them, exactly, not averages of some draws."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")


class Course(random.Random):
    """Takes the choices it is told, then the first; `widths` says how many each could have been.

    Between 0 and 1 it chooses among the middles of so many equal parts.
    """

    def __init__(self, told: list[int], parts: int) -> None:
        super().__init__(0)
        self._told = told
        self._parts = parts
        self.widths: list[int] = []

    def randrange(self, count: int) -> int:  # type: ignore[override]
        place = len(self.widths)
        self.widths.append(count)
        return self._told[place] if place < len(self._told) else 0

    def random(self) -> float:
        return (self.randrange(self._parts) + 0.5) / self._parts

    def sample(self, population: range, k: int) -> list[int]:  # type: ignore[override]
        choices = list(itertools.combinations(population, k))
        return list(choices[self.randrange(len(choices))])


def courses(play: Callable[[random.Random], T], parts: int = 1) -> Iterator[tuple[Fraction, T]]:
    """What comes out of every course of a game, with its probability."""
    told: list[int] = []
    while True:
        course = Course(told, parts)
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
