"""Graph operators: dispatched calls as torch sees them while it compiles, one custom operator per contract.

A compiled graph keeps the call and learns shapes only; what serves it is decided each time it runs. So a swap needs no
recompilation. Inductor leaves these calls out of the CUDA graphs that it captures by itself, because nobody could tell
it to capture again after a swap.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gristmill.contract import CONTRACTS, Contract

if TYPE_CHECKING:
    from gristmill.hook import Hook

NAMESPACE = "gristmill"
_TORCH: Any = torch.library  # untyped in parts
_LIBRARY = _TORCH.Library(NAMESPACE, "FRAGMENT")
_HOOKS: weakref.WeakValueDictionary[int, Hook] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def enlist(hook: Hook) -> int:
    """The number by which graphs of this process name a hook; it is never given twice."""
    number = next(_NUMBERS)
    _HOOKS[number] = hook
    return number


def of(operator: str) -> Any:
    """`torch.ops.gristmill.<operator>`: the tensors of the contract, then the hook's number."""
    return getattr(getattr(torch.ops, NAMESPACE), operator).default


def schema(contract: Contract) -> str:
    """The operator's signature in torch's language."""
    inputs = ", ".join(f"Tensor {tensor.name}" for tensor in contract.inputs)
    outputs = ", ".join(["Tensor"] * len(contract.outputs))
    return f"{contract.operator}({inputs}, int hook) -> " + (f"({outputs})" if len(contract.outputs) > 1 else outputs)


def _serve(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
    *inputs, number = arguments
    outputs = _HOOKS[number].call(*inputs)
    return _returned(tuple(output.contiguous() for output in outputs))  # as `_shapes` promised


def _shapes(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
    *inputs, number = arguments
    return _returned(_HOOKS[number].allocate(*inputs))


def _returned(outputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return outputs if len(outputs) > 1 else outputs[0]


def _register() -> None:
    tags = [torch.Tag.pt2_compliant_tag]
    if hasattr(torch.Tag, "cudagraph_unsafe"):
        tags.append(torch.Tag.cudagraph_unsafe)
    for contract in CONTRACTS.values():
        _LIBRARY.define(schema(contract), tags=tuple(tags))
        _LIBRARY.impl(contract.operator, _serve, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{contract.operator}", _shapes, lib=_LIBRARY)


_register()
