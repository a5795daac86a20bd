"""Fused operators: programs written from their parts, with the constants of the patterns that the parts follow.

When it applies: wherever parts have formulas (`agents.sources.fused_program`). Rows stay in registers and in the first
cache from part to part; with products among the parts threads are woken once for all of them. Pitfalls: what is asked
for twice is computed twice, unless it is kept; and a chain of parts needs registers for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.parameter_space import Parameter, ParameterSpace, Values
from agents.pattern_source import PatternSource, Target
from agents.sources import row_operators, skinny_linear
from agents.sources.fused_program import Program, program_of
from kernels.definition import DTYPES

KEEP = Parameter("KEEP", (1, 0))
"""Whether what a sum goes over is kept, or computed again."""
ROW_HEADERS = ("fused_rows.h", "exponential.h", *row_operators.HEADERS)
PRODUCT_HEADERS = ("fused_products.h", "skinny_linear_rows.h", "skinny_linear.h", *ROW_HEADERS)


def sources_for(operator: str) -> tuple[PatternSource, ...]:
    """The sources of a fused operator; none where a part has no formula.

    Raises:
        UnknownOperatorError: the parts do not compose.
    """
    program = program_of(operator)
    if program is None:
        return ()
    return (_with_products(program) if program.multiplies else _of_rows(program),)


def _of_rows(program: Program) -> PatternSource:
    def space(target: Target) -> ParameterSpace:
        return _extended(row_operators.row_space(target), *_own(program))

    def defaults(target: Target) -> tuple[Values, ...]:
        return _completed(space(target), row_operators.row_defaults(target))

    return _source(program, ROW_HEADERS, row_operators.SPECIALISTS, space, defaults)


def _with_products(program: Program) -> PatternSource:
    def space(target: Target) -> ParameterSpace:
        return _extended(skinny_linear.rows_space(target), Parameter("UNROLL", row_operators.UNROLLS), *_own(program))

    def defaults(target: Target) -> tuple[Values, ...]:
        return _completed(space(target), skinny_linear.rows_defaults(target))

    return _source(program, PRODUCT_HEADERS, skinny_linear.SPECIALISTS, space, defaults)


def _source(
    program: Program,
    headers: tuple[str, ...],
    specialists: tuple[tuple[int, int], ...],
    space: Callable[[Target], ParameterSpace],
    defaults: Callable[[Target], tuple[Values, ...]],
) -> PatternSource:
    return PatternSource(
        name="producer-consumer-fusion",
        operator=program.wiring.name,
        dtypes=DTYPES,
        source="",
        program=program.main(),
        headers=headers,
        varying_axis=program.wiring.varying.name,
        specialists=specialists,
        space=space,
        defaults=defaults,
    )


def _own(program: Program) -> tuple[Parameter, ...]:
    """Constants of a fused program that its parts' patterns do not have."""
    return (KEEP,) if program.keeps else ()


def _extended(space: ParameterSpace, *more: Parameter) -> ParameterSpace:
    return ParameterSpace((*space.parameters, *more), space.fits)


def _completed(space: ParameterSpace, known: tuple[Values, ...]) -> tuple[Values, ...]:
    """The patterns' own first combinations, with the first choices of what is added to them; then the others of it."""
    first = [space.complete(lambda parameter: parameter.choices[0], values) for values in known]
    return (*first, *({**values, "KEEP": 0} for values in first[:1] if "KEEP" in values))
