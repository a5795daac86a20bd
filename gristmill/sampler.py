"""Sampling: how often which operator is called with which shapes, and how long it takes.

Every call is counted, a share of them is timed. Each thread writes only counters of its own, without a lock; `flush`
reads them and reports what was added since the last time, so nothing is lost and nothing is counted twice. Memory is
bounded by `max_keys` per thread: calls beyond that are counted as dropped. Where the engine calls `boundary` between
its steps, one step in `trace_period` is traced as well: which operator's output is which operator's input.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill import sequence
from gristmill.sequence import Edge, Link, Tracer
from gristmill.site import Site
from gristmill.workload import TensorLayout

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_PERIOD = 17
"""Prime, so that the timed calls wander over a model's layers instead of meeting the same one."""

DEFAULT_TRACE_PERIOD = 61
"""Steps per traced one: a step's calls are traced for a few microseconds each."""


class Cell:
    """Counters of one call pattern in one thread. They only grow; `seen_*` is what `flush` has reported."""

    __slots__ = (
        *("calls", "due", "extent", "layouts", "seen_calls", "seen_timed_calls", "seen_timed_ns"),
        *("site", "timed_calls", "timed_ns"),
    )

    def __init__(self, site: Site | None, extent: int, layouts: tuple[TensorLayout, ...], due: int = -1) -> None:
        self.site = site
        self.extent = extent
        self.layouts = layouts
        self.due = due
        """After so many calls the next is timed; -1: none."""
        self.calls = self.timed_calls = self.timed_ns = 0
        self.seen_calls = self.seen_timed_calls = self.seen_timed_ns = 0


@dataclass(frozen=True)
class Sample:
    """What one call pattern added over a window."""

    operator: str
    dtype: str
    axes: dict[str, int]
    layouts: tuple[TensorLayout, ...]
    calls: int
    timed_calls: int
    timed_ns: int

    @property
    def estimated_ns(self) -> float:
        """Time of all calls, from the timed share of them; 0 if none was timed."""
        return self.timed_ns * self.calls / self.timed_calls if self.timed_calls else 0.0


@dataclass(frozen=True)
class Window:
    """All samples between two flushes."""

    samples: tuple[Sample, ...]
    dropped: int
    """Calls that found no free key."""
    edges: tuple[Edge, ...] = ()
    """Of the traced steps that ended in it."""


@dataclass(frozen=True)
class Timed:
    """What an operator's calls added up to, all call patterns together. Sampled alike, so their mean is that of all."""

    calls: int = 0
    timed_calls: int = 0
    timed_ns: int = 0

    def __add__(self, other: Timed) -> Timed:
        return Timed(self.calls + other.calls, self.timed_calls + other.timed_calls, self.timed_ns + other.timed_ns)


