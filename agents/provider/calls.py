"""One call of a provider through litellm: streamed, so that an answer that breaks off is noticed and counted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from agents.chat import Answer, Message, Role, ToolCall
from agents.errors import ModelError, ModelUnavailableError, RequestRefusedError
from agents.provider import failures
from agents.provider.received import MAX_ANSWER_BYTES, Received
from agents.provider.wire import Call, Route

KEY_NAME = re.compile(r"\w*(KEY|TOKEN|TOKEN_BEDROCK)")
"""Of variables whose values are keys; others hold addresses and places, which may be words of any program."""
LEAST_KEY = 16
"""Characters of the shortest key; what is shorter stands in for one where a server wants some."""
NO_KEY = "none"
"""Sent where a server wants some key and none is meant for it."""


def prepare() -> None:
    """Imports litellm, mute and alone: no telemetry, no price map or tokenizer from the network, no log.

    Raises:
        ImportError: the environment does not hold it.
    """
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"  # it would read a .env file otherwise
    os.environ["LITELLM_LOG"] = "CRITICAL"
    os.environ["REPEATED_STREAMING_CHUNK_LIMIT"] = str(
        MAX_ANSWER_BYTES
    )  # a model that repeats itself ends at its limit
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.disable_hf_tokenizer_download = True
    litellm.drop_params = True


async def complete(call: Call, secrets: Mapping[str, str]) -> Answer:
    """Makes the call. `secrets` are the keys and addresses of providers, by variable: no message holds any, and no
    answer a key.

    Raises:
        ModelError: there is no whole answer; `usage` says what was billed nevertheless.
    """
    import litellm

    model = call.route.model
    received = Received(call, hidden_output=_thinks(model))
    started = time.monotonic()
    stream: Any = None
    try:
        async with asyncio.timeout(call.timeout_s):
            stream = await litellm.acompletion(**_arguments(call))
            if stream is None:  # litellm's word for a 422 that leaving parameters out did not mend
                raise RequestRefusedError(f"{model}: the provider does not accept the request's parameters")
            _overheard(stream, received)
            async for chunk in stream:
                received.take(chunk)
                if received.full:
                    break
    except ModelError:
        raise
    except TimeoutError:
        message = f"{model}: no whole answer within {call.timeout_s:g} s"
        raise ModelUnavailableError(message, received.usage()) from None
    except Exception as error:  # litellm lets all that its many providers raise through
        raise _failed(error, call, received, stream is not None, secrets) from None
    finally:
        if stream is not None:
            await _closed(stream)
    if not received.whole or (_was_cut(stream) and not received.full):
        raise ModelUnavailableError(f"{model}: the answer broke off", received.usage())
    return without_keys(received.answer(time.monotonic() - started), secrets)


def without_keys(answer: Answer, secrets: Mapping[str, str]) -> Answer:
    """The answer with every key blotted out: what a server repeats of them must not become a program, or get into a
    record, and only this process knows their values.
    """
    keys = sorted((v for name, v in secrets.items() if KEY_NAME.fullmatch(name) and len(v) >= LEAST_KEY), key=len)

    def clear(text: str) -> str:
        for key in reversed(keys):
            text = text.replace(key, failures.BLOT)
        return text

    calls = tuple(ToolCall(clear(one.id), clear(one.name), clear(one.arguments)) for one in answer.tool_calls)
    return replace(answer, text=clear(answer.text), tool_calls=calls)


def _failed(
    error: Exception, call: Call, received: Received, answering: bool, secrets: Mapping[str, str]
) -> ModelError:
    """A time-out is billed as far as it went: the provider worked on it. So is a stream that broke."""
    import litellm

    worked = answering or isinstance(error, litellm.Timeout)
    return failures.translated(error, call.route.model, received.usage() if worked else None, secrets)


def _overheard(stream: Any, received: Received) -> None:
    """Lets `received` see each chunk before litellm does, of providers whose chunks litellm passes through."""
    if isinstance(getattr(stream, "completion_stream", None), AsyncIterable):
        stream.completion_stream = _Overheard(stream.completion_stream, received)


class _Overheard:
    """A provider's stream with a listener."""

    def __init__(self, stream: Any, received: Received) -> None:
        self._stream = stream
        self._chunks = aiter(stream)
        self._received = received

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        self._received.overhear(chunk)
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


async def _closed(stream: Any) -> None:
    """Ends the connection, so that the provider stops to write what nobody reads."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def _was_cut(stream: Any) -> bool:
    """litellm ends a stream that broke off with a `stop` of its own, for some providers; here it says what it got."""
    got = ("received_finish_reason", "intermittent_finish_reason", "received_any_finish_reason")
    return all(hasattr(stream, name) and not getattr(stream, name) for name in got)


def _arguments(call: Call) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": call.route.model,
        "messages": [_message(message) for message in call.messages],
        "max_tokens": call.max_output_tokens,
        "timeout": call.timeout_s,
        "stream": True,
        "stream_options": {"include_usage": True},
        "num_retries": 0,
        "max_retries": 0,
        **_destination(call.route),
    }
    if call.temperature is not None:
        arguments["temperature"] = call.temperature
    if call.tools:
        arguments["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": json.loads(tool.parameters_json),
                },
            }
            for tool in call.tools
        ]
    return arguments


def _destination(route: Route) -> dict[str, str]:
    key = os.environ.get(route.key_variable, NO_KEY) if route.key_variable else NO_KEY
    if route.api_base:
        return {"api_base": route.api_base, "api_key": key}
    return {"api_key": key} if route.key_variable else {}


def _message(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": str(message.role), "content": message.text}
    if message.role is Role.TOOL:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in message.tool_calls
        ]
    return said


def _thinks(model: str) -> bool:
    import litellm

    return bool(litellm.supports_reasoning(model))
