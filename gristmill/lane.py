"""A lane: all that one thread needs for calls of one kind, found by one lookup, good while one view of a site serves.

What does not change from call to call is looked up once, when a thread makes a call of its kind for the first time.
From then on a hit (`hook.Hook.call`) takes no lock, searches nothing and leaves nothing behind but its outputs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gristmill.native import TENSOR_WORDS
from gristmill.sampler import Cell, Sampler

if TYPE_CHECKING:
    from gristmill.native import CallFrame
    from gristmill.route import Route
    from gristmill.site import Site

Tensors = tuple[Tensor, ...]
Rows = tuple["Route | None", ...]

MAX_LANES = 1024
"""Per view and thread: beyond so many kinds of calls all are looked up anew. Each takes about 2 KB."""

SILENT = Sampler(trace_period=0)
"""Stands in where nothing is sampled."""


class Kernel:
    """A kernel as one lane calls it."""

    __slots__ = ("elsewhere", "forms", "frame", "route", "state", "weight_index")

    def __init__(self, route: Route, frame: CallFrame) -> None:
        self.route = route
        self.frame = frame
        self.state = route.state
        self.forms = route.kernel.forms
        self.weight_index = route.weight_index
        self.elsewhere = torch.accelerator.is_available()
        """Whether a tensor that has an address may lie on a device all the same."""


class Lane:
    """What serves calls of one kind in one thread, and where they are counted."""

    __slots__ = ("cell", "covered", "dtype", "elements", "kernel", "regular", "sampler", "source")

    def __init__(self, view: View, inputs: Tensors, regular: bool, sampler: Sampler | None, cell: Cell | None) -> None:
        self.regular = regular
        """Whether all inputs are dense and of the contract's shape. Others have lanes by their shapes and strides."""
        self.dtype = view.site.torch_dtype
        self.elements = {number * TENSOR_WORDS: tensor.numel() for number, tensor in enumerate(inputs)}
        """Of each input, by its place in a frame."""
        self.covered = view.covered
        self.sampler = sampler
        """What the engine sampled with when the lane was made; with another one, the lane is not used any more."""
        self.source = SILENT if sampler is None or cell is None else sampler
        self.cell = cell or Cell(None, 0, ())
        self.kernel: Kernel | None = None
        """None where the engine's own serves."""


class View:
    """What may serve the calls of one site: routes by extent. Never changed, but replaced as a whole.

    A call in flight holds its lane, and so keeps what it began with. Every thread has lanes of its own, so that no
    two write to one frame and counters are exact.
    """

    def __init__(self, site: Site, rows: Rows = (), sampled: bool = True, counted: bool = True) -> None:
        self.site = site
        self.rows = rows
        self.sampled = sampled
        self.covered = counted and bool(rows)
        """Whether a call without a kernel counts as a fallback: where a table has any for this site."""
        self.local = _Local()

    def lane(self, inputs: Tensors, sampler: Sampler | None) -> Lane:
        """The calling thread's lane for such a call; made if there is none."""
        local = self.local
        fits = self.site.fits(inputs)
        regular = fits and all_dense(inputs)
        key: object = inputs[0].numel() if regular else tuple((tensor.shape, tensor.stride()) for tensor in inputs)
        lane = local.lanes.get(key)
        if lane is None or lane.sampler is not sampler:
            if len(local.lanes) >= MAX_LANES:
                local.clear()
            lane = local.lanes[key] = self._made(key, fits, regular, inputs, sampler)
        return lane

    def _made(self, key: object, fits: bool, regular: bool, inputs: Tensors, sampler: Sampler | None) -> Lane:
        extent = self.site.extent(inputs[0])
        cell = sampler.cell(self.site, extent, inputs) if sampler is not None and self.sampled and fits else None
        lane = Lane(self, inputs, regular, sampler, cell)
        route = self.rows[extent] if fits and extent < len(self.rows) else None
        if route is not None:
            lane.kernel = self.local.kernels.get(key)  # they outlive lanes: only what samples a call may have changed
            if lane.kernel is None and (frame := route.frame(extent, inputs)) is not None:
                route.state.enlist(frame)
                lane.kernel = self.local.kernels[key] = Kernel(route, frame)
        return lane


class _Local(threading.local):
    """One thread's lanes: by the number of elements of the first input, or by all shapes and strides."""

    def __init__(self) -> None:
        self.lanes: dict[object, Lane] = {}
        self.kernels: dict[object, Kernel] = {}

    def clear(self) -> None:
        for kernel in self.kernels.values():
            kernel.state.release(kernel.frame)
        self.lanes.clear()
        self.kernels.clear()


def all_dense(inputs: Tensors) -> bool:
    """Whether each is contiguous in row-major order."""
    return all(map(Tensor.is_contiguous, inputs))
