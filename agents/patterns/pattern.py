"""A pattern: one optimisation technique, as its file says it. The files lie beside this module, one Markdown each.

+++
name = "online-softmax"             # also the file's name
summary = "..."                     # one line
references = ["author, title, section"]   # where it comes from, if that is known
formerly = []                       # names that old journals have for it
hardware = ["cpu", "cuda"]          # kinds; empty lists are no restriction
bound = ["memory"]                  # what must limit the call
families = ["softmax"]
dtypes = []
conditions = ["row_bytes > KiB"]    # all must hold
favours = ["rows < cores"]          # each that holds makes it a better guess
+++
## When        prose
## C++         prose and one block, ```cpp or ```cuda, with the compiler flags that it needs
## Triton      prose and one block, ```python
## Pitfalls    prose
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import cast

from agents.errors import PatternError
from agents.memory import FAMILIES
from agents.patterns import condition
from agents.patterns.condition import Condition
from agents.patterns.situation import BOUNDS, FACTS, KINDS, Situation
from kernels.candidate import Language
from kernels.definition import DTYPES

SECTIONS = ("When", "C++", "Triton", "Pitfalls")
HOW = {Language.CPP: "C++", Language.PYTHON: "Triton"}
"""The section that shows a pattern in each language of candidates."""
BLOCKS = {"C++": ("cpp", "cuda"), "Triton": ("python",)}
LISTS = {"hardware": KINDS, "bound": BOUNDS, "families": tuple(FAMILIES), "dtypes": DTYPES}
"""Keys that list words, and the words."""
KEYS = ("name", "summary", "references", "formerly", *LISTS, "conditions", "favours")
FILE = re.compile(r"\+\+\+\n(.*?\n)\+\+\+\n(.*)", re.DOTALL)
BLOCK = re.compile(r"^```(\w+)((?: -\S+)*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAX_SUMMARY_CHARACTERS = 120


@dataclass(frozen=True)
class Snippet:
    """Code that shows a pattern. It compiles as it stands."""

    tag: str
    """`cpp`, `cuda` or `python`."""
    flags: tuple[str, ...]
    """Of the compiler, where the code needs some."""
    code: str


@dataclass(frozen=True)
class Pattern:
    """One technique: what it is, when it applies, how it is written, what goes wrong."""

    name: str
    summary: str
    references: tuple[str, ...]
    formerly: tuple[str, ...]
    hardware: tuple[str, ...]
    bound: tuple[str, ...]
    families: tuple[str, ...]
    dtypes: tuple[str, ...]
    conditions: tuple[Condition, ...]
    favours: tuple[Condition, ...]
    sections: dict[str, str]
    """Text by each of `SECTIONS`."""
    snippets: dict[str, Snippet]
    """Code of the sections `C++` and `Triton`."""

    def merit(self, situation: Situation) -> int:
        """How good a guess it is: 0 where it does not apply, else 1 and one more for each favour that holds."""
        asked = (
            (self.hardware, situation.kind),
            (self.bound, situation.bound),
            (self.families, situation.family),
            (self.dtypes, situation.dtype),
        )
        facts = situation.facts
        if any(words and word not in words for words, word in asked):
            return 0
        if not all(c.holds(facts) for c in self.conditions):
            return 0
        return 1 + sum(c.holds(facts) for c in self.favours)

    def text(self, language: Language) -> str:
        """The pattern as a brief shows it to who writes in that language."""
        how = self.sections[HOW[language]]
        parts = [f"{self.name}: {self.summary}.", self.sections["When"], how, "Pitfalls:", self.sections["Pitfalls"]]
        return "\n\n".join(parts)


def parse(text: str, name: str) -> Pattern:
    """Reads the file of the pattern of that name.

    Raises:
        PatternError: naming the pattern, the key or section, what it holds and what was expected.
    """
    place = f"pattern {name}"
    match = FILE.fullmatch(text)
    if match is None:
        raise PatternError(f"{place}: expected front matter between two lines of +++, then the sections")
    try:
        head = tomllib.loads(match[1])
    except tomllib.TOMLDecodeError as error:
        raise PatternError(f"{place}: front matter is no TOML: {error}") from error
    if set(head) != set(KEYS):
        wrong = sorted(set(head) ^ set(KEYS))
        raise PatternError(f"{place}: key {wrong[0]!r} is missing or unknown; expected {', '.join(KEYS)}")
    if head["name"] != name:
        raise PatternError(f"{place}: name is {head['name']!r}, expected the file's own, {name!r}")
    lists = {key: _words(head[key], LISTS.get(key), f"{place}, {key}") for key in KEYS[2:]}
    sections = _sections(match[2], place)
    return Pattern(
        name=name,
        summary=_summary(head["summary"], place),
        references=lists["references"],
        formerly=lists["formerly"],
        hardware=lists["hardware"],
        bound=lists["bound"],
        families=lists["families"],
        dtypes=lists["dtypes"],
        conditions=_conditions(lists["conditions"], f"{place}, conditions"),
        favours=_conditions(lists["favours"], f"{place}, favours"),
        sections=sections,
        snippets={
            section: _snippet(sections[section], tags, f"{place}, {section}") for section, tags in BLOCKS.items()
        },
    )


def _summary(value: object, place: str) -> str:
    if not isinstance(value, str) or not value or "\n" in value or len(value) > MAX_SUMMARY_CHARACTERS:
        raise PatternError(f"{place}: summary: expected one line of 1 to {MAX_SUMMARY_CHARACTERS} characters")
    return value.removesuffix(".")


def _words(value: object, allowed: tuple[str, ...] | None, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise PatternError(f"{place}: found {value!r}, expected a list of words")
    unknown = [word for word in value if allowed is not None and word not in allowed]
    if unknown:
        raise PatternError(f"{place}: found {unknown[0]!r}, expected {', '.join(allowed or ())}")
    return tuple(cast(list[str], value))


def _conditions(texts: tuple[str, ...], place: str) -> tuple[Condition, ...]:
    return tuple(condition.parse(text, FACTS, place) for text in texts)


def _sections(body: str, place: str) -> dict[str, str]:
    before, *pieces = re.split(r"^## ", body, flags=re.MULTILINE)
    named = [piece.partition("\n") for piece in pieces]
    found = {title: content.strip() for title, _, content in named}
    if before.strip() or tuple(title for title, _, _ in named) != SECTIONS or not all(found.values()):
        raise PatternError(f"{place}: expected the sections {', '.join(SECTIONS)}, in this order, each with text")
    return found


def _snippet(section: str, tags: tuple[str, ...], place: str) -> Snippet:
    blocks = BLOCK.findall(section)
    if len(blocks) != 1 or blocks[0][0] not in tags:
        raise PatternError(f"{place}: expected one block of code, marked {' or '.join(tags)}")
    tag, flags, code = blocks[0]
    return Snippet(tag, tuple(flags.split()), code)
