"""A site: where an engine calls an operator with axes that its model fixes. Dispatch and sampling are keyed by it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gristmill.contract import CONTRACTS, Contract
from gristmill.native import layout_of
from gristmill.workload import TensorLayout, dense

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Site:
    """One (operator, dtype, constant axes, scalars). Modules of the same shape share it.

    `engine` is the engine's own kernel: inputs in contract shape, then scalars, to a tuple of outputs. It is what smoke
    tests and shadow checks compare with. `fallbacks` counts calls that a table covered by operator but no kernel
    served; increments are plain, so it is approximate where several threads run the engine.
    """

    __slots__ = (
        "constant_axes",
        "contract",
        "dtype",
        "engine",
        "fallbacks",
        "index",
        "row_elements",
        "scalars",
        "torch_dtype",
        "weights",
    )

    def __init__(
        self,
        index: int,
        operator: str,
        dtype: torch.dtype,
        constant_axes: dict[str, int],
        scalars: tuple[float, ...],
        engine: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        self.index = index
        self.contract: Contract = CONTRACTS[operator]
        self.torch_dtype = dtype
        self.dtype = str(dtype).removeprefix("torch.")
        self.constant_axes = {name: constant_axes[name] for name in self.contract.constant_axes}
        self.scalars = scalars
        self.engine = engine
        self.row_elements = math.prod(self.constant_axes[dim] for dim in self.contract.inputs[0].dims[1:])
        """Of the first input, per unit of the variable axis."""
        self.fallbacks = 0
        self.weights: list[weakref.ref[Tensor]] = []

    @property
    def operator(self) -> str:
        return self.contract.operator

    def axes(self, extent: int) -> dict[str, int]:
        """All axes of one call."""
        return {self.contract.variable_axis: extent, **self.constant_axes}

    def extent(self, first_input: Tensor) -> int:
        """The variable axis of a call."""
        return first_input.numel() // self.row_elements

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a call is one of this site's: as the contract wants it, but that the variable axis may be several."""
        axes = self.axes(self.extent(inputs[0]))
        for expected, tensor in zip(self.contract.inputs, inputs, strict=True):
            shape, found = expected.shape(axes), tuple(tensor.shape)
            if expected.dims[0] == self.contract.variable_axis:
                inner = len(found) - len(shape) + 1
                found = (math.prod(found[:inner]), *found[inner:]) if inner > 0 else ()
            if found != shape:
                return False
        return True

    def allocate(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Dense outputs for a call, with the leading dimensions of its first input."""
        first = inputs[0]
        leading = first.shape[: first.dim() - len(self.contract.inputs[0].dims) + 1]
        axes = self.constant_axes
        return tuple(
            first.new_empty((*leading, *(axes[dim] for dim in output.dims[1:]))) for output in self.contract.outputs
        )

    def run_engine(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The engine's own kernel on inputs in contract shape."""
        return self.engine(*inputs, *self.scalars)

    def input_layouts(self, extent: int) -> tuple[TensorLayout, ...]:
        axes = self.axes(extent)
        return tuple(dense(tensor.shape(axes), self.dtype) for tensor in self.contract.inputs)

    def output_layouts(self, extent: int) -> tuple[TensorLayout, ...]:
        axes = self.axes(extent)
        return tuple(dense(tensor.shape(axes), self.dtype) for tensor in self.contract.outputs)

    def observed_layouts(self, extent: int, inputs: Sequence[Tensor]) -> tuple[TensorLayout, ...]:
        """Layouts of one call as the contract sees them: leading dimensions of dense tensors are folded."""
        return tuple(
            TensorLayout(expected.shape, expected.strides, layout_of(tensor).dtype)
            if tensor.is_contiguous()
            else layout_of(tensor)
            for expected, tensor in zip(self.input_layouts(extent), inputs, strict=True)
        )

    def add_weight(self, weight: Tensor) -> None:
        """Remembers a weight of this site, so that it can be packed before a swap rather than during a step."""
        self.weights.append(weakref.ref(weight))

    def live_weights(self) -> list[Tensor]:
        return [weight for reference in self.weights if (weight := reference()) is not None]