class Sampler:
    """Counts operator calls. `period` 1 times every call; timing is of whatever served the call. `trace_period` 0
    traces no step.
    """

    def __init__(
        self, period: int = DEFAULT_PERIOD, max_keys: int = 4096, trace_period: int = DEFAULT_TRACE_PERIOD
    ) -> None:
        self.period = period
        self._first_due = 1 % period
        """The first call of a pattern is cold, so the second is the first to be timed."""
        self.tracer: Tracer | None = None
        """Told of every call of its thread while a step is traced."""
        self._trace_period = trace_period
        self._steps = 0
        self._links: Counter[Link] = Counter()
        self._max_keys = max_keys
        self._local = threading.local()
        self._threads: list[tuple[threading.Thread, dict[object, Cell], Cell]] = []
        self._ended: dict[str, Timed] = {}
        """Totals of threads whose counters were let go."""
        self._lock = threading.Lock()

    def cell(self, site: Site, extent: int, inputs: Sequence[Tensor]) -> Cell:
        """The calling thread's counters for this call."""
        try:
            cells: dict[object, Cell] = self._local.cells
        except AttributeError:
            cells = self._enlist()
        key: object = (site.index, extent)
        for tensor in inputs:
            if not tensor.is_contiguous():
                key = (site.index, extent, *(t.stride() for t in inputs))
                break
        return cells.get(key) or self._open(cells, key, site, extent, inputs)

    def _enlist(self) -> dict[object, Cell]:
        cells: dict[object, Cell] = {}
        self._local.cells = cells
        self._local.overflow = Cell(None, 0, ())
        with self._lock:
            self._threads.append((threading.current_thread(), cells, self._local.overflow))
        return cells

    def _open(self, cells: dict[object, Cell], key: object, site: Site, extent: int, inputs: Sequence[Tensor]) -> Cell:
        if len(cells) >= self._max_keys:
            overflow: Cell = self._local.overflow
            return overflow
        cell = cells[key] = Cell(site, extent, site.observed_layouts(extent, inputs), self._first_due)
        return cell

    def boundary(self) -> None:
        """To be called by the engine's thread between steps: ends the trace of one, begins that of another.

        An engine without work passes boundaries as well. They are no steps: a trace stays open until it has a call.
        """
        tracer = self.tracer
        if tracer is not None:
            if tracer.thread != threading.get_ident() or tracer.empty:
                return
            self.tracer = None
            with self._lock:
                self._links.update(tracer.close())
        self._steps += 1
        if self._trace_period and self._steps % self._trace_period == 1 % self._trace_period:
            self.tracer = Tracer()

    def flush(self) -> Window:
        """What was added since the last flush. Safe while other threads count; counters of ended threads are let go."""
        merged: dict[tuple[object, ...], list[int]] = {}
        shapes: dict[tuple[object, ...], Cell] = {}
        dropped = 0
        with self._lock:
            links, self._links = self._links, Counter()
            ended = [not thread.is_alive() for thread, _, _ in self._threads]
            for _, cells, overflow in self._threads:
                dropped += _take(overflow)[0]
                for cell in list(cells.values()):
                    added = _take(cell)
                    if added[0] and cell.site is not None:
                        axes = tuple(cell.site.axes(cell.extent).items())
                        key = (cell.site.operator, cell.site.dtype, axes, cell.layouts)
                        total = merged.setdefault(key, [0, 0, 0])
                        shapes.setdefault(key, cell)
                        for i, value in enumerate(added):
                            total[i] += value
            for (_, cells, _), gone in zip(self._threads, ended, strict=True):
                if gone:
                    _add_up(cells, self._ended)
            self._threads = [entry for entry, gone in zip(self._threads, ended, strict=True) if not gone]
        samples = tuple(_sample(shapes[key], total) for key, total in merged.items())
        return Window(samples, dropped, sequence.edges(links))

    def totals(self) -> dict[str, Timed]:
        """Per operator and dtype (`rms_norm.float32`), since the sampler was made. They never fall, and what `flush`
        reports is not touched. Safe while other threads count.
        """
        with self._lock:
            totals = dict(self._ended)
            for _, cells, _ in self._threads:
                _add_up(cells, totals)
        return totals


def _add_up(cells: dict[object, Cell], totals: dict[str, Timed]) -> None:
    for cell in list(cells.values()):
        if cell.site is not None:
            name = f"{cell.site.operator}.{cell.site.dtype}"
            timed_ns, timed_calls, calls = cell.timed_ns, cell.timed_calls, cell.calls
            totals[name] = totals.get(name, Timed()) + Timed(calls, timed_calls, timed_ns)


def _take(cell: Cell) -> tuple[int, int, int]:
    """Marks a cell's counters as reported; timing is read before calls, so that timed calls never exceed calls."""
    timed_ns, timed_calls, calls = cell.timed_ns, cell.timed_calls, cell.calls
    added = (calls - cell.seen_calls, timed_calls - cell.seen_timed_calls, timed_ns - cell.seen_timed_ns)
    cell.seen_calls, cell.seen_timed_calls, cell.seen_timed_ns = calls, timed_calls, timed_ns
    return added


def _sample(cell: Cell, total: list[int]) -> Sample:
    site = cell.site
    assert site is not None
    return Sample(site.operator, site.dtype, site.axes(cell.extent), cell.layouts, total[0], total[1], total[2])
