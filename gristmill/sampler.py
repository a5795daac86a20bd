"""Sampling: how often which operator is called with which shapes, and how long it takes.

Every call is counted, a share of them is timed. Each thread writes only counters of its own, without a lock; `flush`
reads them and reports what was added since the last time, so nothing is lost and nothing is counted twice. Where the
engine calls `boundary` between its steps, one step in `trace_period` is traced as well: which operator's output is
which operator's input, and what part of the step its operators are.

How calls are drawn: the calls of one pattern in one thread, in their order, make blocks of `period`; of each block one
call is timed, all with the same chance. So each timed call stands for `period` calls (`Sample.one_in`), and the time
times that is an unbiased estimate of what all took. One exception: a pattern's first call is cold (it compiles, or
fills caches) and is never timed; the second stands for it as well.

Memory is bounded by `max_keys` patterns per thread. Calls of further patterns are counted together, in blocks as well;
what is drawn of them is kept in a reservoir, and each that is kept stands for as many as its chance says.
"""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar

from gristmill import forked_child, sequence
from gristmill.device_clock import DeviceClock
from gristmill.reservoir import Reservoir
from gristmill.sequence import NO_STEPS, Edge, Link, StepTimes, Tracer
from gristmill.site import Site
from gristmill.workload import TensorLayout

if TYPE_CHECKING:
    from torch import Tensor

    from gristmill.value_capture import CapturedInput, ValueCapture

T = TypeVar("T")

DEFAULT_PERIOD = 17

DEFAULT_TRACE_PERIOD = 61
"""Steps per traced one, at least."""
TRACE_SHARE = 0.001
"""Of an engine's time that tracing may take: some ten microseconds per call of a traced step."""
TRACE_COST = 3
"""A traced call costs so many times what noting it takes: it is looked up, measured and kept as well."""
MAX_OVERFLOW = 512
"""Timed calls of patterns beyond `max_keys` that are kept, per thread, between two flushes."""


class Cell:
    """Counters of one call pattern in one thread. They only grow; `seen_*` is what `flush` has reported."""

    __slots__ = (
        *("calls", "due", "extent", "layouts", "plain", "seen_calls", "seen_timed_calls", "seen_timed_ns"),
        *("site", "timed_calls", "timed_ns"),
    )

    def __init__(self, site: Site | None, extent: int, layouts: tuple[TensorLayout, ...], due: int = -1) -> None:
        self.site = site
        self.extent = extent
        self.layouts = layouts
        self.due = due
        """After so many calls the next is timed; -1: none."""
        self.plain = False
        """Whether its calls have a key and run on the CPU, so that the host's clock times them."""
        self.calls = self.timed_calls = self.timed_ns = 0
        self.seen_calls = self.seen_timed_calls = self.seen_timed_ns = 0


class _Overflow(Cell):
    """Calls of one thread that found no free key, together, and a sample of them."""

    __slots__ = ("_drawn", "_lock")

    def __init__(self, due: int, generator: random.Random) -> None:
        super().__init__(None, 0, (), due)
        self._drawn: Reservoir[tuple[_Pattern, int]] = Reservoir(MAX_OVERFLOW, generator)
        """Timed calls and what they took."""
        self._lock = threading.Lock()

    def add(self, pattern: _Pattern, elapsed_ns: int) -> None:
        with self._lock:
            self._drawn.add((pattern, elapsed_ns))

    def take(self) -> list[tuple[tuple[_Pattern, int], int]]:
        with self._lock:
            return self._drawn.take()


@dataclass(frozen=True)
class _Pattern:
    """A call pattern."""

    site: Site
    extent: int
    layouts: tuple[TensorLayout, ...]


@dataclass(frozen=True)
class Sample:
    """What one call pattern added over a window."""

    operator: str
    dtype: str
    axes: dict[str, int]
    layouts: tuple[TensorLayout, ...]
    calls: int
    """Counted; of a pattern beyond `max_keys`, those that its timed calls stand for."""
    timed_calls: int
    timed_ns: int
    one_in: int = 0
    """How many calls each timed one stands for: `timed_ns * one_in` is an unbiased estimate of the time of all."""

    @property
    def estimated_ns(self) -> float:
        """Time of all calls if they took as long as the timed ones; 0 if none was timed. Less noisy where calls are few
        than the unbiased estimate.
        """
        return self.timed_ns * self.calls / self.timed_calls if self.timed_calls else 0.0


