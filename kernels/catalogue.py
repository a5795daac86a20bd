"""The catalogue: which operators Gristmill can compile, by name. Listing the names imports no torch."""

from __future__ import annotations

import importlib
from typing import cast

from kernels.definition import Definition
from kernels.errors import UnknownOperatorError

NAMES = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding", "softmax", "skinny_linear")
"""One module of `kernels.operators` each."""


def operator(name: str) -> Definition:
    """The definition of that name.

    Raises:
        UnknownOperatorError: naming the operators that there are.
    """
    check_name(name)
    return cast(Definition, importlib.import_module(f"kernels.operators.{name}").DEFINITION)


def check_name(name: str) -> None:
    """Returns if there is such an operator, without importing torch.

    Raises:
        UnknownOperatorError: naming the operators that there are.
    """
    if name not in NAMES:
        raise UnknownOperatorError(f"operator {name!r} is unknown: choose one of {', '.join(NAMES)}")


def operators() -> tuple[Definition, ...]:
    """All definitions, in the order of the catalogue."""
    return tuple(operator(name) for name in NAMES)
