"""A model that is asked again after what may pass: rate limits, failures of the provider, broken answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from agents.backoff import Backoff
from agents.chat import Answer, ChatModel, ChatRequest, Usage
from agents.errors import ModelError, ModelUnavailableError, RateLimitedError

ATTEMPTS = 3
PAUSES = Backoff(1.0, 60.0, drawn=1.0)


class RetryingModel:
    """Pauses between attempts, by `agents.backoff`.

    All attempts and pauses together stay within the request's `timeout_s`.
    """

    def __init__(
        self,
        model: ChatModel,
        attempts: int = ATTEMPTS,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._attempts = attempts
        self._clock_s = clock_s
        self._sleep = sleep
        self._draw = draw

    @property
    def name(self) -> str:
        return self._model.name

    def most(self, request: ChatRequest) -> Usage:
        return self._model.most(request)

    def complete(self, request: ChatRequest) -> Answer:
        started_s = self._clock_s()
        deadline_s = started_s + request.timeout_s
        spent = Usage()
        for attempt in range(1, self._attempts + 1):
            try:
                answer = self._model.complete(replace(request, timeout_s=deadline_s - self._clock_s()))
                return replace(answer, usage=spent + answer.usage, latency_s=self._clock_s() - started_s)
            except ModelError as error:
                spent += error.usage or Usage()
                pause_s = self._pause_s(error, attempt)
                if pause_s is None or self._clock_s() + pause_s >= deadline_s:
                    raise error.costing(spent) from error
            self._sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _pause_s(self, error: ModelError, attempt: int) -> float | None:
        """None: this was the last attempt, or another would fail as well."""
        if attempt == self._attempts or not isinstance(error, RateLimitedError | ModelUnavailableError):
            return None
        return PAUSES.pause_s(attempt, error, self._draw())
