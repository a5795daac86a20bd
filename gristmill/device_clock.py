"""The clock of a device: what a call takes there, by events on its stream, read once they have happened.

A call returns when the device has been told, not when it is done, so the host's clock would time the telling. Nothing
waits for an event; where too many are under way, or a graph is captured, a call goes untimed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

MAX_UNDER_WAY = 256
"""Calls per thread whose events have not happened yet."""


class Event(Protocol):
    """As `torch.Event(enable_timing=True)`."""

    def record(self) -> None:
        """Puts it on the current stream."""
        ...

    def query(self) -> bool:
        """Whether it has happened."""
        ...

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this one to the other; both have happened."""
        ...


class DeviceClock:
    """Every thread times its own calls."""

    def __init__(
        self, new_event: Callable[[], Event] | None = None, capturing: Callable[[], bool] | None = None
    ) -> None:
        self._new_event = new_event or _torch_event
        self._capturing = capturing or _torch_captures
        self._local = _UnderWay()

    def start(self) -> Event | None:
        """To be handed to `stop` after the call; None where the call is not to be timed."""
        self._harvest()
        if len(self._local.calls) >= MAX_UNDER_WAY or self._capturing():
            return None
        event = self._new_event()
        event.record()
        return event

    def stop(self, started: Event, then: Callable[[int], None]) -> None:
        """The call is under way. Once its time is known, this thread tells it, in nanoseconds."""
        event = self._new_event()
        event.record()
        self._local.calls.append((started, event, then))

    def _harvest(self) -> None:
        """Events of one stream happen in order, so the first that has not happened is the last that is asked."""
        calls = self._local.calls
        while calls and calls[0][1].query():
            started, ended, then = calls.popleft()
            then(round(started.elapsed_time(ended) * 1e6))


class _UnderWay(threading.local):
    def __init__(self) -> None:
        self.calls: deque[tuple[Event, Event, Callable[[int], None]]] = deque()


def _torch_event() -> Event:
    import torch

    return cast(Event, torch.Event(enable_timing=True))


def _torch_captures() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
