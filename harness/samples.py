"""Copies of what some timed calls read and wrote, made right after their batch, to be recomputed later.

Shape suffixes: S sets, P places.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.arena import Cut, Numbers, OutputArena, Places, Walk, indices
from harness.draws import Part
from harness.stock import Stock


class Samples:
    """Some calls: whole, or as many places of each along an axis, other ones for each batch."""

    def __init__(self, stock: Stock, outputs: OutputArena, axis: str = "", places: int = 0) -> None:
        layout, definition = stock.layout, stock.definition
        self.in_parts = bool(axis)
        self._axis = axis
        self._count = places
        self._stock = stock
        self._called: list[Numbers] = []
        self._states: list[NDArray[np.uint64]] = []
        self._places: list[Places] = []

        def copies(dims: Sequence[str], tensor: Tensor) -> _Copies:
            return _Copies(outputs, Part(definition, axis if axis in dims else ""), places, dims, tensor)

        self._inputs = [  # nothing where a linked call's activation can be made again
            None if layout.linked and not weight else copies(spec.dims, tensor)
            for spec, tensor, weight in zip(definition.inputs, stock.inputs.tensors, layout.weights, strict=True)
        ]
        self._outputs = [
            copies(spec.dims, tensor) for spec, tensor in zip(definition.outputs, outputs.tensors, strict=True)
        ]
        self._all = [kept for kept in (*self._inputs, *self._outputs) if kept is not None]

    def take_any(self, walk: Walk, chosen: Sequence[int], order: random.Random) -> None:
        """Copies of these calls of a run, of random places. Another part for each batch: whoever neglects some of the
        rows, or columns of large weights, cannot know which are looked at, and what escapes once does not escape twice.
        """
        extent = self._stock.workload.axes[self._axis] if self._axis else 0
        self.take(walk, chosen, np.array(sorted(order.sample(range(extent), self._count)), np.int64))

    def take(self, walk: Walk, chosen: Sequence[int], places_P: Places) -> None:
        """Copies of these calls of a run, of these places, in order."""
        called = walk.called[chosen]
        self._called.append(called)
        self._states.append(walk.states[chosen])
        self._places += [places_P] * len(called)
        for copies in self._all:
            copies.take(called, places_P)

    @property
    def part(self) -> Part:
        """What was taken of each call."""
        places_SP = torch.from_numpy(np.stack(self._places)) if self._axis else None
        return Part(self._stock.definition, self._axis, places_SP)

    def outputs(self) -> list[Tensor]:
        """What those calls wrote."""
        return [copies.all() for copies in self._outputs]

    def inputs(self) -> list[Tensor]:
        """What they were given, as far as the part needs it."""
        made = self._made() if None in self._inputs else {}
        return [made[index] if copies is None else copies.all() for index, copies in enumerate(self._inputs)]

    def _made(self) -> dict[int, Tensor]:
        inputs = self._stock.inputs
        called, states = np.concatenate(self._called), np.concatenate(self._states)
        dims = [spec.dims for spec in self._stock.definition.inputs]
        linked = [index for index, copies in enumerate(self._inputs) if copies is None]
        if self._axis and inputs.rows_can_be_made and all(dims[index][0] == self._axis for index in linked):
            return inputs.made_rows(called, states, np.stack(self._places))
        part = self.part
        return {index: part.of(dims[index], tensor, None) for index, tensor in inputs.made(called, states).items()}


class _Copies:
    """What is taken of one tensor: by pieces of memory where they are few."""

    def __init__(self, outputs: OutputArena, part: Part, places: int, dims: Sequence[str], tensor: Tensor) -> None:
        self._part = part
        self._dims = dims
        self._tensor = tensor
        self._others: list[Tensor] = []
        self._cut: Cut | None = None
        if not part.axis:
            self._cut = outputs.cut(tensor) if tensor[0].is_contiguous() else None
        elif dims[0] == part.axis and tensor[0, 0].is_contiguous():
            self._cut = outputs.cut(tensor, places)

    def take(self, called: Numbers, places_P: Places) -> None:
        """Of those sets."""
        if self._cut is not None:
            self._cut.take(called, places_P)
        else:
            part = replace(self._part, places=torch.from_numpy(places_P)) if self._part.axis else self._part
            self._others.append(part.of(self._dims, self._tensor, indices(called)))

    def all(self) -> Tensor:
        """Those of all calls, sets in front."""
        return torch.cat(self._others) if self._cut is None else self._cut.taken
