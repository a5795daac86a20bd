"""A model that says what it is told to: for tests and rehearsals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from agents.chat import Answer, ChatRequest, Finish, Usage
from agents.errors import ModelError, ModelUnavailableError

FREE = Usage()
Line = str | Answer | ModelError
"""What is said: a text as a whole answer, or what is raised."""


class ScriptedModel:
    """Says the lines of a list in their order, or what a function makes of a request. Thread-safe if the function is.

    A text costs `usage`, which is also what any call may cost; whole answers bring their own and must not pass it.
    """

    def __init__(
        self,
        script: Iterable[Line] | Callable[[ChatRequest], Line],
        name: str = "scripted",
        usage: Usage = FREE,
        latency_s: float = 0.0,
    ) -> None:
        self._say = script if callable(script) else _in_order(script)
        self._name = name
        self._usage = usage
        self._latency_s = latency_s

    @property
    def name(self) -> str:
        return self._name

    def most(self, request: ChatRequest) -> Usage:
        return self._usage

    def complete(self, request: ChatRequest) -> Answer:
        """Raises ModelUnavailableError also when the script has ended."""
        return request.payer.pay(self._usage, lambda: self._answer(request))

    def _answer(self, request: ChatRequest) -> Answer:
        time.sleep(self._latency_s)
        line = self._say(request)
        if isinstance(line, ModelError):
            raise line
        if isinstance(line, str):
            line = Answer(self._name, line, (), Finish.DONE, self._usage, 0.0)
        return replace(line, latency_s=self._latency_s)


def _in_order(lines: Iterable[Line]) -> Callable[[ChatRequest], Line]:
    rest = iter(list(lines))
    turn = threading.Lock()

    def say(request: ChatRequest) -> Line:
        with turn:
            return next(rest, ModelUnavailableError("the script has ended"))

    return say
