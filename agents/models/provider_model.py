"""A provider's model, called in the provider process."""

from __future__ import annotations

from dataclasses import replace

from agents.chat import Answer, ChatRequest, Usage
from agents.errors import AnswerLostError
from agents.models.provider_client import START_TIMEOUT_S, ProviderClient
from agents.provider import failures
from agents.provider.wire import Call, Order, Price, Route, call_of, input_bytes

MESSAGE_TOKENS = 16
"""What providers put around a message, a tool or a tool call, at most."""
PREAMBLE_TOKENS = 1024
"""What they put in front of them all, where there are tools."""


class ProviderModel:
    """One model of one provider; no retries, no limits: those stand around it."""

    def __init__(
        self,
        client: ProviderClient,
        route: Route,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
    ) -> None:
        """`max_output_tokens` bounds what requests ask for; `temperature` is for those that ask for none.

        Raises:
            RequestRefusedError: the provider process cannot be started.
        """
        self._client = client
        self._route = route
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        price = client.ask(Order(0, price_of=route), START_TIMEOUT_S).price
        self.price_known = price is not None
        """Whether `most` and the usage of answers tell money; without a price they say 0."""
        self._price = price or Price(0.0, 0.0)

    @property
    def name(self) -> str:
        return self._route.model

    def most(self, request: ChatRequest) -> Usage:
        """Bytes are the one safe count of tokens from outside: byte-level tokenizers make one of each byte they have no
        word for, and those of several providers one of each digit and of rare letters, so that no text has two bytes to
        a token for certain. The provider says only afterwards what it counted.
        """
        call = self._call(request)
        parts = len(call.messages) + len(call.tools) + sum(len(message.tool_calls) for message in call.messages)
        input_tokens = input_bytes(call) + MESSAGE_TOKENS * parts + PREAMBLE_TOKENS
        return self._price.of(input_tokens, call.max_output_tokens)

    def complete(self, request: ChatRequest) -> Answer:
        most = self.most(request)
        return request.payer.pay(most, lambda: self._answer(self._call(request), most))

    def _answer(self, call: Call, most: Usage) -> Answer:
        try:
            reply = self._client.ask(Order(0, call=call), call.timeout_s)
        except AnswerLostError as error:
            raise error.costing(most) from None
        if reply.failure is not None:
            raise failures.unpacked(reply.failure)
        assert reply.answer is not None
        return reply.answer

    def _call(self, request: ChatRequest) -> Call:
        call = call_of(request, self._route)
        limit = self._max_output_tokens or call.max_output_tokens
        temperature = call.temperature if call.temperature is not None else self._temperature
        return replace(call, max_output_tokens=min(limit, call.max_output_tokens), temperature=temperature)
