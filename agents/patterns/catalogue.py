"""All patterns that come with a source."""

from __future__ import annotations

from agents.errors import PatternError
from agents.pattern_source import PatternSource
from agents.patterns import row_operators, skinny_linear

PATTERNS: tuple[PatternSource, ...] = (*row_operators.PATTERNS, *skinny_linear.PATTERNS)


def patterns_for(operator: str, dtype: str) -> tuple[PatternSource, ...]:
    """The patterns that can write this operator, the one to start with first.

    Raises:
        PatternError: there is none.
    """
    found = tuple(p for p in PATTERNS if p.operator == operator and dtype in p.dtypes)
    if not found:
        known = sorted({p.operator for p in PATTERNS})
        raise PatternError(f"no pattern writes {operator} in {dtype}; there are patterns for {', '.join(known)}")
    return found
