"""Memory layouts: the ones that engines pass besides dense tensors, how far a layout reaches, and whether it is sound.

An arrangement makes the layout of a shape in one style. Where a tensor has too few dimensions for the style, it comes
out dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gristmill.workload import ITEM_BYTES, TensorLayout, dense

Arrangement = Callable[[tuple[int, ...], str, int], TensorLayout]
"""`(shape, dtype, position of the input)` to a layout."""

FAR_ELEMENTS = 1 << 31
"""Offsets from here on do not fit a signed index of 32 bits."""
GAP = 3
"""Elements between padded rows: odd, so that no row but the first is aligned."""


def overlaps(layout: TensorLayout) -> bool:
    """Whether distinct elements may share an address, other than along expanded dimensions (stride 0).

    Each dimension must step over everything that the finer ones reach; true of all slices and permutations of a
    dense tensor.
    """
    reach = 0
    for stride, extent in sorted(zip(layout.strides, layout.shape, strict=True)):
        if extent == 1 or stride == 0:
            continue
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def span(layout: TensorLayout) -> int:
    """Elements of storage that the layout reaches, from its first to its last."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True))


def distinct_bytes(layout: TensorLayout) -> int:
    """Bytes of memory that the layout reads: expanded dimensions count once."""
    elements = math.prod(extent if stride else 1 for extent, stride in zip(layout.shape, layout.strides, strict=True))
    return elements * ITEM_BYTES[layout.dtype]


def like(captured: TensorLayout, shape: tuple[int, ...]) -> TensorLayout:
    """The layout of another shape with the captured strides; those that would overlap grow, in the captured order.

    Dense stays dense, expanded stays expanded, and so does the contiguity of the innermost dimension.
    """
    if captured.contiguous:
        return dense(shape, captured.dtype)
    strides = list(captured.strides)
    reach = 0
    for dim in sorted(range(len(shape)), key=lambda dim: (captured.shape[dim] == 1, captured.strides[dim])):
        if strides[dim] and shape[dim] > 1:
            strides[dim] = max(strides[dim], reach + 1)
            reach += (shape[dim] - 1) * strides[dim]
    return TensorLayout(shape, tuple(strides), captured.dtype)


def fused(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """Half of a tensor twice as wide: gate or up of one product, queries of a fused projection."""
    strides = dense(shape, dtype).strides
    return TensorLayout(shape, (2 * strides[0], *strides[1:]), dtype) if len(shape) > 1 else dense(shape, dtype)


def padded(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """A gap behind every row, and behind every head."""
    return _stepped(shape, dtype, range(len(shape) - 1, -1, -1), gap=GAP)


def outer_swapped(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """Rows in place, what is outside of them in reverse: heads before tokens, as attention wants them."""
    return _stepped(shape, dtype, (len(shape) - 1, *range(len(shape) - 1)), gap=1)


def expanded(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """One row for all tokens, or one head for all heads, as the position decides; one value for all of a vector."""
    outer = max(1, len(shape) - 1)
    once = tuple(1 if dim == position % outer else extent for dim, extent in enumerate(shape))
    strides = dense(once, dtype).strides
    return TensorLayout(shape, tuple(0 if d == position % outer else s for d, s in enumerate(strides)), dtype)


def every_second(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """Every second column of a dense tensor."""
    return _stepped(shape, dtype, range(len(shape) - 1, -1, -1), inner=2)


def every_third(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """Every third column of rows with gaps."""
    return _stepped(shape, dtype, range(len(shape) - 1, -1, -1), inner=3, gap=1)


def transposed(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """All dimensions in reverse: column-major."""
    return _stepped(shape, dtype, range(len(shape)))


def far(shape: tuple[int, ...], dtype: str, position: int) -> TensorLayout:
    """Rows so far apart that the last one starts beyond `FAR_ELEMENTS`."""
    if len(shape) < 2 or shape[0] < 2:
        return dense(shape, dtype)
    stride = 1 - (-FAR_ELEMENTS // (shape[0] - 1))
    return TensorLayout(shape, (stride, *dense(shape, dtype).strides[1:]), dtype)


ROWS_APART: tuple[Arrangement, ...] = (padded, outer_swapped, expanded)
"""Arrangements whose rows are contiguous."""
COLUMNS_APART: tuple[Arrangement, ...] = (every_second, every_third, transposed)
"""Arrangements whose rows are not."""


def _stepped(
    shape: tuple[int, ...], dtype: str, finest_first: Sequence[int], *, inner: int = 1, gap: int = 0
) -> TensorLayout:
    """Dimensions in that order in memory, the first with step `inner`, a gap behind each but the last. A vector has no
    gap.
    """
    strides = [0] * len(shape)
    step = inner
    for dim in finest_first:
        strides[dim] = step
        step = step * shape[dim] + gap
    return TensorLayout(shape, tuple(strides), dtype)
