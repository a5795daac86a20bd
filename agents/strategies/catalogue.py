"""All strategies, by the names that commands and briefs use."""

from __future__ import annotations

from agents.brief import Brief
from agents.errors import BriefError
from agents.strategies.best_of_n import BestOfN
from agents.strategies.islands import Islands
from agents.strategies.refinement import Refinement
from agents.strategy import Strategy

NAMES = (Islands.name, Refinement.name, BestOfN.name)
"""The one that a search takes if it is not told before the others."""


def strategy(name: str, base: Brief, seed: int) -> Strategy:
    """The strategy of that name for one search.

    Raises:
        BriefError: there is none.
    """
    if name == Islands.name:
        return Islands(base, seed)
    if name == Refinement.name:
        return Refinement(base)
    if name == BestOfN.name:
        return BestOfN(base)
    raise BriefError(f"strategy {name!r}: unknown; choose one of {', '.join(NAMES)}")
