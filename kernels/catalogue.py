"""The catalogue: which operators Gristmill can compile, by name. Listing the names imports no torch."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from kernels import fusion_plan
from kernels.definition import Definition
from kernels.errors import UnknownOperatorError

NAMES = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding", "softmax", "skinny_linear")
"""One module of `kernels.operators` each."""
PARTS = ("residual_add",)
"""Likewise, of operators that no host calls by themselves: others are fused with them."""


def operator(name: str) -> Definition:
    """The definition of that name. A name like `rms_norm+skinny_linear` is that of a fused operator, which is made of
    its parts: see `kernels.fusion_plan`.

    Raises:
        UnknownOperatorError: naming the operators that there are, or why these cannot be fused.
    """
    check_name(name)
    return _fused(name) if fusion_plan.is_fused(name) else _single(name)


def check_name(name: str) -> None:
    """Returns if there is such an operator, or if a fused one is made of such, without importing torch.

    Raises:
        UnknownOperatorError: naming the operators that there are.
    """
    parts = [part for stage in fusion_plan.parse(name) for part in stage.operators]
    unknown = [part for part in parts if part not in (*NAMES, *PARTS)]
    if unknown:
        of_it = f"part {unknown[0]!r} of " if fusion_plan.is_fused(name) else ""
        raise UnknownOperatorError(f"{of_it}operator {name!r} is unknown: choose one of {', '.join(NAMES)}")
    if len(parts) > fusion_plan.MAX_PARTS:
        raise UnknownOperatorError(
            f"operator {name!r} has {len(parts)} parts, expected at most {fusion_plan.MAX_PARTS}: fuse fewer"
        )


def _single(name: str) -> Definition:
    return cast(Definition, importlib.import_module(f"kernels.operators.{name}").DEFINITION)


@functools.cache
def _fused(name: str) -> Definition:
    from kernels import fusion

    stages = fusion_plan.parse(name)
    return fusion.compose(name, stages, [_single(part) for stage in stages for part in stage.operators])


def operators() -> tuple[Definition, ...]:
    """All definitions, in the order of the catalogue."""
    return tuple(operator(name) for name in NAMES)
