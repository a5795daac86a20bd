"""A server on loopback that speaks the OpenAI protocol as it is told to: streamed answers, and all that can go wrong.

with OpenAIServer([Behaviour("hello"), Behaviour(status=429, retry_after_s=2)]) as server:
    ...  # server.url is the api_base; server.requests are the bodies that came
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

MAX_BODY_BYTES = 64 << 20
POLL_S = 0.01
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True)
class Behaviour:
    """What one request gets."""

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """Name, and arguments as they are sent: JSON or not."""
    finish: str = ""
    """Empty: `tool_calls` where there are some, or else `stop`."""
    refusal: str = ""
    delay_s: float = 0.0
    """Before the first byte."""
    waits_for: int = 0
    """It waits until so many requests have been there at once."""
    pause_s: float = 0.0
    """Before each piece."""
    pieces: int = 4
    """Into how many parts the text and the arguments are cut."""
    status: int = 200
    retry_after_s: float | None = None
    message: str = "as scripted"
    """Of an error."""
    usage: bool = True
    """Whether the tokens are reported at the end."""
    breaks_after: int | None = None
    """Pieces after which the connection is cut."""
    ends_after: int | None = None
    """Pieces after which the stream ends as if it were whole, without a reason to finish."""
    raw: bytes | None = None
    """Sent as the whole body of the stream, instead of all of the above."""


Script = Behaviour | Iterable[Behaviour] | Callable[[Mapping[str, Any]], Behaviour]


class OpenAIServer:
    """Runs on a thread of its own, on a free port. A list of behaviours is worked off; its last one then stays."""

    def __init__(self, script: Script = Behaviour("as scripted")) -> None:
        self._script = script if callable(script) else _worked_off(script)
        self.requests: list[dict[str, Any]] = []
        """Bodies of all requests so far."""
        self.headers: list[dict[str, str]] = []
        """Theirs, with names in lower case."""
        self.open_requests = 0
        self.most_open_requests = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="OpenAI server", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        self._server = self._done(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=512))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """What clients take as `api_base`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def _done(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _stop(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection is good for another."""
        head = await reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        size = int(headers.get("content-length", "0"))
        if size > MAX_BODY_BYTES:
            return False
        request = json.loads(await reader.readexactly(size))
        self.requests.append(request)
        self.headers.append(headers)
        self.open_requests += 1
        self.most_open_requests = max(self.most_open_requests, self.open_requests)
        try:
            behaviour = self._script(request)
            while self.most_open_requests < behaviour.waits_for:
                await asyncio.sleep(POLL_S)
            return await _respond(behaviour, request, writer)
        finally:
            self.open_requests -= 1


def _worked_off(script: Behaviour | Iterable[Behaviour]) -> Callable[[Mapping[str, Any]], Behaviour]:
    behaviours = [script] if isinstance(script, Behaviour) else list(script)

    def say(request: Mapping[str, Any]) -> Behaviour:
        return behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]

    return say


async def _respond(behaviour: Behaviour, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(behaviour.delay_s)
    if behaviour.status != 200 or not request.get("stream"):
        _write_error(behaviour, writer)
        await writer.drain()
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    sent = 0
    async for content in _body(behaviour, request):
        if behaviour.breaks_after == sent:
            writer.transport.abort()
            return False
        if behaviour.ends_after == sent:
            break
        await asyncio.sleep(behaviour.pause_s)
        writer.write(b"%x\r\n%s\r\n" % (len(content), content))
        await writer.drain()
        sent += 1
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _write_error(behaviour: Behaviour, writer: asyncio.StreamWriter) -> None:
    status = behaviour.status if behaviour.status != 200 else 400
    content = json.dumps({"error": {"message": behaviour.message, "type": "scripted", "code": str(status)}}).encode()
    retry = f"retry-after: {behaviour.retry_after_s:g}\r\n" if behaviour.retry_after_s is not None else ""
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\ncontent-type: application/json\r\n{retry}"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)


async def _body(behaviour: Behaviour, request: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The pieces of a stream, each an event or more."""
    if behaviour.raw is not None:
        yield behaviour.raw
        return
    model = request.get("model", "")
    for delta in _deltas(behaviour):
        yield _event(model, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    finish = behaviour.finish or ("tool_calls" if behaviour.tool_calls else "stop")
    yield _event(model, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if behaviour.usage:
        yield _event(model, {"choices": [], "usage": _usage(behaviour, request)})
    yield b"data: [DONE]\n\n"


def _deltas(behaviour: Behaviour) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _cut(behaviour.text, behaviour.pieces)]
    deltas += [{"refusal": piece} for piece in _cut(behaviour.refusal, behaviour.pieces)]
    for index, (name, arguments) in enumerate(behaviour.tool_calls):
        head = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for piece in _cut(arguments, behaviour.pieces):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def _cut(text: str, pieces: int) -> list[str]:
    size = max(-(-len(text) // pieces), 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _event(model: str, content: Mapping[str, Any]) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, **content}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _usage(behaviour: Behaviour, request: Mapping[str, Any]) -> dict[str, int]:
    """A token is four characters here."""
    read = sum(len(message.get("content") or "") for message in request.get("messages", ()))
    written = len(behaviour.text) + sum(len(arguments) for _, arguments in behaviour.tool_calls)
    counts = {"prompt_tokens": read // 4 + 1, "completion_tokens": written // 4 + 1}
    return {**counts, "total_tokens": sum(counts.values())}
