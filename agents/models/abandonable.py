"""A model whose callers can be told to wait no longer, whatever it is that they wait for."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from typing import Any

from agents.chat import Answer, ChatModel, ChatRequest, Usage
from agents.errors import ModelUnavailableError


class AbandonableModel:
    """Asks in a thread of its own for each call. One that is abandoned counts as what it may cost at most: the provider
    goes on with it. Its thread ends when the model answers, fails or is closed.
    """

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._abandoned: Future[None] = Future()

    @property
    def name(self) -> str:
        return self._model.name

    def most(self, request: ChatRequest) -> Usage:
        return self._model.most(request)

    def abandon(self) -> None:
        """Calls in flight, and all later ones, end with ModelUnavailableError at once. Safe to call twice."""
        with contextlib.suppress(InvalidStateError):
            self._abandoned.set_result(None)

    def complete(self, request: ChatRequest) -> Answer:
        if self._abandoned.done():
            raise ModelUnavailableError("the search has ended")
        answer: Future[Answer] = Future()
        threading.Thread(target=self._ask, args=(request, answer), name=f"call {self.name}", daemon=True).start()
        either: list[Future[Any]] = [answer, self._abandoned]
        wait(either, return_when=FIRST_COMPLETED)
        if not answer.done():
            raise ModelUnavailableError("the search ended before the answer came", self._model.most(request))
        return answer.result()

    def _ask(self, request: ChatRequest, answer: Future[Answer]) -> None:
        try:
            answer.set_result(self._model.complete(request))
        except BaseException as error:
            answer.set_exception(error)
