"""A hook: where an engine's code meets dispatch and sampling. Every adapter calls operators through these."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.dispatch import Dispatcher
    from gristmill.sampler import Sampler
    from gristmill.site import Site


class Instruments:
    """What all hooks of one engine share. `sampler` may be exchanged at any time; None counts nothing."""

    def __init__(self, dispatcher: Dispatcher, sampler: Sampler | None) -> None:
        self.dispatcher = dispatcher
        self.sampler = sampler


class Hook:
    """One operator as one module calls it: samples the call and lets a kernel or the engine serve it."""

    __slots__ = ("_dispatcher", "_index", "_instruments", "_site")

    def __init__(self, instruments: Instruments, site: Site) -> None:
        self._instruments = instruments
        self._dispatcher = instruments.dispatcher
        self._site = site
        self._index = site.index

    def call(
        self,
        extent: int,
        inputs: tuple[Tensor, ...],
        allocate: Callable[[], tuple[Tensor, ...]],
        engine: Callable[[], Any],
    ) -> Any:
        """The kernel's outputs (a tuple), or whatever `engine` returns."""
        sampler = self._instruments.sampler
        if sampler is None or self._dispatcher.kill.sampling:
            return self._serve(extent, inputs, allocate, engine)
        cell = sampler.cell(self._site, extent, inputs)
        timed = cell.calls % sampler.period == sampler.phase
        cell.calls += 1
        if timed:
            start_ns = perf_counter_ns()
            result = self._serve(extent, inputs, allocate, engine)
            cell.timed_ns += perf_counter_ns() - start_ns
            cell.timed_calls += 1
        else:
            result = self._serve(extent, inputs, allocate, engine)
        tracer = sampler.tracer
        if tracer is not None:
            tracer.note(self._site, inputs, result)
        return result

    def _serve(
        self,
        extent: int,
        inputs: tuple[Tensor, ...],
        allocate: Callable[[], tuple[Tensor, ...]],
        engine: Callable[[], Any],
    ) -> Any:
        rows = self._dispatcher.active[self._index]
        if rows:
            route = rows[extent] if extent < len(rows) else None
            if route is not None:
                outputs = allocate()
                if route.run(extent, inputs, outputs):
                    return outputs
            self._site.fallbacks += 1
        return engine()
