"""Copies of what some timed calls read and wrote, made right after their batch, to be recomputed later.

Shape suffix: S sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.arena import Cut, Numbers, OutputArena, Walk, indices
from harness.draws import Part
from harness.stock import Stock


class Samples:
    """The same part of some calls."""

    def __init__(self, stock: Stock, outputs: OutputArena, part: Part) -> None:
        layout, definition = stock.layout, stock.definition
        self.part = part
        self._stock = stock
        self._called: list[Numbers] = []
        self._states: list[NDArray[np.uint64]] = []
        self._inputs = [  # nothing where a linked call's activation can be made again
            None if layout.linked and not weight else _Copies(outputs, part, spec.dims, tensor)
            for spec, tensor, weight in zip(definition.inputs, stock.inputs.tensors, layout.weights, strict=True)
        ]
        self._outputs = [
            _Copies(outputs, part, spec.dims, tensor)
            for spec, tensor in zip(definition.outputs, outputs.tensors, strict=True)
        ]
        self._all = [copies for copies in (*self._inputs, *self._outputs) if copies is not None]

    def take(self, walk: Walk, chosen: Sequence[int]) -> None:
        """Copies of these calls of a run."""
        called = walk.called[chosen]
        self._called.append(called)
        self._states.append(walk.states[chosen])
        for copies in self._all:
            copies.take(called)

    def outputs(self) -> list[Tensor]:
        """What those calls wrote."""
        return [copies.all() for copies in self._outputs]

    def inputs(self) -> list[Tensor]:
        """What they were given, as far as the part needs it."""
        made = self._made() if None in self._inputs else {}
        return [made[index] if copies is None else copies.all() for index, copies in enumerate(self._inputs)]

    def _made(self) -> dict[int, Tensor]:
        part, inputs = self.part, self._stock.inputs
        called, states = np.concatenate(self._called), np.concatenate(self._states)
        dims = [spec.dims for spec in self._stock.definition.inputs]
        linked = [index for index, copies in enumerate(self._inputs) if copies is None]
        by_rows = inputs.rows_can_be_made and all(dims[index][0] == part.axis for index in linked)
        if part.places is not None and by_rows:
            return inputs.made_rows(called, states, part.places.numpy())
        return {index: part.of(dims[index], tensor, None) for index, tensor in inputs.made(called, states).items()}


class _Copies:
    """The part of one tensor: by pieces of memory where it consists of few."""

    def __init__(self, outputs: OutputArena, part: Part, dims: Sequence[str], tensor: Tensor) -> None:
        self._part = part
        self._dims = dims
        self._tensor = tensor
        self._others: list[Tensor] = []
        self._cut = _cut(outputs, part, dims, tensor)

    def take(self, called: Numbers) -> None:
        """Of those sets."""
        if self._cut is None:
            self._others.append(self._part.of(self._dims, self._tensor, indices(called)))
        else:
            self._cut.take(called)

    def all(self) -> Tensor:
        """Those of all calls, sets in front."""
        return torch.cat(self._others) if self._cut is None else self._cut.taken


def _cut(outputs: OutputArena, part: Part, dims: Sequence[str], tensor: Tensor) -> Cut | None:
    """How to copy a part of a tensor as pieces of memory; None if these were too many."""
    shape = tuple(tensor.shape[1:])
    if part.places is None or part.axis not in dims:
        return outputs.cut(tensor, np.zeros(1, np.int64), shape) if tensor[0].is_contiguous() else None
    if dims[0] != part.axis or not tensor[0, 0].is_contiguous():
        return None
    offsets = part.places.numpy() * (tensor.stride(1) * tensor.element_size())
    return outputs.cut(tensor, offsets, (len(offsets), *shape[1:]))
