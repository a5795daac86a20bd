"""A few tokens times a large weight matrix: limited by how fast weights come from memory, up to about 16 tokens.

Three ways. Rows: dot products straight from the engine's layout, several weight rows and tokens at once; needs nothing
of the host. Panels: weights packed once in setup, so that they stream sequentially and no lanes are summed; best from
8 tokens up, at the price of a second copy of the weights. Split: for outputs too few to be shared out among the
cores, which then share each sum. Pitfalls: sums that do not fit the registers spill, and
rows 4 KiB apart share a set of the first cache.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from agents.parameter_space import Parameter, ParameterSpace, Values
from agents.pattern_source import PatternSource, Target

SPECIALISTS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64))
"""Past these, arithmetic limits and the engine's own matrix product is the better one."""
HEADERS = ("skinny_linear.h", "vector.h")
SERIAL_BELOW_KIB = (128, 32, 512)
"""Size of the weights under which a call stays on one thread."""
SPLIT_BELOW_KIB = (64, 16, 256)
"""The same where threads share the sums, of which there are few."""
SPARE_REGISTERS = 4
"""Registers that hold weights and tokens while the others hold sums."""


def _token_blocks(target: Target) -> tuple[int, ...]:
    """Tokens multiplied at a time: no more than the range has."""
    return tuple(count for count in (8, 4, 6, 12, 2, 16, 1) if count <= max(target.tokens.high, 1))


def rows_space(target: Target) -> ParameterSpace:
    """Constants of `skinny_linear_rows.h`."""
    sums = target.registers - SPARE_REGISTERS

    def fits(values: Mapping[str, int]) -> bool:
        return values["ROWS"] * values["TOKENS"] <= sums

    return ParameterSpace(
        (
            Parameter("LANES", target.lanes),
            Parameter("ROWS", (3, 4, 2, 8, 6, 1)),
            Parameter("TOKENS", _token_blocks(target)),
            Parameter("K_UNROLL", (1, 2, 4)),
            Parameter("PREFETCH_BLOCKS", (1, 2, 0, 4)),
            Parameter("PREFETCH_LOCALITY", (2, 3), when=lambda values: values["PREFETCH_BLOCKS"] > 0),
            Parameter("THREADS", target.threads),
            Parameter("SERIAL_BELOW_KIB", SERIAL_BELOW_KIB, when=lambda values: values["THREADS"] > 1),
        ),
        fits,
    )


def rows_defaults(target: Target) -> tuple[Values, ...]:
    first = {parameter.name: parameter.choices[0] for parameter in rows_space(target).parameters}
    shapes = [(3, 8), (2, 8), (4, 4)] if target.registers >= 32 else [(3, 4), (2, 4)]
    if target.tokens.high == 1:
        shapes = [(4, 1), (8, 1)]
    wanted = [{**first, "ROWS": rows, "TOKENS": min(tokens, target.tokens.high)} for rows, tokens in shapes]
    return tuple(values for values in wanted if values["TOKENS"] in _token_blocks(target))


def _rows_technique(target: Target, values: Mapping[str, int]) -> str:
    """As `PAIRS` in skinny_linear.h decides."""
    units = target.dtype == "bfloat16" and "avx512_bf16" in target.hardware.vector_flags
    return "bf16-dot-products" if units and values["LANES"] == 16 else "register-blocking"


def _panels_space(target: Target) -> ParameterSpace:
    sums = target.registers - SPARE_REGISTERS

    def fits(values: Mapping[str, int]) -> bool:
        return values["PANEL_VECTORS"] * values["TOKENS"] <= sums

    return ParameterSpace(
        (
            Parameter("LANES", target.lanes),
            Parameter("PANEL_VECTORS", (3, 4, 2, 1)),
            Parameter("TOKENS", _token_blocks(target)),
            Parameter("K_UNROLL", (2, 4, 1, 8)),
            Parameter("K_BLOCK", (128, 64, 256)),
            Parameter("PREFETCH_LINES", (0, 16, 32, 64)),
            Parameter("THREADS", target.threads),
            Parameter("SERIAL_BELOW_KIB", SERIAL_BELOW_KIB, when=lambda values: values["THREADS"] > 1),
        ),
        fits,
    )


def _panels_defaults(target: Target) -> tuple[Values, ...]:
    first = {parameter.name: parameter.choices[0] for parameter in _panels_space(target).parameters}
    shapes = [(3, 8), (4, 6)] if target.registers >= 32 else [(2, 4), (3, 4)]
    wanted = [
        {**first, "PANEL_VECTORS": vectors, "TOKENS": min(tokens, target.tokens.high)} for vectors, tokens in shapes
    ]
    return tuple(values for values in wanted if values["TOKENS"] in _token_blocks(target))


def _split_space(target: Target) -> ParameterSpace:
    def fits(values: Mapping[str, int]) -> bool:
        sums = values["ROWS"] * values["TOKENS"] * values["K_UNROLL"]
        return sums + values["TOKENS"] < target.registers

    return ParameterSpace(
        (
            Parameter("LANES", target.lanes),
            Parameter("ROWS", (4, 2, 8, 1)),
            Parameter("TOKENS", _token_blocks(target)),
            Parameter("K_UNROLL", (1, 2, 4)),
            Parameter("THREADS", target.threads),
            Parameter("SERIAL_BELOW_KIB", SPLIT_BELOW_KIB, when=lambda values: values["THREADS"] > 1),
        ),
        fits,
    )


def _split_defaults(target: Target) -> tuple[Values, ...]:
    first = {parameter.name: parameter.choices[0] for parameter in _split_space(target).parameters}
    wanted = [(4, 1, 4), (8, 1, 2), (4, 1, 2)] if target.tokens.high == 1 else [(2, 4, 1), (4, 2, 1)]
    shapes = [{**first, "ROWS": rows, "TOKENS": tokens, "K_UNROLL": chains} for rows, tokens, chains in wanted]
    fits = _split_space(target).fits
    return tuple(values for values in shapes if fits(values) and values["TOKENS"] in _token_blocks(target))


_source = functools.partial(
    PatternSource,
    operator="skinny_linear",
    dtypes=("float32", "bfloat16"),
    headers=HEADERS,
    varying_axis="tokens",
    specialists=SPECIALISTS,
)
ROWS = _source(
    name="register-blocking",
    source="skinny_linear_rows.cpp",
    headers=("skinny_linear_rows.h", *HEADERS),
    space=rows_space,
    defaults=rows_defaults,
    technique=_rows_technique,
)
PANELS = _source(
    name="weight-packing",
    source="skinny_linear_panels.cpp",
    space=_panels_space,
    defaults=_panels_defaults,
    needs_setup=True,
)
SPLIT = _source(
    name="split-k",
    source="skinny_linear_split.cpp",
    space=_split_space,
    defaults=_split_defaults,
    niche=True,
)
SOURCES = (ROWS, PANELS, SPLIT)
