"""Copies of what some timed calls read and wrote, made right after their batch, to be recomputed later.

Shape suffix: S sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.arena import Numbers, OutputArena, Walk, indices
from harness.draws import Part
from harness.stock import Stock


@dataclass(frozen=True)
class Sample:
    """Some rows of some timed calls."""

    part: Part
    called: Numbers
    states: NDArray[np.uint64]
    inputs: list[Tensor | None]
    """None where a linked call's activation can be made again."""
    outputs: list[Tensor]


class Sampler:
    """Takes the same part of whatever calls it is given."""

    def __init__(self, stock: Stock, outputs: OutputArena, part: Part) -> None:
        layout, definition = stock.layout, stock.definition
        self.part = part
        self._inputs = [
            None if layout.linked and not weight else _Cut(outputs, part, spec.dims, tensor)
            for spec, tensor, weight in zip(definition.inputs, stock.inputs.tensors, layout.weights, strict=True)
        ]
        self._outputs = [
            _Cut(outputs, part, spec.dims, tensor)
            for spec, tensor in zip(definition.outputs, outputs.tensors, strict=True)
        ]

    def sample(self, walk: Walk, chosen: NDArray[np.int64]) -> Sample:
        """Of these calls of a run."""
        called = walk.called[chosen]
        inputs = [None if cut is None else cut.of(called) for cut in self._inputs]
        return Sample(self.part, called, walk.states[chosen], inputs, [cut.of(called) for cut in self._outputs])


class _Cut:
    """Copies the part of one tensor that is looked at: as pieces of memory where it consists of few."""

    def __init__(self, outputs: OutputArena, part: Part, dims: Sequence[str], tensor: Tensor) -> None:
        self._arena = outputs
        self._part = part
        self._dims = dims
        self._tensor = tensor
        self._pieces: NDArray[np.int64] | None = None
        self._shape = tuple(tensor.shape[1:])
        if part.places is None or part.axis not in dims:
            if tensor[0].is_contiguous():
                self._pieces = np.zeros(1, np.int64)
        elif dims[0] == part.axis and tensor[0, 0].is_contiguous():
            self._pieces = part.places.numpy() * (tensor.stride(1) * tensor.element_size())
            self._shape = (len(self._pieces), *tensor.shape[2:])

    def of(self, called: Numbers) -> Tensor:
        """Of those sets."""
        if self._pieces is None:
            return self._part.of(self._dims, self._tensor, indices(called))
        copied = torch.empty((len(called), *self._shape), dtype=self._tensor.dtype)
        self._arena.cut(self._tensor, called, self._pieces, copied)
        return copied


def inputs_of(stock: Stock, group: Sequence[Sample]) -> list[Tensor]:
    """What those calls were given, as far as the part, which they share, needs it."""
    part, definition = group[0].part, stock.definition
    called, states = (np.concatenate([getattr(s, field) for s in group]) for field in ("called", "states"))
    made = _made(stock, part, called, states)
    return [
        made[index]
        if index in made
        else torch.cat([kept for sample in group if (kept := sample.inputs[index]) is not None])
        for index in range(len(definition.inputs))
    ]


def _made(stock: Stock, part: Part, called: Numbers, states: NDArray[np.uint64]) -> dict[int, Tensor]:
    dims = [spec.dims for spec in stock.definition.inputs]
    linked = [index for index, weight in enumerate(stock.layout.weights) if not weight]
    by_rows = part.places is not None and all(dims[index][0] == part.axis for index in linked)
    if by_rows and part.places is not None and stock.inputs.rows_can_be_made:
        return stock.inputs.made_rows(called, states, part.places.numpy())
    whole = stock.inputs.made(called, states)
    return {index: part.of(dims[index], tensor, None) for index, tensor in whole.items()}
