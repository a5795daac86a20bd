"""Constants that a source leaves open: `constexpr int ROWS = 4;  // tune: 2, 4, 8`, or `ROWS = 4  # tune: 2, 4, 8`.

A candidate that has some stands for all its variants. They share a family, which is the source with the values blanked,
so that verdicts on any of them steer the search for the best.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agents.errors import PatternError
from agents.parameter_space import Parameter, ParameterSpace, Values
from gristmill import records
from kernels.candidate import Candidate, Language, Origin

MAX_PARAMETERS = 12
MAX_CHOICES = 16
MAX_VALUE = 1 << 31
_VALUE = r"(?P<value>-?\d{1,10})"
_NAME = r"(?P<name>[A-Za-z_]\w{0,63})"
_CHOICES = r"(?P<choices>-?\d{1,10}(?:[ \t]*+,[ \t]*+-?\d{1,10})*)[ \t]*+,?[ \t]*+"
_TYPED = rf"(?:[A-Za-z_][\w:]*[ \t]+){{1,6}}{_NAME}[ \t]*=[ \t]*{_VALUE}[uUlL]{{0,3}}(?![\w.'])[ \t]*+;?"
_DEFINED = rf"#[ \t]*define[ \t]+{_NAME}[ \t]+{_VALUE}(?=[ \t]*(?://|/\*|$))"
_ASSIGNED = rf"{_NAME}[ \t]*(?::[ \t]*int[ \t]*)?=[ \t]*{_VALUE}(?=[ \t]*(?:\#|$))"
_IN_CPP = rf"[ \t]*+(?://|/\*)[ \t]*+tune[ \t]*+:[ \t]*+{_CHOICES}(?:\*/)?[ \t]*+$"
_IN_PYTHON = rf"[ \t]*\#[ \t]*tune[ \t]*:[ \t]*{_CHOICES}$"
FORMS = {
    Language.CPP: ((_TYPED, _IN_CPP), (_DEFINED, _IN_CPP)),
    Language.PYTHON: ((_ASSIGNED, _IN_PYTHON),),
}
"""How a constant is declared, and how the rest of its line says what to try. Plain numbers only: an expression would
have to be understood.
"""


@dataclass(frozen=True)
class Place:
    """Where a constant stands in the sources."""

    file: str
    start: int
    """Of the value's digits."""
    end: int
    name: str
    value: int
    choices: tuple[int, ...]
    """Ascending; the value is one of them."""


@dataclass(frozen=True)
class TunableSource:
    """A candidate with open constants."""

    candidate: Candidate
    places: tuple[Place, ...]

    @classmethod
    def of(cls, candidate: Candidate) -> TunableSource | None:
        """The candidate's open constants; None if it has none that leave a choice."""
        places = read(candidate.files, candidate.language)
        return cls(candidate, places) if any(len(place.choices) > 1 for place in places) else None

    @property
    def values(self) -> Values:
        """As the candidate has them."""
        return {place.name: place.value for place in self.places}

    @property
    def space(self) -> ParameterSpace:
        return ParameterSpace(tuple(Parameter(place.name, place.choices) for place in self.places))

    @cached_property
    def family(self) -> str:
        """What it shares with its variants: a digest of everything but the values."""
        c = self.candidate
        blanked = self._filled({place.name: place.name for place in self.places})
        choices = {place.name: place.choices for place in self.places}
        return records.digest([c.operator, c.language, blanked, choices, c.domain, c.needs_setup, c.compile_flags])

    def variant(self, values: Mapping[str, int], agent: str) -> Candidate:
        """The candidate with these values, derived from it.

        Raises:
            PatternError: the values lie outside the space.
        """
        self.space.check(values)
        origin = self.candidate.origin
        return replace(
            self.candidate,
            files=self._filled({name: str(value) for name, value in values.items()}),
            origin=Origin(
                agent,
                origin.pattern,
                {name: str(value) for name, value in values.items()},
                (self.candidate.digest,),
                origin.model,
            ),
        )

    def _filled(self, texts: Mapping[str, str]) -> dict[str, str]:
        files = dict(self.candidate.files)
        for place in sorted(self.places, key=lambda place: -place.start):
            text = files[place.file]
            files[place.file] = text[: place.start] + texts[place.name] + text[place.end :]
        return files


def read(files: Mapping[str, str], language: Language) -> tuple[Place, ...]:
    """Open constants by file and place; of two with one name the first."""
    found: dict[str, Place] = {}
    for file in sorted(files):
        matches = [
            match
            for declaration, mark in FORMS[language]
            for match in (
                re.finditer(f"^[ \t]*{declaration}{mark}", files[file], re.M) if "tune" in files[file] else ()
            )
        ]
        for match in sorted(matches, key=lambda match: match.start()):
            name, value = match["name"], int(match["value"])
            if name not in found and len(found) < MAX_PARAMETERS:
                choices = _choices(value, _numbers(match["choices"]))
                found[name] = Place(file, match.start("value"), match.end("value"), name, value, choices)
    return tuple(found.values())


def marked(files: Mapping[str, str], language: Language, open_constants: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The sources with all open constants marked one way, so that a variant is spelled as its candidate is.

    Args:
        open_constants: by name, the values worth trying, of constants that may not be marked yet.

    Raises:
        PatternError: one of those is nowhere declared with a plain number.
    """
    wanted = dict(open_constants)
    comment = "//" if language is Language.CPP else "#"

    def mark(match: re.Match[str]) -> str:
        given = [*wanted.pop(match["name"], ()), *_numbers(match["choices"])]
        if not given:
            return match[0]
        declaration = match["declaration"].rstrip()
        choices = ", ".join(map(str, _choices(int(match["value"]), given)))
        return f"{declaration}  {comment} tune: {choices}" + ("\n" if not match["mark"] and match["more"] else "")

    texts = dict(files)
    for declaration, rest in FORMS[language]:
        expression = re.compile(
            rf"^(?P<declaration>[ \t]*{declaration})(?:(?P<mark>{rest})|(?=(?P<more>[^\n]*)))", re.M
        )
        for name in sorted(texts):
            texts[name] = expression.sub(mark, texts[name])
    if wanted:
        name = next(iter(wanted))
        expected = f"constexpr int {name} = 4;" if language is Language.CPP else f"{name} = 4"
        raise PatternError(f"parameter {name}: nowhere declared; expected a line that starts like `{expected}`")
    return texts


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []


def _choices(value: int, given: Sequence[int]) -> tuple[int, ...]:
    """At most `MAX_CHOICES`, ascending, the value among them."""
    kept = dict.fromkeys(choice for choice in (value, *given) if abs(choice) <= MAX_VALUE)
    return tuple(sorted(list(kept)[:MAX_CHOICES]))
