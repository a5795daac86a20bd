from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agents.chat import Answer, ChatRequest, Finish, Message, Role, Tool, ToolCall, Usage
from agents.provider.wire import PREFIX, Order, Reply, Route, call_of, clean, frame, input_bytes
from gristmill import records

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
"""With lone surrogates, which no encoding takes."""
CALLS = st.lists(st.builds(ToolCall, ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=3).map(tuple)
MESSAGES = st.builds(Message, st.sampled_from(Role), ANY_TEXT, CALLS, ANY_TEXT)
TOOLS = st.builds(Tool, ANY_TEXT, ANY_TEXT, st.dictionaries(ANY_TEXT, st.none() | ANY_TEXT | st.integers()))
REQUESTS = st.builds(
    ChatRequest, st.lists(MESSAGES, max_size=4).map(tuple), st.lists(TOOLS, max_size=2).map(tuple), st.integers(1, 9999)
)


@given(REQUESTS)
def test_any_request_passes_and_what_utf8_can_hold_is_not_changed(request: ChatRequest) -> None:
    call = call_of(request, Route("m"))
    content = frame(Order(7, call=call))
    assert PREFIX.unpack(content[: PREFIX.size]) == (len(content) - PREFIX.size,)
    arrived = records.parse(Order, content[PREFIX.size :])
    assert arrived == Order(7, call=call)
    for sent, came in zip(request.messages, call.messages, strict=True):
        assert came.text == clean(sent.text)
    for tool, came_tool in zip(request.tools, call.tools, strict=True):
        assert isinstance(json.loads(came_tool.parameters_json), dict) and came_tool.name == clean(tool.name)
    assert input_bytes(call) >= sum(len(message.text.encode()) for message in call.messages)


@given(st.text())
def test_clean_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text.replace("\0", "?")


@given(ANY_TEXT)
def test_cleaned_text_is_clean(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\0" not in cleaned and len(cleaned) == len(text) and clean(cleaned) == cleaned


def test_an_answer_passes_whole() -> None:
    answer = Answer("m", "text\u2028", (ToolCall("a", "b", "c"),), Finish.TOOLS, Usage(1, 2, 0.5), 1.5)
    assert records.parse(Reply, frame(Reply(3, answer=answer))[PREFIX.size :]) == Reply(3, answer=answer)
