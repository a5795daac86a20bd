"""A lane: one thread's way from a call to what serves it. Found by one lookup, good while one view of a site serves.

What a call needs and what does not change from call to call is looked up once, when a thread makes a call of its kind
for the first time. From then on a hit takes no lock, searches nothing and leaves nothing behind but its outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, is_grad_enabled

from gristmill.native import PACKED_WORD, TENSOR_WORDS
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


class Caller(Protocol):
    """What a lane needs of whoever calls an operator; see `hook.Hook`."""

    @property
    def allocate(self) -> Callable[..., Tensors]: ...

    @property
    def engine(self) -> Callable[..., Tensors]: ...

    def redirect(self, inputs: Tensors) -> Tensors:
        """Serves a call that turned out to be of another kind than its lane: its inputs are not dense."""
        ...


class Lane:
    """Calls that the engine's own kernel serves, and what all lanes have in common: they count, and time a share.

    `call` gives the outputs in the contract's order.
    """

    __slots__ = ("_cell", "_covered", "_dense", "_site", "sampler", "source")

    def __init__(
        self,
        site: Site,
        sampler: Sampler | None = None,
        cell: Cell | None = None,
        *,
        dense: bool = True,
        covered: bool = False,
    ) -> None:
        """`covered`: a table has kernels for this site, so that a call without one is a fallback."""
        self._site = site
        self._covered = covered
        self._dense = dense
        self.sampler = sampler
        """What the engine sampled with when the lane was made; with another one, the lane is not used any more."""
        self.source = sampler if cell is not None and sampler is not None else SILENT
        self._cell = cell or Cell(None, 0, ())

    def call(self, caller: Caller, inputs: Tensors) -> Tensors:
        cell = self._cell
        if cell.calls == cell.due:
            return self._timed(caller, inputs)
        if self._dense and not _all_dense(inputs):
            return caller.redirect(inputs)
        cell.calls += 1
        self._site.fallbacks += self._covered
        return caller.engine(*inputs)

    def _timed(self, caller: Caller, inputs: Tensors) -> Tensors:
        if self._dense and not _all_dense(inputs):
            return caller.redirect(inputs)
        cell = self._cell
        cell.due += self.source.period
        start_ns = perf_counter_ns()
        outputs = self.call(caller, inputs)
        cell.timed_ns += perf_counter_ns() - start_ns
        cell.timed_calls += 1
        return outputs


class KernelLane(Lane):
    """Calls that a kernel serves; those that it may not or cannot serve go to the engine all the same."""

    __slots__ = ("_dtype", "_forms", "_frame", "_route", "_state", "_weight_index")

    def __init__(
        self,
        route: Route,
        frame: CallFrame,
        sampler: Sampler | None = None,
        cell: Cell | None = None,
        *,
        dense: bool = True,
        covered: bool = True,
    ) -> None:
        super().__init__(route.site, sampler, cell, dense=dense, covered=covered)
        self._route = route
        self._frame = frame
        self._state = route.state
        self._dtype = route.site.torch_dtype
        self._weight_index = route.weight_index
        self._forms = route.kernel.forms

    def call(self, caller: Caller, inputs: Tensors) -> Tensors:
        cell = self._cell
        if cell.calls == cell.due:
            return self._timed(caller, inputs)
        if is_grad_enabled() or not self._state.enabled:
            return super().call(caller, inputs)
        outputs = caller.allocate(*inputs)
        frame, dtype, dense = self._frame, self._dtype, self._dense
        words, position = frame.words, 0
        try:
            for tensor in inputs:
                if tensor.dtype is not dtype or not tensor.is_cpu or (dense and not tensor.is_contiguous()):
                    return super().call(caller, inputs)
                words[position] = address = tensor.data_ptr()
                if not address:
                    return super().call(caller, inputs)
                position += TENSOR_WORDS
            for tensor in outputs:
                words[position] = tensor.data_ptr()
                position += TENSOR_WORDS
        except RuntimeError:  # as a null address: a tensor without memory, as tracers and compilers pass them
            return super().call(caller, inputs)
        try:
            index = self._weight_index
            if index >= 0:
                weight = inputs[index]
                form = self._forms.get(id(weight))
                if form is None or form.version != weight._version or form.address != words[index * TENSOR_WORDS]:
                    form = self._route.packed(weight)
                    if form is None:
                        return super().call(caller, inputs)
                frame.call_words[PACKED_WORD] = form.packed_address
            code = frame.function(frame.address)
        except Exception as error:  # whatever went wrong in a kernel, serving goes on with the engine's own
            return self._failed(f"{type(error).__name__}: {error}", caller, inputs)
        if code:
            return self._failed(f"gm_run returned {code}", caller, inputs)
        cell.calls += 1
        frame.hits += 1
        if frame.hits == frame.next_shadow and not self._route.agrees(frame, inputs, outputs):
            self._site.fallbacks += 1
            return caller.engine(*inputs)
        return outputs

    def _failed(self, reason: str, caller: Caller, inputs: Tensors) -> Tensors:
        self._route.fail(reason)
        return super().call(caller, inputs)


class View:
    """What may serve the calls of one site: routes by extent. Never changed, but replaced as a whole.

    A call in flight holds its lane, and so keeps what it began with. Every thread has lanes of its own, so that no
    two write to one frame and counters are exact.
    """

    def __init__(self, site: Site, rows: Rows = (), sampled: bool = True) -> None:
        self.site = site
        self.rows = rows
        self.sampled = sampled
        self.local = _Local()

    def lane(self, inputs: Tensors, sampler: Sampler | None) -> Lane:
        """The calling thread's lane for such a call; made if there is none."""
        site, local = self.site, self.local
        extent = site.extent(inputs[0])
        dense = _all_dense(inputs)
        key: object = extent if dense else (extent, *((tensor.shape, tensor.stride()) for tensor in inputs))
        lane = local.lanes.get(key)
        if lane is not None and lane.sampler is sampler:
            return lane
        if len(local.lanes) >= MAX_LANES:
            local.clear()
        cell = sampler.cell(site, extent, inputs) if sampler is not None and self.sampled else None
        route = self.rows[extent] if extent < len(self.rows) else None
        frame = self._frame(key, route, extent, inputs) if route is not None else None
        if route is None or frame is None:
            lane = Lane(site, sampler, cell, dense=dense, covered=bool(self.rows))
        else:
            lane = KernelLane(route, frame, sampler, cell, dense=dense)
        local.lanes[key] = lane
        return lane

    def _frame(self, key: object, route: Route, extent: int, inputs: Tensors) -> CallFrame | None:
        """Frames outlive lanes: only what samples a call may have changed."""
        frames = self.local.frames
        if key not in frames:
            frame = route.frame(extent, inputs)
            if frame is None:
                return None
            route.state.enlist(frame)
            frames[key] = (route, frame)
        return frames[key][1]


class _Local(threading.local):
    """One thread's lanes."""

    def __init__(self) -> None:
        self.lanes: dict[object, Lane] = {}
        self.frames: dict[object, tuple[Route, CallFrame]] = {}

    def clear(self) -> None:
        for route, frame in self.frames.values():
            route.state.release(frame)
        self.lanes.clear()
        self.frames.clear()


def _all_dense(inputs: Tensors) -> bool:
    return all(map(Tensor.is_contiguous, inputs))
