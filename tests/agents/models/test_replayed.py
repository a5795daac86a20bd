"""Episodes as they were recorded answer the same requests again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.chat import Answer, ChatRequest, Finish, Message, Role, ToolCall, Usage
from agents.episode import Episode, ModelTurn, Outcome, Step
from agents.errors import ModelError, RequestRefusedError
from agents.models.replayed import ReplayedModel
from agents.models.scripted import Line
from tests.agents.models.model_contract import REQUEST, MakeModel, ModelContract

CALL = ToolCall("call_0", "build", "{}")


def answer(text: str, *calls: ToolCall) -> Answer:
    return Answer("m", text, calls, Finish.TOOLS if calls else Finish.DONE, Usage(5, 5, 1.0), 2.0)


def episode(*turns: ModelTurn) -> Episode:
    steps = tuple(Step(model=turn) for turn in turns)
    return Episode("1", "a", "m", "rms_norm", "float32", "", "", (), steps, Outcome.SUBMITTED, "", (), Usage())


def recorded(line: Line) -> Episode:
    if isinstance(line, ModelError):
        return episode(ModelTurn(0, REQUEST.messages, None, str(line)))
    return episode(ModelTurn(0, REQUEST.messages, answer(line) if isinstance(line, str) else line))


class TestReplayedModel(ModelContract):
    @pytest.fixture
    def make(self) -> MakeModel:
        return lambda lines: ReplayedModel(map(recorded, lines))

    def test_without_an_answer_its_error_says_what_may_help(self) -> None:
        """An episode records that a call failed and how, in words; the kind of the error is not in it."""
        with pytest.raises(ModelError, match="gone"):
            ReplayedModel([recorded(RequestRefusedError("gone"))]).complete(REQUEST)

    def test_an_error_does_not_outlive_its_call(self) -> None:
        model = ReplayedModel(map(recorded, [RequestRefusedError("gone"), "answer"]))
        with pytest.raises(ModelError):
            model.complete(REQUEST)
        assert model.complete(REQUEST).text == "answer"

    def test_a_conversation_is_followed_whatever_its_assistant_messages_look_like(self) -> None:
        built = Message(Role.TOOL, "built", tool_call_id="call_0")
        model = ReplayedModel(
            [episode(ModelTurn(0, REQUEST.messages, answer("", CALL)), ModelTurn(1, (built,), answer("submitted")))]
        )
        first = model.complete(REQUEST)
        said = Message(Role.ASSISTANT, first.text, first.tool_calls)
        second = model.complete(replace(REQUEST, messages=(*REQUEST.messages, said, built)))
        assert (first.tool_calls, second.text) == ((CALL,), "submitted")
        assert first.usage == second.usage == Usage()

    def test_what_was_never_asked_is_refused(self) -> None:
        model = ReplayedModel([recorded("a")])
        with pytest.raises(RequestRefusedError):
            model.complete(ChatRequest((Message(Role.USER, "something else"),)))

    def test_no_answer_is_given_twice(self) -> None:
        model = ReplayedModel([recorded("a"), recorded("b")])
        assert [model.complete(REQUEST).text for _ in range(2)] == ["a", "b"]
        with pytest.raises(RequestRefusedError):
            model.complete(REQUEST)
