"""Request traces of four kinds: read as they are written, in order, in bounded memory; damage is one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from kernels.imports import request_traces, trace_file
from kernels.imports.request_traces import FORMATS, PrefixCache, Reading, TracedRequest, ordered, read

S = 10**9


def traced(seconds: float, prompt: int, generated: int, cached: int = 0) -> TracedRequest:
    return TracedRequest(round(seconds * S), prompt, generated, cached)


def span(start_ns: int, tokens_in: object, tokens_out: object, **attributes: str) -> dict[str, Any]:
    wrapped = [{"key": key.replace("__", "."), "value": {"stringValue": text}} for key, text in attributes.items()]
    counts = {"gen_ai.usage.input_tokens": tokens_in, "gen_ai.usage.output_tokens": tokens_out}
    wrapped += [{"key": key, "value": {"intValue": count}} for key, count in counts.items() if count is not None]
    return {"name": "chat", "startTimeUnixNano": str(start_ns), "endTimeUnixNano": "9", "attributes": wrapped}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 700, "output_length": 1, "hash_ids": [9, 2]}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
46,ChatGPT,417,0,417,Conversation log
118,ChatGPT,1360,647,2007,Conversation log
"""
OTEL = json.dumps(
    export(
        span(2 * S, "20", 2, gen_ai__operation__name="chat", gen_ai__response__model="a"),
        span(S, 10, "5", gen_ai__response__model="b"),
        span(S, "15", "7", gen_ai__operation__name="invoke_agent"),
        span(S, "15", None, gen_ai__operation__name="chat"),
        {"name": "GET /", "startTimeUnixNano": "1"},
    )
)
CORPUS: dict[str, tuple[str, list[TracedRequest], dict[str, int]]] = {
    "azure": (AZURE, [traced(1700158623.97996, 4808, 10), traced(1700158624.03196, 110, 27)], {}),
    "mooncake": (MOONCAKE, [traced(0, 1100, 5), traced(3, 700, 1), traced(3, 1024, 7)], {}),
    "burstgpt": (
        BURSTGPT,
        [traced(5, 472, 18), traced(45.5, 1087, 230), traced(118, 1360, 647)],
        {"that failed": 1},
    ),
    "otel": (OTEL, [traced(1, 10, 5), traced(2, 20, 2)], {"spans of other kinds": 3}),
}


def found(kind: str, path: Path, reading: Reading | None = None) -> list[TracedRequest]:
    return list(read(FORMATS[kind], path, reading or Reading()))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_each_kind_as_it_is_written(kind: str, packed: bool, tmp_path: Path) -> None:
    text, wanted, left_out = CORPUS[kind]
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    reading = Reading()
    for one, expected in zip(found(kind, path, reading), wanted, strict=True):
        assert one.arrival_ns == pytest.approx(expected.arrival_ns, abs=1000)
        assert (one.prompt_tokens, one.generated_tokens) == (expected.prompt_tokens, expected.generated_tokens)
    assert reading.left_out == left_out


