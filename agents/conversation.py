"""A conversation: one episode's talk with a model, paid for from the budget and written down as it goes."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agents.chat import Answer, ChatModel, ChatRequest, Message, Payer, Role, Tool, ToolCall, Usage
from agents.episode import ModelTurn, Outcome, Step, ToolTurn
from agents.errors import BudgetSpentError, ModelError
from agents.payment import Payment
from agents.quotation import clipped, printable
from agents.spending import Budget
from kernels.candidate import Candidate

MAX_CHARACTERS = 400_000
"""Of all that is sent again with each turn."""
MAX_ANSWER = 60_000
"""Of an answer, as it is sent back with the next turn."""


MAX_SHOWN = 1_000
"""Of arguments that are no JSON or too long, likewise."""
PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names and ids that every provider takes."""


@dataclass(frozen=True)
class ChatSettings:
    """How a model is asked."""

    max_output_tokens: int = 16_384
    temperature: float | None = None
    timeout_s: float = 300.0
    max_prompt_characters: int = 120_000
    """Of the first turn. Some three to four make a token."""


@dataclass(frozen=True)
class Ending:
    """How an episode ended."""

    outcome: Outcome
    reason: str
    """One line."""
    candidates: tuple[Candidate, ...] = ()


class Conversation:
    """Grows by what is said. Not thread-safe: one thread leads it."""

    def __init__(
        self,
        model: ChatModel,
        budget: Budget,
        settings: ChatSettings,
        opening: tuple[Message, ...],
        purpose: str,
        redact: Callable[[str], str],
    ) -> None:
        """
        Args:
            purpose: what a ledger says of its calls.
            redact: applied to what a provider says when it fails.
        """
        self._model = model
        self._budget = budget
        self._settings = settings
        self._purpose = purpose
        self._redact = redact
        self._messages = list(opening)
        self._unanswered = list(opening)
        self._call_ids: set[str] = set()
        self.steps: list[Step] = []
        self.usage = Usage()
        self.answered_by = ""
        """The model that gave the last answer."""

    @property
    def is_too_long(self) -> bool:
        """Whether another turn would cost more than it can be worth."""
        arguments = (len(call.arguments) for message in self._messages for call in message.tool_calls)
        return sum(len(message.text) for message in self._messages) + sum(arguments) > MAX_CHARACTERS

    def ask(self, tools: tuple[Tool, ...] = ()) -> Answer:
        """The model's next answer, as it came but for the ids of its calls, which are made unique.

        What each call may cost is set aside first. If this process dies during one, that stays set aside; however else
        this ends, nothing does.

        Raises:
            BudgetSpentError: it was not asked, or not asked again after calls that failed.
            ModelError: it did not answer. What that cost is settled.
        """
        payment = Payment(self._budget, self._purpose)
        started_ms = now_ms()
        try:
            answer = self._model.complete(self._request(tools, payment))
        except (BudgetSpentError, ModelError) as error:
            spent = payment.close()
            if isinstance(error, ModelError) or spent != Usage():
                self._write_down(started_ms, None, spent, self._redact(str(error)))
            raise
        finally:
            payment.close()
        answer = replace(answer, tool_calls=self._numbered(answer.tool_calls))
        self.answered_by = answer.model
        self._write_down(started_ms, answer, payment.close())
        calls = tuple(_sendable(call) for call in answer.tool_calls)
        self._messages.append(Message(Role.ASSISTANT, clipped(printable(answer.text), MAX_ANSWER), calls))
        return answer

    def tell(self, text: str) -> None:
        """What the user says next."""
        self._add(Message(Role.USER, printable(text)))

    def return_result(self, call: ToolCall, result: str, started_ms: int) -> None:
        """What a tool says to a call of the last answer."""
        result = printable(result)
        self._add(Message(Role.TOOL, result, tool_call_id=call.id))
        duration_s = (now_ms() - started_ms) / 1e3
        turn = ToolTurn(started_ms, printable(call.name), printable(call.arguments), result, duration_s)
        self.steps.append(Step(tool=turn))

    def _request(self, tools: tuple[Tool, ...], payer: Payer) -> ChatRequest:
        one = self._settings
        messages = tuple(self._messages)
        return ChatRequest(messages, tools, one.max_output_tokens, one.temperature, one.timeout_s, payer)

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._unanswered.append(message)

    def _numbered(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The calls with ids that no other call of the conversation has: some servers give none."""
        ids = []
        for call in calls:
            fresh = PLAIN.fullmatch(call.id) and call.id not in self._call_ids
            made = (f"call_{number}" for number in itertools.count(len(self._call_ids)))
            ids.append(call.id if fresh else next(name for name in made if name not in self._call_ids))
            self._call_ids.add(ids[-1])
        return tuple(replace(call, id=name) for call, name in zip(calls, ids, strict=True))

    def _write_down(self, started_ms: int, answer: Answer | None, usage: Usage, error: str = "") -> None:
        if answer is not None:
            calls = tuple(
                ToolCall(call.id, printable(call.name), printable(call.arguments)) for call in answer.tool_calls
            )
            answer = replace(answer, text=printable(answer.text), tool_calls=calls)
        self.steps.append(Step(model=ModelTurn(started_ms, tuple(self._unanswered), answer, error)))
        self._unanswered = []
        self.usage += usage


def _sendable(call: ToolCall) -> ToolCall:
    """The call as a provider takes it back: a plain name, and arguments that are a JSON object of moderate size."""
    name = call.name if PLAIN.fullmatch(call.name) else "unknown"
    arguments = printable(call.arguments) or "{}"
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # escapes may spell halves of characters
        whole = isinstance(value, dict) and len(arguments) <= MAX_ANSWER
    except (ValueError, RecursionError):
        whole = False
    return ToolCall(call.id, name, arguments if whole else json.dumps({"shortened": clipped(arguments, MAX_SHOWN)}))


def now_ms() -> int:
    """Since the epoch."""
    return time.time_ns() // 1_000_000
