"""Request traces as they come: when requests arrived, how long they were, what of their prompts a cache may have held.

Azure's and BurstGPT's CSV, Mooncake's JSON lines, and OpenTelemetry's spans of generative AI as OTLP JSON (the file
exporter's lines, or one document). No prompt is read: of a span, three attributes are looked at.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill import traces
from gristmill.errors import TraceError
from gristmill.traces import token_count
from kernels.imports import json_stream, trace_file
from kernels.imports.trace_file import Tell, silent

REORDERED = 1 << 16
"""Requests that may stand before one that arrived earlier."""
MAX_ARRIVAL_NS = 1 << 63
"""The year 2262: hosts tell times in 64 bits."""
MOONCAKE_BLOCK = 512
"""Tokens per entry of `hash_ids`, each of which stands for all of the prompt up to there."""
BURSTGPT_FIELDS = ("Timestamp", "Model", "Request tokens", "Response tokens")
GENERATING = ("chat", "text_completion", "generate_content")
"""Operations of spans that are requests to a model. Those of agents contain these, and tell their tokens again."""
MODEL = ("gen_ai.response.model", "gen_ai.request.model")
INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
"""The newer name first."""
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CACHED = ("gen_ai.usage.cache_read.input_tokens",)


@dataclass(frozen=True, order=True)
class TracedRequest:
    """One request of a trace."""

    arrival_ns: int
    """Since 1970, or since the trace began: see `Format.absolute`."""
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that need not be computed; fewer than there are."""


@dataclass
class Reading:
    """How a trace is read, and what was left out of it."""

    model: str = ""
    """Only requests to this one, where the trace names models; empty takes all."""
    cache_tokens: int = 0
    """Tokens that a prefix cache holds, for traces that say which prompts begin alike; 0: there is none."""
    left_out: Counter[str] = field(default_factory=Counter, init=False)
    """Requests by the reason."""


@dataclass(frozen=True)
class Format:
    """One kind of trace."""

    name: str
    summary: str
    absolute: bool
    """Whether it says when it was recorded."""
    requests: Callable[[Path, Reading, Tell], Iterator[TracedRequest]]


def read(kind: Format, path: Path, reading: Reading, tell: Tell = silent) -> Iterator[TracedRequest]:
    """The requests of a trace in order of arrival.

    Raises:
        TraceError: it cannot be read, or holds no request; file, row and field are named.
    """
    number = 0
    for request in ordered(_dated(kind.requests(path, reading, tell), str(path)), str(path)):
        number += 1
        yield request
    if not number:
        out = ", ".join(f"{count} {reason}" for reason, count in reading.left_out.items())
        raise TraceError(f"trace {path}: holds no request that counts" + (f" (left out: {out})" if out else ""))


def _dated(requests: Iterable[TracedRequest], name: str) -> Iterator[TracedRequest]:
    for number, request in enumerate(requests, 1):
        if not 0 <= request.arrival_ns < MAX_ARRIVAL_NS:
            raise TraceError(
                f"trace {name}: request {number} arrived at {request.arrival_ns / 1e9:.0f} s, expected a time from "
                "1970 to 2262"
            )
        yield request


def ordered(requests: Iterable[TracedRequest], name: str) -> Iterator[TracedRequest]:
    """By arrival, with no more than `REORDERED` of them in memory.

    Raises:
        TraceError: one stands further behind its place.
    """
    waiting: list[TracedRequest] = []
    last_ns = -1
    for request in requests:
        if request.arrival_ns < last_ns:
            raise TraceError(
                f"trace {name}: a request that arrived at {request.arrival_ns / 1e9:.3f} s stands more than "
                f"{REORDERED} behind its place; sort the file by time"
            )
        if len(waiting) < REORDERED:
            heapq.heappush(waiting, request)
            continue
        first = heapq.heappushpop(waiting, request)
        last_ns = first.arrival_ns
        yield first
    while waiting:
        yield heapq.heappop(waiting)


class PrefixCache:
    """Which blocks of prompts a cache of so many would hold; the least recently used goes first."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def held(self, hashes: Iterable[int]) -> int:
        """How many of a prompt's first blocks are there; afterwards all of them are, if there is room."""
        found = 0
        known = True
        for block in hashes:
            known = known and block in self._held
            found += known
            self._held[block] = None
            self._held.move_to_end(block)
            if len(self._held) > self._blocks:
                self._held.popitem(last=False)
        return found


def _azure(path: Path, reading: Reading, tell: Tell) -> Iterator[TracedRequest]:
    for request in traces.azure_rows(trace_file.lines(path, tell), str(path)):
        yield TracedRequest(round(request.arrival_s * 1e9), request.prompt_tokens, request.generated_tokens)


