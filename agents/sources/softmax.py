"""Softmax by blocks: two passes over a row instead of three, and rows that threads share.

When it applies: in bfloat16, where three passes compute each exponential twice, since the output is too coarse to keep
them; in float32 two passes gain nothing. A single row, or fewer than cores, leaves cores idle unless they share it.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.parameter_space import Parameter, ParameterSpace, Values
from agents.pattern_source import PatternSource, Target
from agents.sources.row_operators import UNROLLS

BLOCKS = (4096, 1024, 2048, 512, 256)
"""Columns that share one maximum: enough to make its correction cheap, few enough to stay in the first cache."""
PARALLEL_FROM = (8192, 32768, 4096)
"""Elements of a call from which threads are woken: an exponential is dearer than a copy."""
ANY_ROWS = ((1, 64), (65, 1 << 20))
FEW_ROWS = ((1, 1), (2, 8))


def _space(spread: int) -> Callable[[Target], ParameterSpace]:
    def space(target: Target) -> ParameterSpace:
        return ParameterSpace(
            (
                Parameter("LANES", target.lanes),
                Parameter("UNROLL", UNROLLS),
                Parameter("BLOCK", BLOCKS),
                Parameter("THREADS", target.threads),
                Parameter("PARALLEL_FROM", PARALLEL_FROM, when=lambda values: values["THREADS"] > 1),
                Parameter("SPREAD", (spread,)),
            )
        )

    return space


def _source(name: str, spread: int, specialists: tuple[tuple[int, int], ...], dtypes: tuple[str, ...]) -> PatternSource:
    space = _space(spread)

    def defaults(target: Target) -> tuple[Values, ...]:
        first = space(target).complete(lambda parameter: parameter.choices[0])
        return (first, {**first, "BLOCK": 1024})

    return PatternSource(
        name=name,
        operator="softmax",
        dtypes=dtypes,
        source="softmax_blocks.cpp",
        headers=("rows.h", "vector.h", "exponential.h"),
        varying_axis="rows",
        specialists=specialists,
        space=space,
        defaults=defaults,
        niche=bool(spread),
    )


ONLINE = _source("online-softmax", 0, ANY_ROWS, ("bfloat16",))
SPREAD = _source("spread-a-row", 1, FEW_ROWS, ("float32", "bfloat16"))
SOURCES = (ONLINE, SPREAD)
