"""What the search and the provider process say to each other: records as JSON behind their length in four bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import StrEnum

from agents.chat import Answer, ChatRequest, Message, Tool, ToolCall, Usage
from gristmill import records

MAX_FRAME_BYTES = 64 << 20
PREFIX = struct.Struct(">I")
READY = 0
"""The number of the reply that says that the process takes orders, or why it can't."""


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, at their dearest tier."""

    usd_per_input_token: float
    usd_per_output_token: float

    def of(self, input_tokens: int, output_tokens: int) -> Usage:
        usd = input_tokens * self.usd_per_input_token + output_tokens * self.usd_per_output_token
        return Usage(input_tokens, output_tokens, usd)


@dataclass(frozen=True)
class Route:
    """Which model answers, and where it is."""

    model: str
    """As litellm names it, e.g. `openai/gpt-5`."""
    api_base: str = ""
    """Empty: the provider's own. Given, no key goes there but that of `key_variable`."""
    key_variable: str = ""
    """The variable whose value is the key; empty: the provider's usual one."""
    price: Price | None = None
    """Of the configuration, instead of litellm's."""


@dataclass(frozen=True)
class WireTool:
    """A `Tool` whose schema is text, since records hold no free-form JSON."""

    name: str
    description: str
    parameters_json: str


@dataclass(frozen=True)
class Call:
    """A `ChatRequest` and who is to answer it."""

    route: Route
    messages: tuple[Message, ...]
    tools: tuple[WireTool, ...]
    max_output_tokens: int
    temperature: float | None
    timeout_s: float


@dataclass(frozen=True)
class Order:
    """From the search. Exactly one of the three is given."""

    id: int
    call: Call | None = None
    price_of: Route | None = None
    cancelled: bool = False
    """Nobody waits for the order of this number any more."""


class Fault(StrEnum):
    """Which `ModelError` it is."""

    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"


@dataclass(frozen=True)
class Failure:
    """A `ModelError` on its way."""

    fault: Fault
    message: str
    retry_after_s: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Reply:
    """From the provider process, once per order, and one numbered `READY` before all of them."""

    id: int
    answer: Answer | None = None
    failure: Failure | None = None
    price: Price | None = None
    """None for a model that litellm has no price of."""


def frame(message: Order | Reply) -> bytes:
    """The bytes of a message, length included."""
    content = records.canonical_json(message)
    return PREFIX.pack(len(content)) + content


def call_of(request: ChatRequest, route: Route) -> Call:
    """A request as it is sent: text that UTF-8 cannot hold is replaced."""
    return Call(
        route=route,
        messages=tuple(_clean_message(message) for message in request.messages),
        tools=tuple(_wire_tool(tool) for tool in request.tools),
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        timeout_s=request.timeout_s,
    )


def clean(text: str) -> str:
    """The text with ? for lone surrogates and NUL: what any file and database takes, and no longer than before."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def input_bytes(call: Call) -> int:
    """Size of all that a model reads of a call."""
    texts = [text for tool in call.tools for text in (tool.name, tool.description, tool.parameters_json)]
    for message in call.messages:
        texts += [message.text, *(part for one in message.tool_calls for part in (one.name, one.arguments))]
    return sum(len(text.encode()) for text in texts)


def _clean_message(message: Message) -> Message:
    return Message(
        message.role,
        clean(message.text),
        tuple(ToolCall(clean(one.id), clean(one.name), clean(one.arguments)) for one in message.tool_calls),
        clean(message.tool_call_id),
    )


def _wire_tool(tool: Tool) -> WireTool:
    return WireTool(clean(tool.name), clean(tool.description), clean(json.dumps(tool.parameters)))
