"""Every token of every request is in one step, and no step breaks a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import TraceError
from kernels.imports.batching import Batching, Limits
from kernels.imports.request_traces import TracedRequest

MS = 1_000_000


def request(arrival_ms: int, prompt: int, generated: int, cached: int = 0) -> TracedRequest:
    return TracedRequest(arrival_ms * MS, prompt, generated, min(cached, prompt - 1))


traces = st.lists(
    st.builds(request, st.integers(0, 300), st.integers(1, 60), st.integers(0, 12), st.integers(0, 70)), max_size=25
).map(sorted)
limits = st.builds(
    lambda sequences, more, chunked: Limits(sequences + more, sequences, chunked, 5 * MS, MS // 10),
    st.integers(1, 6),
    st.integers(0, 40),
    st.booleans(),
)


@given(traces, limits)
def test_every_token_is_in_one_step(requests: list[TracedRequest], limit: Limits) -> None:
    steps = list(Batching(limit).steps(requests))
    read = sum(one.prompt_tokens - one.cached_tokens for one in requests)
    assert sum(chunk for step in steps for chunk, _ in step.chunks) == read
    assert sum(step.decodes for step in steps) == sum(max(0, one.generated_tokens - 1) for one in requests)
    attended = sum(sum(range(one.prompt_tokens + 1, one.prompt_tokens + one.generated_tokens)) for one in requests)
    assert sum(step.context_tokens for step in steps) == attended
    chunks = [chunk for step in steps for chunk in step.chunks]
    for one in requests:  # prompts are read one after the other
        reached = one.cached_tokens
        while reached < one.prompt_tokens:
            chunk, before = chunks.pop(0)
            assert before == reached
            reached += chunk
        assert reached == one.prompt_tokens
    assert chunks == []


@given(traces, limits)
def test_no_step_breaks_a_limit(requests: list[TracedRequest], limit: Limits) -> None:
    now_ns = 0
    for step in Batching(limit).steps(requests):
        assert step.start_ns >= now_ns
        assert step.tokens > 0
        assert step.length_ns == limit.step_ns + step.tokens * limit.token_ns
        assert step.decodes + len(step.chunks) <= limit.max_sequences
        if limit.chunked:
            assert step.tokens <= limit.max_tokens
        else:
            assert not (step.decodes and step.chunks)
            assert step.tokens <= limit.max_tokens or len(step.chunks) == 1
        now_ns = step.start_ns + step.length_ns


def test_decoding_and_reading_share_a_step() -> None:
    limit = Limits(max_tokens=10, max_sequences=4, step_ns=MS, token_ns=0)
    steps = list(Batching(limit).steps([request(0, 4, 3), request(0, 12, 2)]))
    assert [(step.decodes, step.context_tokens, step.chunks) for step in steps] == [
        (0, 0, ((4, 0), (6, 0))),
        (1, 5, ((6, 6),)),
        (2, 6 + 13, ()),
    ]  # the first ends in the third step, and so does the second


def test_prompts_that_are_not_cut_go_first() -> None:
    limit = Limits(max_tokens=10, max_sequences=4, chunked=False, step_ns=MS, token_ns=0)
    steps = list(Batching(limit).steps([request(0, 4, 3), request(0, 12, 2)]))
    assert [(step.decodes, step.chunks) for step in steps] == [(0, ((4, 0),)), (0, ((12, 0),)), (2, ()), (1, ())]


def test_an_idle_engine_waits_and_a_late_one_queues() -> None:
    limit = Limits(max_tokens=8, max_sequences=1, step_ns=10 * MS, token_ns=0)
    batching = Batching(limit)
    steps = list(batching.steps([request(0, 2, 1), request(1000, 2, 3), request(1001, 2, 1), request(1002, 2, 1)]))
    assert [step.start_ns // MS for step in steps] == [0, 1000, 1010, 1020, 1030, 1040]
    assert batching.longest_queue == 2


@pytest.mark.parametrize("fault", [{"max_tokens": 0}, {"max_sequences": 0}, {"step_ns": 0}, {"token_ns": -1}])
def test_limits_that_no_engine_could_keep(fault: dict[str, int]) -> None:
    with pytest.raises(TraceError, match="expected"):
        Limits(**fault)
    with pytest.raises(TraceError, match="one each"):
        Limits(max_tokens=4, max_sequences=5)