def _mooncake(path: Path, reading: Reading, tell: Tell) -> Iterator[TracedRequest]:
    cache = PrefixCache(reading.cache_tokens // MOONCAKE_BLOCK)
    for place, row in traces.json_rows(trace_file.lines(path, tell), str(path)):
        request = traces.mooncake_request(row, place)
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
            raise TraceError(f"{place}, field hash_ids: found {str(hashes)[:60]!r}, expected a list of numbers")
        cached = min(cache.held(hashes) * MOONCAKE_BLOCK, request.prompt_tokens - 1)
        arrival_ns = round(request.arrival_s * 1e9)
        yield TracedRequest(arrival_ns, request.prompt_tokens, request.generated_tokens, cached)


def _burstgpt(path: Path, reading: Reading, tell: Tell) -> Iterator[TracedRequest]:
    for place, row in traces.csv_rows(trace_file.lines(path, tell), str(path), BURSTGPT_FIELDS):
        prompt = token_count(row["Request tokens"], place, "Request tokens", 0)
        generated = token_count(row["Response tokens"], place, "Response tokens", 0)
        arrival_ns = _seconds_ns(row["Timestamp"], place)
        if reading.model and row["Model"] != reading.model:
            reading.left_out["to other models"] += 1
        elif not prompt or not generated:
            reading.left_out["that failed"] += 1
        else:
            yield TracedRequest(arrival_ns, prompt, generated)


def _seconds_ns(text: str | None, place: str) -> int:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e10:
        raise TraceError(f"{place}, field Timestamp: found {text!r}, expected seconds from 0 on")
    return round(seconds * 1e9)


def _otel(path: Path, reading: Reading, tell: Tell) -> Iterator[TracedRequest]:
    documents = json_stream.elements(trace_file.chunks(path, tell), str(path), "resourceSpans")
    for number, resource in enumerate(documents):
        place = f"trace {path}: resourceSpans[{number}]"
        for scope_place, scope in _records(resource, "scopeSpans", place):
            for span_place, span in _records(scope, "spans", scope_place):
                request = _span(span, reading, span_place)
                if request is not None:
                    yield request


def _records(holder: Any, key: str, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a list, which may be missing, and their places."""
    found = holder.get(key, []) if isinstance(holder, dict) else None
    if not isinstance(found, list):
        raise TraceError(f"{place}: found {str(holder)[:60]!r}, expected an object with a list {key}")
    for number, one in enumerate(found):
        if not isinstance(one, dict):
            raise TraceError(f"{place}.{key}[{number}]: found {str(one)[:60]!r}, expected an object")
        yield f"{place}.{key}[{number}]", one


def _span(span: Mapping[str, Any], reading: Reading, place: str) -> TracedRequest | None:
    """The request that a span tells of; None if it is none, or not one that counts."""
    attributes = _attributes(span, place)
    operation = _text(attributes, ("gen_ai.operation.name",), GENERATING[0])
    prompt, generated = _tokens(attributes, INPUT, place), _tokens(attributes, OUTPUT, place)
    if prompt is None or generated is None or operation not in GENERATING:
        reading.left_out["spans of other kinds"] += 1
        return None
    if reading.model and _text(attributes, MODEL, "") != reading.model:
        reading.left_out["to other models"] += 1
        return None
    if not prompt or not generated:
        reading.left_out["that failed"] += 1
        return None
    cached = _tokens(attributes, CACHED, place) or 0
    return TracedRequest(_started_ns(span, place), prompt, generated, min(cached, prompt - 1))


def _attributes(span: Mapping[str, Any], place: str) -> dict[str, Any]:
    """By key, each still in its wrapping (`{"intValue": "5"}`)."""
    found = {}
    for where, one in _records(span, "attributes", place):
        if not isinstance(one.get("key"), str) or not isinstance(one.get("value"), dict):
            raise TraceError(f"{where}: found {str(one)[:60]!r}, expected a key and a value")
        found[one["key"]] = one["value"]
    return found


def _tokens(attributes: Mapping[str, Any], names: Iterable[str], place: str) -> int | None:
    for name in names:
        if name in attributes:
            return token_count(attributes[name].get("intValue"), place, name, 0)
    return None


def _text(attributes: Mapping[str, Any], names: Iterable[str], otherwise: str) -> str:
    for name in names:
        value = attributes.get(name, {}).get("stringValue")
        if isinstance(value, str):
            return value
    return otherwise


def _started_ns(span: Mapping[str, Any], place: str) -> int:
    """64-bit numbers are strings in OTLP JSON; some writers write numbers all the same."""
    found = span.get("startTimeUnixNano")
    text = found if isinstance(found, str) else str(found) if type(found) is int else ""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise TraceError(f"{place}, field startTimeUnixNano: found {found!r}, expected nanoseconds since 1970")
    return int(text)


FORMATS: Mapping[str, Format] = {
    kind.name: kind
    for kind in (
        Format("azure", "Azure LLM inference trace, CSV (TIMESTAMP,ContextTokens,GeneratedTokens)", True, _azure),
        Format(
            "mooncake", "Mooncake trace, JSON lines (timestamp in ms, input_length, output_length)", False, _mooncake
        ),
        Format("burstgpt", "BurstGPT, CSV (Timestamp in s, Model, Request tokens, Response tokens)", False, _burstgpt),
        Format("otel", "OpenTelemetry spans of generative AI, OTLP JSON", True, _otel),
    )
}
"""By name."""
