"""Captures: what an engine that records CUDA graphs keeps to, so that none replays a kernel that was replaced.

A graph replays what was recorded and asks nobody. So no generation is swapped while one is recorded; afterwards the
graph knows by `stale` that something else would serve by now, and is captured again:

    with dispatcher.capture() as capture, torch.cuda.graph(graph):
        model(inputs)
    ...
    if capture.stale:       # looked at after a step boundary
        ...                 # capture again
    graph.replay()
    capture.replayed()      # what the graph called counts as hits
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gristmill.route import EntryState


class Captures:
    """Those in progress, by thread. True while there is one."""

    def __init__(self, lock: threading.RLock) -> None:
        """`lock` is held while one begins, and by whoever swaps."""
        self._lock = lock
        self._threads: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._threads)

    def here(self) -> bool:
        """Whether the calling thread records."""
        return threading.get_ident() in self._threads

    def begin(self) -> None:
        with self._lock:
            self._threads[threading.get_ident()] += 1

    def end(self) -> None:
        with self._lock:
            self._threads -= Counter([threading.get_ident()])


class Capture:
    """One recorded graph. It is made and recorded in one thread, and may be asked in any."""

    def __init__(
        self, captures: Captures, epoch: Callable[[], int], states: Callable[[], Iterable[EntryState]]
    ) -> None:
        """`epoch` changes with what serves; `states` are of the entries that serve now."""
        self._captures = captures
        self._epoch = epoch
        self._states = states
        self._recorded_at = -1
        self._hits: dict[EntryState, int] = {}

    def __enter__(self) -> Self:
        self._captures.begin()
        self._recorded_at = self._epoch()
        self._hits = {state: -state.hits_here() for state in self._states()}
        return self

    def __exit__(self, *_: object) -> None:
        for state in self._hits:
            self._hits[state] += state.hits_here()
        self._captures.end()

    @property
    def stale(self) -> bool:
        """Whether the graph may hold what serves no more: after a swap, a kill, or a kernel of its own disabled."""
        disabled = any(hits and not state.enabled for state, hits in self._hits.items())
        return disabled or self._recorded_at != self._epoch()

    def replayed(self) -> None:
        """To be called after each replay: counts the kernels' calls that were recorded."""
        for state, hits in self._hits.items():
            if hits:
                state.replayed(hits)
