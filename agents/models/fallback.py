"""Several models in order: where one has no answer the next is asked, and the first is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agents.backoff import Backoff
from agents.chat import Answer, ChatModel, ChatRequest, Finish, Usage
from agents.errors import BudgetSpentError, ModelError, RequestRefusedError

COOLDOWN = Backoff(15.0, 600.0)


@dataclass
class _Standing:
    """How a model fared lately."""

    failures: int = 0
    """In a row."""
    free_at_s: float = 0.0


class FallbackModel:
    """Asks models in order, those on cooldown last. Each may take the request's whole time.

    A cooldown doubles with each failure in a row, and is what the provider asked for if that is longer. An answer that
    the model refused is no failure, but the next model is asked all the same. Nor is it one that a call does not fit
    the budget: the next model may cost less.
    """

    def __init__(self, models: Sequence[ChatModel], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._models = tuple(models)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._standings = [_Standing() for _ in models]

    @property
    def name(self) -> str:
        """The first one's: the others stand in for it."""
        return self._models[0].name

    def most(self, request: ChatRequest) -> Usage:
        """Of the dearest, in each respect."""
        each = [model.most(request) for model in self._models]
        return Usage(
            max(most.input_tokens for most in each),
            max(most.output_tokens for most in each),
            max(most.usd for most in each),
        )

    def complete(self, request: ChatRequest) -> Answer:
        """The first answer; the last refusal where every model refused or failed, and one refused.

        Raises:
            ModelError: the last one that may pass, or the last one where none may; with what all of them cost.
            BudgetSpentError: no failure may pass, and a call passed a cap; one that may fit later if there is one.
        """
        spent = Usage()
        refusal: Answer | None = None
        failure: ModelError | None = None
        unpaid: BudgetSpentError | None = None
        for index in self._order():
            try:
                answer = self._models[index].complete(request)
            except BudgetSpentError as error:
                if unpaid is None or error.may_fit_later:
                    unpaid = error
                continue
            except ModelError as error:
                self._failed(index, error)
                spent += error.usage or Usage()
                if failure is None or not isinstance(error, RequestRefusedError):
                    failure = error
                continue
            self._succeeded(index)
            spent += answer.usage
            if answer.finish is not Finish.REFUSED:
                return replace(answer, usage=spent)
            refusal = answer
        if refusal is not None:
            return replace(refusal, usage=spent)
        if unpaid is not None and (failure is None or isinstance(failure, RequestRefusedError)):
            raise unpaid
        assert failure is not None
        raise failure.costing(spent) from failure

    def _order(self) -> list[int]:
        now_s = self._clock_s()
        with self._lock:
            waits_s = [max(standing.free_at_s - now_s, 0.0) for standing in self._standings]
        return sorted(range(len(waits_s)), key=lambda index: (waits_s[index], index))

    def _failed(self, index: int, error: ModelError) -> None:
        with self._lock:
            standing = self._standings[index]
            standing.failures += 1
            cooldown_s = COOLDOWN.pause_s(standing.failures, error)
            standing.free_at_s = max(standing.free_at_s, self._clock_s() + cooldown_s)

    def _succeeded(self, index: int) -> None:
        with self._lock:
            self._standings[index] = _Standing()
