"""A model that is asked no more often than its provider allows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from agents.backoff import asked_s
from agents.chat import Answer, ChatModel, ChatRequest, Usage
from agents.errors import BudgetSpentError, ModelError, RateLimitedError

WINDOW_S = 60.0


@dataclass(frozen=True)
class Limits:
    """None: without bound."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Input and output together, as a request's `most` has them until its answer tells better."""
    concurrency: int | None = None


@dataclass(eq=False)
class _Passed:
    """A call that counts against the limits until the window has left it behind."""

    at_s: float
    tokens: int


class Window:
    """What passed in the last minute, and when the next call may. Not thread-safe; no clock of its own."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._passed: deque[_Passed] = deque()
        self._running = 0
        self.closed_until_s = 0.0
        """The provider wants no call before."""

    def wait_s(self, tokens: int, now_s: float) -> float | None:
        """How long a call must wait if nothing else passes before it; None: until one that runs has ended."""
        limits = self._limits
        if limits.concurrency is not None and self._running >= limits.concurrency:
            return None
        while self._passed and self._passed[0].at_s <= now_s - WINDOW_S:
            self._passed.popleft()
        free_at_s = max(self.closed_until_s, now_s)
        if limits.requests_per_min is not None and len(self._passed) >= limits.requests_per_min:
            free_at_s = max(free_at_s, self._passed[-limits.requests_per_min].at_s + WINDOW_S)
        if limits.tokens_per_min is not None:
            free_at_s = max(free_at_s, self._tokens_free_at_s(tokens, limits.tokens_per_min, now_s))
        return free_at_s - now_s

    def enter(self, tokens: int, now_s: float) -> _Passed:
        """A call starts."""
        passed = _Passed(now_s, tokens)
        self._passed.append(passed)
        self._running += 1
        return passed

    def leave(self, passed: _Passed, tokens: int | None) -> None:
        """It has ended and took so many tokens; None: nobody knows."""
        self._running -= 1
        if tokens is not None:
            passed.tokens = tokens

    def withdraw(self, passed: _Passed) -> None:
        """It was not made after all."""
        self._running -= 1
        if passed in self._passed:
            self._passed.remove(passed)

    def close(self, until_s: float) -> None:
        """The provider wants to be left alone."""
        self.closed_until_s = max(self.closed_until_s, until_s)

    def _tokens_free_at_s(self, tokens: int, limit: int, now_s: float) -> float:
        """When enough of the window's calls have left it. One that is larger than the limit passes alone."""
        excess = min(tokens, limit) + sum(passed.tokens for passed in self._passed) - limit
        free_at_s = now_s
        for passed in self._passed:
            if excess <= 0:
                break
            excess -= passed.tokens
            free_at_s = passed.at_s + WINDOW_S
        return free_at_s


class RateLimitedModel:
    """Lets threads through in the order in which they came, none ahead of one that waits.

    The wait counts against the request's `timeout_s`. A provider's `Retry-After` holds for all of them.
    """

    def __init__(self, model: ChatModel, limits: Limits, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock_s = clock_s
        self._window = Window(limits)
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._asked_s = 0.0
        """What the provider said when it closed the window, for the message."""

    @property
    def name(self) -> str:
        return self._model.name

    def most(self, request: ChatRequest) -> Usage:
        return self._model.most(request)

    def complete(self, request: ChatRequest) -> Answer:
        """Raises RateLimitedError, without a call, where the request's time ends before its turn comes."""
        started_s = self._clock_s()
        passed = self._enter(self._model.most(request).tokens, started_s + request.timeout_s)
        tokens: int | None = None
        made = True
        try:
            left_s = started_s + request.timeout_s - self._clock_s()
            answer = self._model.complete(replace(request, timeout_s=left_s))
            tokens = answer.usage.tokens
            return answer
        except BudgetSpentError:
            made = False
            raise
        except ModelError as error:
            tokens = error.usage.tokens if error.usage is not None else 0
            if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
                with self._changed:
                    self._window.close(self._clock_s() + asked_s(error))
                    self._asked_s = error.retry_after_s
            raise
        finally:
            with self._changed:
                if made:
                    self._window.leave(passed, tokens)
                else:
                    self._window.withdraw(passed)
                self._changed.notify_all()

    def _enter(self, tokens: int, deadline_s: float) -> _Passed:
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                while (wait_s := self._turn_in_s(place, tokens)) is None or wait_s > 0:
                    left_s = deadline_s - self._clock_s()
                    if left_s <= 0 or (wait_s is not None and wait_s >= left_s):
                        raise RateLimitedError(f"{self.name}: {self._obstacle(deadline_s)}", wait_s)
                    self._changed.wait(left_s if wait_s is None else wait_s)
                return self._window.enter(tokens, self._clock_s())
            finally:
                self._line.remove(place)
                self._changed.notify_all()

    def _obstacle(self, deadline_s: float) -> str:
        """Why a call finds no room before its deadline."""
        if self._window.closed_until_s < deadline_s:
            return "the limits set for it leave no room in time"
        left_s = max(self._window.closed_until_s - self._clock_s(), 0.0)
        return f"the provider asked to wait {self._asked_s:.0f} s; it is asked again in {left_s:.0f} s"

    def _turn_in_s(self, place: object, tokens: int) -> float | None:
        """None: somebody else has to move first."""
        if self._line[0] is not place:
            return None
        return self._window.wait_s(tokens, self._clock_s())
