"""What a question to a model costs, call by call: each is set aside before it is made and settled after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agents.chat import Answer, Usage
from agents.errors import ModelError, ModelUnavailableError
from agents.spending import Amount, Budget, Reservation


class Payment:
    """See `agents.chat.Payer`: for one question, whose calls (attempts, fallbacks) follow one another.

    So one call is in flight at a time, however often a question is asked again, and none while it waits in between.
    """

    def __init__(self, budget: Budget, purpose: str) -> None:
        """`purpose` is what a ledger says of its calls."""
        self._budget = budget
        self._purpose = purpose
        self._lock = threading.Lock()
        self._open: tuple[Reservation, Usage] | None = None
        self._spent = Usage()
        self._closed = False

    def pay(self, most: Usage, call: Callable[[], Answer]) -> Answer:
        """A call that ends with a bug counts as what it may cost, once the payment is closed."""
        self._reserve(most)
        try:
            answer = call()
        except ModelError as error:
            self._settle(error.usage or Usage())
            raise
        self._settle(answer.usage)
        return answer

    def close(self) -> Usage:
        """What all calls have cost. One that is still out, of a question that was abandoned, counts as what it may cost
        at most, whatever comes of it; no other is made. Safe to call twice.
        """
        with self._lock:
            if self._open is not None:
                self._end(self._open[1])
            self._closed = True
            return self._spent

    def _reserve(self, most: Usage) -> None:
        with self._lock:
            if self._closed:
                raise ModelUnavailableError("nobody waits for this answer any more")
            assert self._open is None, "the calls of a question follow one another"
            self._open = self._budget.reserve(_amount(most), self._purpose), most

    def _settle(self, usage: Usage) -> None:
        with self._lock:
            if not self._closed:
                self._end(usage)

    def _end(self, usage: Usage) -> None:
        assert self._open is not None
        self._open[0].settle(_amount(usage))
        self._open = None
        self._spent += usage


def _amount(usage: Usage) -> Amount:
    return Amount(usd=usage.usd, tokens=usage.tokens)
