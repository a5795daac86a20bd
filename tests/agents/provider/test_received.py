from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chat import ChatRequest, Finish, Message, Role, ToolCall, Usage
from agents.provider import received
from agents.provider.received import MAX_TOOL_CALLS, Received
from agents.provider.wire import Call, Price, Route, call_of

PRICE = Price(1e-6, 1e-5)


def call(prompt: str = "x" * 300) -> Call:
    return call_of(ChatRequest((Message(Role.USER, prompt),), max_output_tokens=1000), Route("m", price=PRICE))


def chunk(content: str | None = None, finish: str | None = None, usage: Any = None, **delta: Any) -> Any:
    said = SimpleNamespace(content=content, **{"tool_calls": None, **delta})
    return SimpleNamespace(choices=[SimpleNamespace(delta=said, finish_reason=finish)], usage=usage)


def part(index: int, name: str | None, arguments: str | None, id: str | None = None) -> Any:
    return SimpleNamespace(index=index, id=id, function=SimpleNamespace(name=name, arguments=arguments))


def of(*chunks: Any, hidden_output: bool = False) -> Received:
    taken = Received(call(), hidden_output)
    for one in chunks:
        taken.take(one)
    return taken


@given(st.lists(st.text(max_size=40), max_size=30), st.integers(0, 200))
def test_the_text_is_that_of_the_pieces_up_to_the_bound(pieces: list[str], bound: int) -> None:
    whole, kept = "".join(pieces), received.MAX_ANSWER_BYTES
    received.MAX_ANSWER_BYTES = bound
    try:
        taken = of(*map(chunk, pieces))
        text = taken.answer(0.0).text
    finally:
        received.MAX_ANSWER_BYTES = kept
    assert len(text.encode()) <= bound
    assert taken.full == (len(whole.encode()) > bound)
    if not taken.full:
        assert text == whole.replace("\0", "?")


def test_calls_that_arrive_interleaved_are_put_together() -> None:
    taken = of(
        chunk(tool_calls=[part(1, "b", "{", "two")]),
        chunk(tool_calls=[part(0, "a", "[", "one"), part(1, None, "}")]),
        chunk(tool_calls=[part(0, None, "]")], finish="stop"),
    )
    answer = taken.answer(0.0)
    assert answer.tool_calls == (ToolCall("one", "a", "[]"), ToolCall("two", "b", "{}"))
    assert answer.finish is Finish.TOOLS


def test_there_is_an_end_to_tool_calls() -> None:
    taken = of(*(chunk(tool_calls=[part(index, "a", "")]) for index in range(MAX_TOOL_CALLS + 1)))
    assert taken.full and len(taken.answer(0.0).tool_calls) == MAX_TOOL_CALLS


def test_there_is_an_end_to_thoughts() -> None:
    thought = chunk(reasoning_content="y" * (received.MAX_ANSWER_BYTES // 2))
    assert not of(thought, thought).full
    taken = of(thought, thought, chunk(reasoning_content="y"))
    assert taken.full and taken.answer(0.0).finish is Finish.LENGTH
    assert taken.usage().output_tokens == -(-(received.MAX_ANSWER_BYTES + 1) // 3)


def test_a_stream_is_whole_when_it_says_why_it_ended() -> None:
    assert not of(chunk("a")).whole
    assert of(chunk("a", "stop")).whole


@given(st.lists(st.text(max_size=10), max_size=4), st.lists(st.text(max_size=10), max_size=4))
def test_a_refusal_is_one_whatever_stands_beside_it(texts: list[str], refusals: list[str]) -> None:
    taken = Received(call(), hidden_output=False)
    for one in [*(chunk(refusal=piece) for piece in refusals), *map(chunk, texts), chunk(finish="stop")]:
        taken.overhear(one)
        taken.take(one)
    answer = taken.answer(0.0)
    assert (answer.finish is Finish.REFUSED) == any(refusals)
    assert answer.text == ("".join(texts) or "".join(refusals)).replace("\0", "?")


def test_chunks_of_any_shape_are_overheard() -> None:
    taken = Received(call(), hidden_output=False)
    for one in ("text", None, SimpleNamespace(choices=None), SimpleNamespace(choices=[SimpleNamespace()]), object()):
        taken.overhear(one)
    assert not taken.whole


def test_the_servers_own_word_for_the_end_counts_before_that_of_litellm() -> None:
    taken = of(chunk("a", "stop"))
    taken.overhear(chunk(finish="MAX_TOKENS"))
    assert taken.answer(0.0).finish is Finish.LENGTH


def test_a_chunk_without_choices_only_reports() -> None:
    usage = SimpleNamespace(prompt_tokens=7, completion_tokens=11)
    taken = of(chunk("a", "stop"), SimpleNamespace(choices=[], usage=usage))
    assert taken.usage() == PRICE.of(7, 11)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ((-5, -7), PRICE.of(100, 30)),
        ((10**30, 1), PRICE.of(100, 30)),
        ((7, 1 << 60), PRICE.of(7, 30)),
        ((None, None), PRICE.of(100, 30)),
        ((0, 0), PRICE.of(100, 30)),
        ((7, 0), PRICE.of(7, 30)),
        ((0, 50), PRICE.of(100, 50)),
    ],
)
def test_counts_that_cannot_be_are_estimated(told: tuple[Any, Any], usage: Usage) -> None:
    reported = SimpleNamespace(prompt_tokens=told[0], completion_tokens=told[1])
    assert of(chunk("y" * 90), chunk(finish="stop", usage=reported)).usage() == usage


def test_an_answer_of_nothing_took_no_tokens() -> None:
    reported = SimpleNamespace(prompt_tokens=7, completion_tokens=0)
    assert of(chunk(finish="stop", usage=reported)).usage() == PRICE.of(7, 0)


def test_what_was_counted_before_the_end_is_the_least_that_was_billed() -> None:
    begun = SimpleNamespace(prompt_tokens=7, completion_tokens=1)
    assert of(chunk("y" * 90, usage=begun)).usage() == PRICE.of(7, 30)
    later = SimpleNamespace(prompt_tokens=7, completion_tokens=50)
    assert of(chunk("y" * 90, usage=later)).usage() == PRICE.of(7, 50)


def test_what_broke_off_is_estimated_from_what_came() -> None:
    assert of(chunk("y" * 90)).usage() == PRICE.of(100, 30)
    assert of(chunk("y" * 60, reasoning_content="z" * 30)).usage() == PRICE.of(100, 30)


def test_where_a_model_may_have_thought_unseen_all_of_its_output_counts() -> None:
    assert of(chunk("y" * 90), hidden_output=True).usage() == PRICE.of(100, 1000)
