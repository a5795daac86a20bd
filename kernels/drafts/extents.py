"""Axes of a draft: an extent that is seen twice, in two recordings of different sizes, is known by how it changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernels.errors import DraftError

Pair = tuple[int, int]
"""The same extent in both recordings."""
LETTERS = "ABCEFGIJKLMNOPQRSUVWXYZ"


@dataclass
class Axes:
    """Names of extents. Those known beforehand are `tokens` and what the caller has a word for."""

    known: Mapping[Pair, str]
    names: dict[Pair, str] = field(default_factory=dict)
    """Of those that occur, in the order in which they came."""

    def name(self, pair: Pair) -> str:
        """Of the axis with that extent; a new one if nobody has had it."""
        if pair not in self.names:
            self._refuse_multiples(pair)
            taken = set(self.names.values())
            unnamed = (f"width_{n}" if n > 1 else "width" for n in itertools.count(1))
            known = self.known.get(pair)
            self.names[pair] = known if known else next(name for name in unnamed if name not in taken)
        return self.names[pair]

    def _refuse_multiples(self, pair: Pair) -> None:
        """Axes of a definition are independent of one another."""
        for (first, second), name in self.names.items():
            if pair in ((2 * first, 2 * second), (first / 2, second / 2)):
                how = "twice" if pair[0] > first else "half"
                raise DraftError(f"one tensor is {how} as wide as another's {name}, which a definition cannot say")

    def dims(self, shapes: tuple[Sequence[int], Sequence[int]]) -> tuple[str, ...]:
        """Axis names of a tensor, without dimensions of extent 1."""
        return tuple(self.name(pair) for pair in zip(*shapes, strict=True) if pair != (1, 1))

    def varying(self) -> list[str]:
        """Axes that differ from call to call: tokens, or what has tokens as a factor."""
        return [name for name in self.names.values() if name == "tokens" or name.endswith("_tokens")]

    def expression(self, pair: Pair) -> str:
        """How an extent follows from the axes: itself, a half, the double or a product of two.

        Raises:
            DraftError: it does not.
        """
        if pair in self.names:
            return self.names[pair]
        for (first, second), name in self.names.items():
            if pair == (first // 2, second // 2) and first % 2 == second % 2 == 0:
                return f"{name} // 2"
            if pair == (2 * first, 2 * second):
                return f"2 * {name}"
        for one, other in itertools.combinations(self.names, 2):
            if pair == (one[0] * other[0], one[1] * other[1]):
                return f"{self.names[one]} * {self.names[other]}"
        if pair[0] == pair[1]:
            return str(pair[0])
        raise DraftError(
            f"an extent that is {pair[0]} in one recording and {pair[1]} in the other follows from no axis"
        )

    def halved(self, expressions: Iterable[str]) -> list[str]:
        """Axes of which some expression takes half."""
        halves = set(expressions)
        return [name for name in self.names.values() if any(f"{name} // 2" in text for text in halves)]


def suffix(dims: Sequence[str], letters: dict[str, str]) -> str:
    """Shape suffix of a tensor's name; gives letters to axes that have none."""
    for name in dims:
        if name not in letters:
            wanted = [*(word[0].upper() for word in name.split("_")), *LETTERS]
            letters[name] = next(letter for letter in wanted if letter not in letters.values())
    return "".join(letters[name] for name in dims)
