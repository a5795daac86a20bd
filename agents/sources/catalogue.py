"""All hand-written pattern sources, and those that can write an operator: a fused one's are made of its parts."""

from __future__ import annotations

from agents.errors import PatternError
from agents.pattern_source import PatternSource
from agents.sources import fused_operators, row_operators, skinny_linear, softmax
from agents.sources.fused_program import FORMULAS
from kernels import fusion_plan

SOURCES: tuple[PatternSource, ...] = (*row_operators.SOURCES, *softmax.SOURCES, *skinny_linear.SOURCES)


def sources_for(operator: str, dtype: str) -> tuple[PatternSource, ...]:
    """The sources that can write this operator, the one to start with first.

    Raises:
        PatternError: there is none.
        UnknownOperatorError: it is a fused operator whose parts do not compose.
    """
    every = fused_operators.sources_for(operator) if fusion_plan.is_fused(operator) else SOURCES
    found = tuple(source for source in every if source.operator == operator and dtype in source.dtypes)
    if not found:
        known = ", ".join(sorted({source.operator for source in SOURCES}))
        fused = f", and for what is fused of {', '.join(FORMULAS)}"
        raise PatternError(f"no pattern writes {operator} in {dtype}; there are sources for {known}{fused}")
    return found
