"""All pattern sources, and those that can write an operator."""

from __future__ import annotations

from agents.errors import PatternError
from agents.pattern_source import PatternSource
from agents.sources import row_operators, skinny_linear, softmax

SOURCES: tuple[PatternSource, ...] = (*row_operators.SOURCES, *softmax.SOURCES, *skinny_linear.SOURCES)


def sources_for(operator: str, dtype: str) -> tuple[PatternSource, ...]:
    """The sources that can write this operator, the one to start with first.

    Raises:
        PatternError: there is none.
    """
    found = tuple(source for source in SOURCES if source.operator == operator and dtype in source.dtypes)
    if not found:
        known = sorted({source.operator for source in SOURCES})
        raise PatternError(f"no pattern writes {operator} in {dtype}; there are sources for {', '.join(known)}")
    return found