@pytest.mark.parametrize(("kind", "model", "count"), [("burstgpt", "ChatGPT", 2), ("otel", "b", 1)])
def test_requests_to_one_model(kind: str, model: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(CORPUS[kind][0])
    reading = Reading(model=model)
    assert len(found(kind, path, reading)) == count
    assert reading.left_out["to other models"] == 1


def test_prompts_that_begin_alike_are_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(MOONCAKE)
    cached = {one.prompt_tokens: one.cached_tokens for one in found("mooncake", path, Reading(cache_tokens=5 * 512))}
    assert cached == {1100: 0, 1024: 1023, 700: 0}, "one token of a prompt is computed, or there is no first token"


def test_a_cache_lets_the_least_recently_used_go() -> None:
    cache = PrefixCache(3)
    assert [cache.held(blocks) for blocks in ([1, 2], [1, 3], [4], [2], [3, 4])] == [0, 1, 0, 0, 2]
    assert PrefixCache(0).held([1, 1]) == 0


def test_spans_of_many_lines_and_of_one_document(tmp_path: Path) -> None:
    batches = [export(span(number * S, "5", "3")) for number in range(4)]
    lines, document = tmp_path / "lines", tmp_path / "document"
    lines.write_text("\n".join(map(json.dumps, batches)))
    resources = [resource for batch in batches for resource in batch["resourceSpans"]]
    document.write_text(json.dumps({"resourceSpans": resources}, indent=2))
    assert found("otel", lines) == found("otel", document) == [traced(number, 5, 3) for number in range(4)]


def test_cached_tokens_of_spans(tmp_path: Path) -> None:
    one = span(S, "50", "3")
    one["attributes"].append({"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": "48"}})
    path = tmp_path / "trace"
    path.write_text(json.dumps(export(one)))
    assert found("otel", path) == [traced(1, 50, 3, 48)]


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n1,2", "GeneratedTokens"),
        ("azure", AZURE + "2023-11-16 18:17:04,x,1\n", "row 4, field ContextTokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        (
            "azure",
            AZURE + "9999-12-31 23:59:59.9,5,1\n",
            "request 3 arrived at 253402300800 s, expected",
        ),
        (
            "azure",
            AZURE + "1960-01-01 00:00:00.0,5,1\n",
            "request 3 arrived at -315619200 s, expected",
        ),
        ("otel", json.dumps(export(span(2**63, "1", "1"))), "expected a time from 1970 to 2262"),
        ("mooncake", '{"timestamp": 1, "input_length": 5}', "output_length"),
        ("mooncake", '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        ("mooncake", AZURE, "row 1: not JSON"),
        ("burstgpt", AZURE, "row 1, field Timestamp"),
        ("burstgpt", BURSTGPT + "-1,ChatGPT,1,1,2,API log\n", "row 6, field Timestamp"),
        ("burstgpt", BURSTGPT + "1,ChatGPT,1\n", "row 6, field Response tokens"),
        ("burstgpt", "\n".join([*BURSTGPT.splitlines()[:1], "46,ChatGPT,417,0,417,log"]), "1 that failed"),
        ("otel", "[1]", "resourceSpans[0]"),
        ("otel", '{"resourceSpans": [{"scopeSpans": 7}]}', "resourceSpans[0]"),
        ("otel", '{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}', "scopeSpans[0].spans[0]"),
        ("otel", json.dumps(export(span(S, "x", "1"))), "gen_ai.usage.input_tokens"),
        ("otel", json.dumps(export({**span(S, "1", "1"), "startTimeUnixNano": "soon"})), "startTimeUnixNano"),
        ("otel", json.dumps(export({"attributes": [{"key": 7}]})), "attributes[0]"),
        ("otel", json.dumps({"spans": []}), "no request"),
    ],
)
def test_damage_is_one_line_that_names_its_place(kind: str, text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        found(kind, path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
@given(place=st.integers(0, 2000), text=st.text(max_size=3))
def test_a_spoiled_trace_is_a_trace_or_one_line(
    kind: str, tmp_path_factory: pytest.TempPathFactory, place: int, text: str
) -> None:
    whole = CORPUS[kind][0]
    place %= len(whole)
    path = tmp_path_factory.getbasetemp() / "spoiled"
    path.write_text(whole[:place] + text + whole[place + len(text) :])
    try:
        requests = found(kind, path)
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= one.cached_tokens < one.prompt_tokens for one in requests)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", gzip.compress(AZURE.encode(), mtime=0)[:-9], b"\x1f\x8b\x08garbage"]
)
def test_files_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    for kind in FORMATS:
        with pytest.raises(TraceError, match="cannot be read"):
            found(kind, path)
        with pytest.raises(TraceError, match="cannot be read"):
            found(kind, tmp_path)


@given(st.permutations(range(12)))
def test_requests_out_of_place_are_put_in_order(order: list[int]) -> None:
    assert list(ordered((traced(place, 1, 1) for place in order), "t")) == [traced(n, 1, 1) for n in range(12)]


def test_too_far_out_of_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_traces, "REORDERED", 2)
    assert len(list(ordered((traced(place, 1, 1) for place in (3, 2, 4, 5)), "t"))) == 4
    with pytest.raises(TraceError, match="sort the file by time"):
        list(ordered((traced(place, 1, 1) for place in (3, 4, 5, 2)), "t"))


def test_a_trace_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first request is there when a part of the file has been read, and progress goes up to all of it."""
    monkeypatch.setattr(request_traces, "REORDERED", 8)
    monkeypatch.setattr(trace_file, "CHUNK_BYTES", 4096)
    path = tmp_path / "trace"
    rows = "".join(f"2023-11-16 18:17:{second:02d}.5,7,7\n" for second in range(60) for _ in range(50))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    told: list[tuple[int, int]] = []
    tell: Callable[[int, int], None] = lambda *progress: told.append(progress)  # noqa: E731
    requests: Iterator[TracedRequest] = read(FORMATS["azure"], path, Reading(), tell)
    next(requests)
    size = path.stat().st_size
    assert told[-1][0] < size / 2
    assert len(list(requests)) == 60 * 50 - 1
    assert told[-1] == (size, size)
