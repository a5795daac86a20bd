"""A workload: one concrete call pattern of an operator, as traffic showed it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gristmill import records

VARIABLE_AXES = ("tokens", "rows")
"""Axes that vary from call to call; a model fixes all others."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4}


@dataclass(frozen=True)
class TensorLayout:
    """Shape and strides of one tensor, as the engine passed it."""

    shape: tuple[int, ...]
    """Extent per dimension."""
    strides: tuple[int, ...]
    """Step per dimension, in elements (0 where a dimension is expanded)."""
    dtype: str
    """Name of the element type: a key of `ITEM_BYTES`."""

    @property
    def inner_contiguous(self) -> bool:
        """Whether neighbours in the last dimension are neighbours in memory."""
        return not self.shape or self.shape[-1] == 1 or self.strides[-1] == 1

    @property
    def contiguous(self) -> bool:
        """Whether the tensor is dense in row-major order."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


def dense(shape: tuple[int, ...], dtype: str) -> TensorLayout:
    """The row-major layout of a shape."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return TensorLayout(shape, tuple(reversed(strides)), dtype)


@dataclass(frozen=True)
class Workload:
    """One call pattern of one operator. Identity is everything but the counts; see `digest`."""

    operator: str
    """Name of the operator's definition."""
    dtype: str
    """Element type of the operator's main tensors."""
    axes: dict[str, int]
    """Extent of every axis that the definition names."""
    inputs: tuple[TensorLayout, ...]
    """Layouts of the tensor inputs, in the definition's order."""
    calls: int = 0
    """How often the window saw it."""
    time_ns: int = 0
    """Time the engine spent in those calls, estimated from the timed share of them."""

    @cached_property
    def digest(self) -> str:
        """Content address of the pattern: operator, dtype, axes and layouts, not the counts."""
        return records.digest([self.operator, self.dtype, self.axes, self.inputs])

    @property
    def label(self) -> str:
        """Short form for tables: `rms_norm float32 tokens=4 hidden=1024`, whatever the order of the axes.

        Inputs that are not dense are told by their place: `strides0=2048,1`.
        """
        ordered = sorted(self.axes.items(), key=lambda axis: (axis[0] not in VARIABLE_AXES, axis[0]))
        strided = [
            f"strides{place}={','.join(map(str, layout.strides))}"
            for place, layout in enumerate(self.inputs)
            if not layout.contiguous
        ]
        return " ".join([self.operator, self.dtype, *(f"{name}={extent}" for name, extent in ordered), *strided])
