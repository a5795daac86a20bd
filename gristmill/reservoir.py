"""A reservoir: a sample of bounded size of all that passed, each with the same chance of being in it.

Algorithm R (Vitter, Random sampling with a reservoir, ACM TOMS 11(1), 1985).
"""

from __future__ import annotations

import random
from typing import Generic, TypeVar

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps `capacity` of what is added, or all while there is no more. Not thread-safe."""

    def __init__(self, capacity: int, generator: random.Random | None = None) -> None:
        self._capacity = capacity
        self._generator = generator or random.Random()
        self._kept: list[T] = []
        self._seen = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, item: T) -> None:
        self._seen += 1
        if len(self._kept) < self._capacity:
            self._kept.append(item)
            return
        place = self._generator.randrange(self._seen)
        if place < self._capacity:
            self._kept[place] = item

    def take(self) -> list[tuple[T, int]]:
        """Empties it: each item and how many it stands for.

        These whole numbers add up to what was added, and each item's, taken as 0 when it was not kept, is 1 on average:
        a sum over the kept, times these, is an unbiased estimate of the sum over all.
        """
        kept, seen = self._kept, self._seen
        self._kept, self._seen = [], 0
        if not kept:
            return []
        each, rest = divmod(seen, len(kept))
        larger = set(self._generator.sample(range(len(kept)), rest))
        return [(item, each + (place in larger)) for place, item in enumerate(kept)]
