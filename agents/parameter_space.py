"""The constants that a pattern leaves open, and which of their combinations make sense."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from agents.errors import PatternError

Values = dict[str, int]


def _always(values: Mapping[str, int]) -> bool:
    return True


@dataclass(frozen=True)
class Parameter:
    """One constant with the values worth trying, the most plausible first."""

    name: str
    choices: tuple[int, ...]
    when: Callable[[Mapping[str, int]], bool] = field(default=_always, compare=False)
    """Whether it matters, given the parameters before it; where it does not, it takes its first choice."""


@dataclass(frozen=True)
class ParameterSpace:
    """Parameters in order, and the rule that their values have to keep together."""

    parameters: tuple[Parameter, ...]
    fits: Callable[[Mapping[str, int]], bool] = field(default=_always, compare=False)

    def complete(self, choose: Callable[[Parameter], int], given: Mapping[str, int] | None = None) -> Values:
        """Takes each parameter that matters from `given` or else asks for it, in order. The result may break `fits`."""
        values: Values = {}
        for parameter in self.parameters:
            if not parameter.when(values):
                values[parameter.name] = parameter.choices[0]
            elif given and parameter.name in given:
                values[parameter.name] = given[parameter.name]
            else:
                values[parameter.name] = choose(parameter)
        return values

    def sample(self, random_source: random.Random) -> Values:
        """One combination that fits; each draw that does not is drawn again."""
        while True:
            values = self.complete(lambda parameter: random_source.choice(parameter.choices))
            if self.fits(values):
                return values

    def neighbour(self, values: Mapping[str, int], random_source: random.Random) -> Values:
        """One combination that fits, with one or two parameters drawn anew and the others as given."""
        names = [parameter.name for parameter in self.parameters]
        while True:
            moved = random_source.sample(names, random_source.randint(1, min(2, len(names))))
            kept = {name: value for name, value in values.items() if name not in moved}
            found = self.complete(lambda parameter: random_source.choice(parameter.choices), kept)
            if self.fits(found):
                return found

    def all(self) -> Iterator[Values]:
        """Every combination that fits, once."""
        seen: set[tuple[int, ...]] = set()
        for combination in itertools.product(*(parameter.choices for parameter in self.parameters)):
            given = dict(zip((p.name for p in self.parameters), combination, strict=True))
            values = self.complete(lambda parameter: parameter.choices[0], given)
            key = tuple(values.values())
            if key not in seen and self.fits(values):
                seen.add(key)
                yield values

    def check(self, values: Mapping[str, int]) -> None:
        """
        Raises:
            PatternError: a parameter is missing, unknown or has a value outside its choices, or the combination does
                not fit.
        """
        for parameter in self.parameters:
            value = values.get(parameter.name)
            if value not in parameter.choices:
                raise PatternError(f"parameter {parameter.name}: found {value}, expected one of {parameter.choices}")
        unknown = sorted(set(values) - {parameter.name for parameter in self.parameters})
        if unknown:
            raise PatternError(f"parameter {unknown[0]}: unknown, expected {[p.name for p in self.parameters]}")
        if not self.fits(values):
            raise PatternError(f"parameters {dict(values)}: this combination does not fit; change one of them")
