"""The second yardstick: what a plain float32 kernel gets that sums one term after another.

The production baseline sums in blocks, so its errors hardly grow with the length of a sum. A plain loop is as honest,
and the compiler may not reorder it; its errors grow with the root of the length, and in proportion to it where equal
terms round the same way (ties). The reference is run in float32 with such sums, on the inputs at hand, and half of its
errors count: with a factor of four on the baseline's that allows twice the plain loop's.

Shape suffixes: S sets, R rows, C columns, T tokens, K summed over, N results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.comparer import ErrorFacts, Expected, measure, merge
from kernels.definition import Definition

SHARE = 0.5
MAX_PRODUCTS = 1 << 26
"""Products of one matrix multiplication: more cost more than they tell, since the products' errors cancel."""


class SerialSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums, means and matrix products of float32 tensors add one term after another, in float32."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replacement = SERIAL.get(func.overloadpacket)
        if replacement is not None and args[0].dtype is torch.float32 and not kwargs:
            answer = replacement(*args)
            if answer is not None:
                return answer
        return func(*args, **(kwargs or {}))


def _sum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Over the innermost of `dims` first, as a nest of loops would."""
    for dim in sorted((d % x.dim() for d in (dims or range(x.dim()))), reverse=True):
        terms = np.add.accumulate(x.numpy(), axis=dim, dtype=np.float32)
        x = torch.from_numpy(np.ascontiguousarray(np.take(terms, [-1], axis=dim)))
        x = x if keepdim else x.squeeze(dim)
    return x


def _mean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    total = _sum(x, dims, keepdim)
    return total / (x.numel() / max(1, total.numel()))


def _product(x_TK: Tensor, weight_KN: Tensor) -> Tensor | None:
    """Each result is its own running sum over K; None if that takes too long."""
    if x_TK.shape[0] * x_TK.shape[1] * weight_KN.shape[1] > MAX_PRODUCTS:
        return None
    out_TN = torch.zeros((x_TK.shape[0], weight_KN.shape[1]))
    for x_T, weight_N in zip(x_TK.unbind(1), weight_KN.contiguous().unbind(0), strict=True):
        out_TN += x_T[:, None] * weight_N
    return out_TN


def _batched_product(x_STK: Tensor, weight_SKN: Tensor) -> Tensor | None:
    products = [_product(x_TK, weight_KN) for x_TK, weight_KN in zip(x_STK, weight_SKN, strict=True)]
    found = [product for product in products if product is not None]
    return torch.stack(found) if found and len(found) == len(products) else None


_OPS = torch.ops.aten
SERIAL: dict[Any, Callable[..., Tensor | None]] = {
    _OPS.sum: _sum,
    _OPS.mean: _mean,
    _OPS.mm: _product,
    _OPS.bmm: _batched_product,
}


def widened(
    definition: Definition, inputs: Sequence[Tensor], expected: Sequence[Expected], facts: Sequence[ErrorFacts]
) -> tuple[ErrorFacts, ...]:
    """The facts, and half of what a plain float32 kernel errs on the first of these S sets, whichever is larger.

    Only float32 outputs: in units of bfloat16 a float32 sum is exact.
    """
    if any(one.dtype is not torch.float32 for one in expected):
        return tuple(facts)
    scalars = [scalar.default for scalar in definition.scalars]
    with torch.no_grad(), SerialSums():  # type: ignore[no-untyped-call]
        plain = definition.reference(*(tensor[0] for tensor in inputs), *scalars)
    first = [Expected(one.values[:1], one.scale[:1], one.dtype) for one in expected]
    own = [measure(output[None], one).scaled(SHARE) for output, one in zip(plain, first, strict=True)]
    return tuple(merge(pair) for pair in zip(facts, own, strict=True))
