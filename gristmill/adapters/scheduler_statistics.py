"""What a scheduler knows, added up: how full its batches are, how long requests were, what caches and drafts did.

Numbers only: no prompt, no token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.request_log import FinishedRequest


@dataclass
class SchedulerStatistics:
    """Sums over steps since the engine started; they only grow. Means are sums over steps."""

    steps: int = 0
    scheduled_tokens: int = 0
    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    """Share of the cache's blocks in use."""
    finished: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Of prompts, held by the prefix cache."""
    drafts: int = 0
    accepted: list[int] = field(default_factory=list)
    """By position in the draft."""

    def add_step(self, scheduled_tokens: int, running: int, waiting: int, cache_usage: float) -> None:
        self.steps += 1
        self.scheduled_tokens += scheduled_tokens
        self.running += running
        self.waiting += waiting
        self.cache_usage += cache_usage

    def add_request(self, request: FinishedRequest) -> None:
        self.finished += 1
        self.generated_tokens += request.generated_tokens
        self.cached_tokens += request.cached_tokens
        self.drafts += request.drafts
        self.accepted += [0] * (len(request.accepted) - len(self.accepted))
        for position, accepted in enumerate(request.accepted):
            self.accepted[position] += accepted