@dataclass(frozen=True)
class Window:
    """All samples between two flushes."""

    samples: tuple[Sample, ...]
    overflowed: int
    """Calls of patterns beyond `max_keys`: a sample stands for them."""
    edges: tuple[Edge, ...] = ()
    """Of the traced steps that ended in it."""
    steps: StepTimes = NO_STEPS
    """Likewise."""
    values: tuple[CapturedInput, ...] = ()


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
    traces no step, 1 every step; with another one, tracing waits until it takes no more than `TRACE_SHARE` of the time.
    """

    def __init__(
        self,
        period: int = DEFAULT_PERIOD,
        max_keys: int = 4096,
        trace_period: int = DEFAULT_TRACE_PERIOD,
        values: ValueCapture | None = None,
        seed: int | None = None,
    ) -> None:
        """`values` copies activations of traced steps. `seed`: for draws that can be repeated."""
        self.period = period
        self._generator = random.Random(seed)  # not the module's, whose draws are the engine's
        self.draw = self._generator.random
        self._device_clock = DeviceClock()
        self._values = values
        self._step_times = NO_STEPS
        self.tracer: Tracer | None = None
        """Told of every call of its thread while a step is traced."""
        self._trace_period = trace_period
        self._next_trace_ns = 0
        self._steps = 0
        self._links: Counter[Link] = Counter()
        self._max_keys = max_keys
        self._local = threading.local()
        self._threads: list[tuple[threading.Thread, dict[object, Cell], _Overflow]] = []
        self._ended: dict[str, Timed] = {}
        """Totals of threads whose counters were let go."""
        self._lock = threading.Lock()
        forked_child.tell(self)

    def forked(self) -> None:
        """In a forked child: counts anew, of threads that it has."""
        self._lock = threading.Lock()
        self.tracer = None
        self._threads.clear()
        self._local = threading.local()

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
        self._local.overflow = _Overflow(self._place(), self._generator)
        with self._lock:
            self._threads.append((threading.current_thread(), cells, self._local.overflow))
        return cells

    def _open(self, cells: dict[object, Cell], key: object, site: Site, extent: int, inputs: Sequence[Tensor]) -> Cell:
        if len(cells) >= self._max_keys:
            overflow: Cell = self._local.overflow
            return overflow
        cell = cells[key] = Cell(site, extent, site.observed_layouts(extent, inputs), self._first_due())
        cell.plain = inputs[0].is_cpu
        return cell

    def _first_due(self) -> int:
        return max(self._place(), 1 % self.period)

    def _place(self) -> int:
        """In a block."""
        return int(self.draw() * self.period)

    def timed(self, cell: Cell, site: Site, inputs: Sequence[Tensor], call: Callable[[], T]) -> T:
        """Makes a call whose turn it is and times it, on the device where its tensors are; the cell's next turn is in
        the next block. A call that turns out to be of another pattern leaves the turn to the next.
        """
        calls, due = cell.calls, cell.due
        cell.due = (due // self.period + 1) * self.period + self._place()
        if inputs[0].is_cpu:
            start_ns = perf_counter_ns()
            result = call()
            elapsed_ns = perf_counter_ns() - start_ns
            if cell.calls > calls:
                self._add(cell, self._pattern(cell, site, inputs), elapsed_ns)
        else:
            started = self._device_clock.start()
            result = call()
            if cell.calls > calls and started is not None:
                then = functools.partial(self._add, cell, self._pattern(cell, site, inputs))
                self._device_clock.stop(started, then)
        if cell.calls == calls:
            cell.due = due
        return result

    def _pattern(self, cell: Cell, site: Site, inputs: Sequence[Tensor]) -> _Pattern | None:
        """Of a call that has no cell of its own."""
        if cell.site is not None:
            return None
        extent = site.extent(inputs[0])
        return _Pattern(site, extent, site.observed_layouts(extent, inputs))

    def _add(self, cell: Cell, pattern: _Pattern | None, elapsed_ns: int) -> None:
        if pattern is None:
            cell.timed_ns += elapsed_ns
            cell.timed_calls += 1
        elif isinstance(cell, _Overflow):
            cell.add(pattern, elapsed_ns)

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
                self._step_times += tracer.times()
            if self._trace_period > 1:
                self._next_trace_ns = perf_counter_ns() + round(tracer.cost_ns * TRACE_COST / TRACE_SHARE)
        self._steps += 1
        due = self._trace_period and self._steps % self._trace_period == 1 % self._trace_period
        if due and perf_counter_ns() >= self._next_trace_ns:
            self.tracer = Tracer(self._values)

    def flush(self) -> Window:
        """What was added since the last flush. Safe while other threads count; counters of ended threads are let go."""
        sums: _Sums = {}
        overflowed = 0
        with self._lock:
            links, self._links = self._links, Counter()
            steps, self._step_times = self._step_times, NO_STEPS
            ended = [not thread.is_alive() for thread, _, _ in self._threads]
            for _, cells, overflow in self._threads:
                overflowed += _take(overflow)[0]
                for cell in list(cells.values()):
                    if cell.calls > cell.seen_calls and cell.site is not None:
                        added = _take(cell)
                        _sum_up(sums, _Pattern(cell.site, cell.extent, cell.layouts), self.period, added)
                for (pattern, elapsed_ns), weight in overflow.take():
                    _sum_up(sums, pattern, weight * self.period, (weight * self.period, 1, elapsed_ns))
            for (_, cells, _), gone in zip(self._threads, ended, strict=True):
                if gone:
                    _add_up(cells, self._ended)
            self._threads = [entry for entry, gone in zip(self._threads, ended, strict=True) if not gone]
        samples = tuple(_sample(pattern, one_in, total) for (_, one_in), (pattern, total) in sums.items())
        values = self._values.take() if self._values is not None else ()
        return Window(samples, overflowed, sequence.edges(links), steps, values)

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


_Sums = dict[tuple[tuple[object, ...], int], tuple[_Pattern, list[int]]]
"""By what a pattern is (sites of the same shape are one) and how many calls a timed one stands for."""


def _sum_up(sums: _Sums, pattern: _Pattern, one_in: int, added: Iterable[int]) -> None:
    site = pattern.site
    key = (site.operator, site.dtype, *site.axes(pattern.extent).items(), pattern.layouts), one_in
    _, total = sums.setdefault(key, (pattern, [0, 0, 0]))
    for place, value in enumerate(added):
        total[place] += value


def _sample(pattern: _Pattern, one_in: int, total: Sequence[int]) -> Sample:
    site = pattern.site
    calls, timed_calls, timed_ns = total
    axes = site.axes(pattern.extent)
    return Sample(site.operator, site.dtype, axes, pattern.layouts, calls, timed_calls, timed_ns, one_in)
