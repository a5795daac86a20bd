"""Finished requests as a spool keeps them: how long they were, when they came, what caches and drafts did for them.

Numbers only: no prompt, no token. All are counted; beyond a bound, a sample stands for them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from gristmill.reservoir import Reservoir

MAX_REQUESTS = 100_000
"""Kept between two flushes."""


@dataclass(frozen=True)
class FinishedRequest:
    """One request, once it has its last token."""

    prompt_tokens: int
    generated_tokens: int
    arrival_ns: int
    """Since 1970."""
    cached_tokens: int = 0
    """Tokens of the prompt whose keys and values a cache held already."""
    drafts: int = 0
    """Drafts of a speculation that were verified for it."""
    accepted: tuple[int, ...] = ()
    """By position in the draft: how many of these drafts were accepted at least so far. Never rises."""


class RequestLog:
    """Requests since the last `take`. Thread-safe."""

    def __init__(self, capacity: int = MAX_REQUESTS) -> None:
        self._kept: Reservoir[FinishedRequest] = Reservoir(capacity)
        self._lock = threading.Lock()

    def add(self, request: FinishedRequest) -> None:
        with self._lock:
            self._kept.add(request)

    def take(self) -> list[tuple[FinishedRequest, int]]:
        """Each that was kept and how many it stands for; see `Reservoir.take`."""
        with self._lock:
            return self._kept.take()
