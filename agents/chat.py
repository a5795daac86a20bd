"""The seam between an agent and a language model: one blocking question, and who pays for the calls that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True)
class ToolCall:
    """A model asks for a tool."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it: not validated, possibly none at all."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    tool_call_id: str = ""
    """Of a tool's answer: which call it answers."""


@dataclass(frozen=True)
class Tool:
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of an object."""


class Finish(StrEnum):
    """Why an answer ended."""

    DONE = "done"
    TOOLS = "tools"
    """It waits for the answers to its tool calls."""
    LENGTH = "length"
    """It was cut off at the limit of output tokens."""
    REFUSED = "refused"
    """By the provider's filter or by the model itself, where it says so."""


@dataclass(frozen=True)
class Usage:
    """What a call cost, or may cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.usd + other.usd
        )


class Payer(Protocol):
    """Pays for calls of providers."""

    def pay(self, most: Usage, call: Callable[[], Answer]) -> Answer:
        """Makes one call: `most`, which it may cost, is set aside before it, and settled after it.

        Raises:
            BudgetSpentError: that passes a cap; the call was not made.
            ModelError: of the call.
        """
        ...


class Nobody:
    """Pays for calls that cost nothing, or that nobody counts."""

    def pay(self, most: Usage, call: Callable[[], Answer]) -> Answer:
        return call()


@dataclass(frozen=True)
class ChatRequest:
    """One question. Which model answers, and in how many calls, is the `ChatModel`'s matter."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_output_tokens: int = 8192
    temperature: float | None = None
    """None: the provider's own."""
    timeout_s: float = 300.0
    payer: Payer = field(default=Nobody(), compare=False, repr=False)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    model: str
    """That answered, e.g. `anthropic/claude-...`: with fallbacks not always the first one."""
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish: Finish
    usage: Usage
    latency_s: float


class ChatModel(Protocol):
    """A language model. Thread-safe: a swarm calls it from many threads at once."""

    @property
    def name(self) -> str:
        """Stands in the origin of candidates."""
        ...

    def most(self, request: ChatRequest) -> Usage:
        """An upper bound of what any one of its calls can cost: what is set aside for each."""
        ...

    def complete(self, request: ChatRequest) -> Answer:
        """Blocks until the answer is whole. Each call of a provider that costs anything is made by the request's payer.

        Raises:
            ModelError: there is none; see its subclasses. Its `usage` says what it cost nevertheless.
            BudgetSpentError: a call that was needed passes a cap. What calls before it cost is settled.
        """
        ...
