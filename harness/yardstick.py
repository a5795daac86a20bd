"""The second yardstick: what plain float32 kernels get that sum one term after another.

The production baseline sums in blocks, so its errors hardly grow with the length of a sum. A plain loop is as honest,
and the compiler may not reorder it; its errors grow with the root of the length, and in proportion to it where equal
terms round the same way (ties). The reference is run in float32 with such sums, forwards and backwards, on the inputs
at hand, and half of its errors count: with a factor of four on the baseline's that allows twice the plain loop's. Other
orders of the same sum may have less luck than these two: what they may add is taken from the bound for n roundings of
random sign, `lambda sqrt(n) u` (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019), for
sums whose terms have one sign. Where signs cancel, errors stay below the condition of the sum by themselves.

Shape suffixes: S sets, R rows, C columns, T tokens, K summed over, N results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.comparer import ErrorFacts, Expected, measure, merge
from kernels.definition import Definition

SHARE = 0.5
ORDER_ROUNDINGS = 0.25
"""Times the root of the longest sum, in units of eps times scale. Seven orders over all regimes need 0.93 of it."""
MAX_PRODUCTS = 1 << 26
"""Products of one matrix multiplication: more cost more than they tell, since the products' errors cancel."""


class SerialSums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums, means and matrix products of float32 tensors add one term after another, in float32."""

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._backwards = backwards
        self.longest = 0
        """Terms of the longest sum so far whose terms have one sign."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replacement = self._replacements.get(func.overloadpacket)
        if replacement is not None and args[0].dtype is torch.float32 and not kwargs:
            answer = replacement(self, *args)
            if answer is not None:
                return answer
        return func(*args, **(kwargs or {}))

    def _sum(self, x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Over the innermost of `dims` first, as a nest of loops would."""
        one_sign = not bool((x < 0).any()) or not bool((x > 0).any())
        for dim in sorted((d % x.dim() for d in (dims or range(x.dim()))), reverse=True):
            self.longest = max(self.longest, x.shape[dim] if one_sign else 0)
            terms = np.flip(x.numpy(), dim) if self._backwards else x.numpy()
            sums = np.add.accumulate(terms, axis=dim, dtype=np.float32)
            x = torch.from_numpy(np.ascontiguousarray(np.take(sums, [-1], axis=dim)))
            x = x if keepdim else x.squeeze(dim)
        return x

    def _mean(self, x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        total = self._sum(x, dims, keepdim)
        return total / (x.numel() / max(1, total.numel()))

    def _product(self, x_TK: Tensor, weight_KN: Tensor) -> Tensor | None:
        """Each result is its own running sum over K; None if that takes too long."""
        if x_TK.shape[0] * x_TK.shape[1] * weight_KN.shape[1] > MAX_PRODUCTS:
            return None
        out_TN = torch.zeros((x_TK.shape[0], weight_KN.shape[1]))
        terms = list(zip(x_TK.unbind(1), weight_KN.contiguous().unbind(0), strict=True))
        for x_T, weight_N in reversed(terms) if self._backwards else terms:
            out_TN += x_T[:, None] * weight_N
        return out_TN

    def _batched_product(self, x_STK: Tensor, weight_SKN: Tensor) -> Tensor | None:
        products = [self._product(x_TK, weight_KN) for x_TK, weight_KN in zip(x_STK, weight_SKN, strict=True)]
        found = [product for product in products if product is not None]
        return torch.stack(found) if found and len(found) == len(products) else None

    _replacements: ClassVar[dict[Any, Callable[..., Tensor | None]]] = {
        torch.ops.aten.sum: _sum,
        torch.ops.aten.mean: _mean,
        torch.ops.aten.mm: _product,
        torch.ops.aten.bmm: _batched_product,
    }


def widened(
    definition: Definition, inputs: Sequence[Tensor], expected: Sequence[Expected], facts: Sequence[ErrorFacts]
) -> tuple[ErrorFacts, ...]:
    """The facts, widened by what plain float32 kernels err on the first of these S sets.

    Only float32 outputs: in units of bfloat16 a float32 sum is exact.
    """
    if any(one.dtype is not torch.float32 for one in expected):
        return tuple(facts)
    scalars = [scalar.default for scalar in definition.scalars]
    first = [Expected(one.values[:1], one.scale[:1], one.dtype) for one in expected]
    found = [list(facts)]
    for backwards in (False, True):
        with torch.no_grad(), SerialSums(backwards=backwards) as sums:
            plain = definition.reference(*(tensor[0] for tensor in inputs), *scalars)
        added = ORDER_ROUNDINGS * math.sqrt(sums.longest)
        own = [measure(output[None], one).scaled(SHARE) for output, one in zip(plain, first, strict=True)]
        found.append([replace(fact, sums=added) for fact in own])
    return tuple(merge(one) for one in zip(*found, strict=True))
