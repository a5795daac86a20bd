"""Operators on independent rows: one pass or two over a row that stays in cache, and rows spread over threads.

When it applies: element-wise work and sums along the last dimension, where the engine launches one library call per
arithmetic step and each reads and writes memory anew. Pitfalls: waking threads costs as much as a few thousand
elements, so small calls stay on the calling thread; outputs written around the caches are slow to read back.
"""

from __future__ import annotations

from dataclasses import replace

from agents.parameter_space import Parameter, ParameterSpace, Values
from agents.pattern_source import PatternSource, Target

UNROLLS = (4, 2, 1, 8)
PARALLEL_FROM = (32768, 8192, 131072)
"""Elements of a call from which threads are woken; the engine's own libraries start at the first."""
STREAM_FROM_KIB = (0, 2048, 512)
"""Size of the outputs from which they are written around the caches; 0 is never."""
PARTS = (1024, 512, 4096)
"""Elements of a row that are one piece of work."""
ROWS = (4, 8, 2)
"""Rows side by side, where they are short."""
SPECIALISTS = ((1, 64), (65, 1 << 20))
HEADERS = ("rows.h", "vector.h")


def row_space(target: Target) -> ParameterSpace:
    """Constants of `rows.h`."""
    return ParameterSpace(
        (
            Parameter("LANES", target.lanes),
            Parameter("UNROLL", UNROLLS),
            Parameter("THREADS", target.threads),
            Parameter("PARALLEL_FROM", PARALLEL_FROM, when=lambda values: values["THREADS"] > 1),
            Parameter("STREAM_FROM_KIB", STREAM_FROM_KIB),
        )
    )


def _parted_space(target: Target) -> ParameterSpace:
    return ParameterSpace((*row_space(target).parameters, Parameter("PART", PARTS)))


def row_defaults(target: Target) -> tuple[Values, ...]:
    first = row_space(target).complete(lambda parameter: parameter.choices[0])
    return (first, {**first, "PARALLEL_FROM": 8192}) if target.cores > 1 else (first,)


def _parted_defaults(target: Target) -> tuple[Values, ...]:
    first = _parted_space(target).complete(lambda parameter: parameter.choices[0])
    return ({**first, "UNROLL": 2}, first)


def _several_rows_space(target: Target) -> ParameterSpace:
    return ParameterSpace((Parameter("ROWS", ROWS), *row_space(target).parameters))


def _several_rows_defaults(target: Target) -> tuple[Values, ...]:
    first = _several_rows_space(target).complete(lambda parameter: parameter.choices[0])
    return ({**first, "UNROLL": 1}, first)


def _source(name: str, operator: str, varying_axis: str, headers: tuple[str, ...] = HEADERS) -> PatternSource:
    return PatternSource(
        name=name,
        operator=operator,
        dtypes=("float32", "bfloat16"),
        source=f"{operator}.cpp",
        headers=headers,
        varying_axis=varying_axis,
        specialists=SPECIALISTS,
        space=row_space,
        defaults=row_defaults,
    )


def _several_rows(operator: str, dtypes: tuple[str, ...]) -> PatternSource:
    return PatternSource(
        name="multi-row-programs",
        operator=operator,
        dtypes=dtypes,
        source=f"{operator}_rows.cpp",
        headers=HEADERS,
        varying_axis="tokens",
        specialists=SPECIALISTS,
        space=_several_rows_space,
        defaults=_several_rows_defaults,
        niche=True,
    )


RMS_NORM = _source("producer-consumer-fusion", "rms_norm", "tokens")
FUSED_ADD_RMS_NORM = _source("producer-consumer-fusion", "fused_add_rms_norm", "tokens")
ROTARY_EMBEDDING = _source("producer-consumer-fusion", "rotary_embedding", "tokens")
SOFTMAX = replace(
    _source("producer-consumer-fusion", "softmax", "rows", (*HEADERS, "exponential.h")), dtypes=("float32",)
)
"""In bfloat16 two passes are faster at every size: `agents.sources.softmax`."""
SILU_AND_MUL = PatternSource(
    name="producer-consumer-fusion",
    operator="silu_and_mul",
    dtypes=("float32", "bfloat16"),
    source="silu_and_mul.cpp",
    headers=(*HEADERS, "exponential.h"),
    varying_axis="tokens",
    specialists=SPECIALISTS,
    space=_parted_space,
    defaults=_parted_defaults,
)
RMS_NORM_ROWS = _several_rows("rms_norm", ("float32", "bfloat16"))
FUSED_ADD_RMS_NORM_ROWS = _several_rows("fused_add_rms_norm", ("bfloat16",))
"""In float32 it gains nothing: the residual's stores are what takes the time."""
SOURCES = (
    RMS_NORM,
    RMS_NORM_ROWS,
    FUSED_ADD_RMS_NORM,
    FUSED_ADD_RMS_NORM_ROWS,
    ROTARY_EMBEDDING,
    SOFTMAX,
    SILU_AND_MUL,
)
