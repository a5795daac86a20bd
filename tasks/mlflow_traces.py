"""What an MLflow trace holds: functions from an episode to one trace, in MLflow's conventions for agents and chats.

Ids come from the search and the episode, so that an episode sent twice is one trace. MLflow's own names for attributes
are spelt out, since the module that has them takes a second to import.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.chat import Answer, Message, ToolCall
from agents.episode import Episode, ModelTurn, Outcome, Step, ToolTurn
from gristmill import records
from tasks.mlflow_spool import SearchEpisode, SearchStart

if TYPE_CHECKING:
    from mlflow.entities import Span, TraceInfo

EPISODE_TAG = "episode"
MAX_TEXT_CHARS = 32_000
"""Of one message, answer or result in a span; the whole of it is in the episode's artifact."""
HEAD_SHARE = 0.75
"""Of a text that is cut: how much of what remains is its beginning."""
MAX_PREVIEW_CHARS = 1000
MAX_TAG_CHARS = 4000
MAX_NAME_CHARS = 200
MAX_DEPTH = 32
"""Of arguments that are shown as an object; MLflow reads them with less of a stack than we have."""
SAFE_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
FAILURES = (Outcome.FAILED, Outcome.SPENT)
"""Outcomes that are an error and not an answer."""


@dataclass(frozen=True)
class Period:
    """When something went on, in milliseconds since the epoch."""

    started_ms: int
    ended_ms: int

    @property
    def duration_ms(self) -> int:
        return self.ended_ms - self.started_ms


def trace_number(search_id: str, episode_id: str) -> int:
    """128 bits, as OpenTelemetry wants them."""
    return int(records.digest([search_id, episode_id])[:32], 16)


def trace_id(search_id: str, episode_id: str) -> str:
    """MLflow's id of an episode's trace."""
    return f"tr-{trace_number(search_id, episode_id):032x}"


def artifact_path(episode_id: str) -> str:
    """Of the whole episode, among the artifacts of its search."""
    name = episode_id if SAFE_NAME.fullmatch(episode_id) else records.digest(episode_id)[:32]
    return f"episodes/{name}.json"


def period_of_step(step: Step) -> Period:
    """A call that failed has no known end."""
    if step.tool is not None:
        return _period(step.tool.started_ms, step.tool.duration_s)
    assert step.model is not None
    return _period(step.model.started_ms, step.model.answer.latency_s if step.model.answer else 0.0)


def _period(started_ms: int, duration_s: float) -> Period:
    return Period(started_ms, started_ms + max(0, round(duration_s * 1000)))


def period_of(recorded: SearchEpisode) -> Period:
    """From the first step to the last; one without steps took no time."""
    periods = [period_of_step(step) for step in recorded.episode.steps]
    if not periods:
        return Period(recorded.recorded_ms, recorded.recorded_ms)
    return Period(min(period.started_ms for period in periods), max(period.ended_ms for period in periods))


def trace_info(start: SearchStart, recorded: SearchEpisode, experiment_id: str, parent_run_id: str) -> TraceInfo:
    """The trace apart from its spans. It belongs to the search's run; `session` is the search."""
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    episode, period = recorded.episode, period_of(recorded)
    return TraceInfo(
        trace_id=trace_id(start.search_id, episode.id),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=period.started_ms,
        execution_duration=period.duration_ms,
        state=TraceState.ERROR if episode.outcome in FAILURES else TraceState.OK,
        client_request_id=episode.id,
        request_preview=_cut(_question(episode), MAX_PREVIEW_CHARS),
        response_preview=_cut(f"{episode.outcome.value}: {episode.reason}", MAX_PREVIEW_CHARS),
        trace_metadata={
            "mlflow.sourceRun": parent_run_id,
            "mlflow.trace.session": start.search_id,
            "mlflow.trace.tokenUsage": json.dumps(_tokens(episode.usage.input_tokens, episode.usage.output_tokens)),
            "mlflow.trace.cost": json.dumps({"total_cost": episode.usage.usd}),
        },
        tags=tags(start, episode),
    )


def tags(start: SearchStart, episode: Episode) -> dict[str, str]:
    """What a page of traces filters by, with the words of the candidates' runs."""
    values = {
        "mlflow.traceName": f"{episode.agent} {episode.operator}",
        **start.tags,
        "search": start.search_id,
        EPISODE_TAG: episode.id,
        "operator": episode.operator,
        "dtype": episode.dtype,
        "agent": episode.agent,
        "model": episode.model,
        "pattern": episode.pattern,
        "strategy": episode.strategy,
        "parents": " ".join(episode.parents),
        "candidates": " ".join(episode.candidates),
        "outcome": episode.outcome.value,
    }
    return {name: _cut(value, MAX_TAG_CHARS) for name, value in values.items()}


def spans(start: SearchStart, recorded: SearchEpisode) -> list[Span]:
    """The episode as an agent's span, with a chat model's or a tool's span for each step."""
    episode, period = recorded.episode, period_of(recorded)
    root = {
        "mlflow.spanType": "AGENT",
        "mlflow.spanInputs": {
            "operator": f"{episode.operator} {episode.dtype}",
            "pattern": episode.pattern,
            "strategy": episode.strategy,
            "parents": list(episode.parents),
            "question": _cut(_question(episode)),
        },
        "mlflow.spanOutputs": {
            "outcome": episode.outcome.value,
            "reason": episode.reason,
            "candidates": list(episode.candidates),
        },
    }
    number = trace_number(start.search_id, episode.id)
    error = episode.reason if episode.outcome in FAILURES else ""
    made = [_span(number, 1, None, episode.agent, period, root, error)]
    for place, step in enumerate(episode.steps, start=2):
        if step.model is not None:
            name, attributes = "answer", _model_attributes(episode.model, step.model)
            error = step.model.error
        else:
            assert step.tool is not None
            name, attributes, error = step.tool.name[:MAX_NAME_CHARS], _tool_attributes(step.tool), ""
        made.append(_span(number, place, 1, name, period_of_step(step), attributes, error))
    return made


def _model_attributes(model: str, turn: ModelTurn) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "mlflow.spanType": "CHAT_MODEL",
        "mlflow.message.format": "openai",
        "mlflow.llm.model": turn.answer.model if turn.answer else model,
        "mlflow.spanInputs": {"messages": [_message(message) for message in turn.messages]},
    }
    if turn.answer is not None:
        usage = turn.answer.usage
        attributes["mlflow.spanOutputs"] = {"choices": [_choice(turn.answer)]}
        attributes["mlflow.chat.tokenUsage"] = _tokens(usage.input_tokens, usage.output_tokens)
        # What input and output cost apart is not known; MLflow's pages want both.
        attributes["mlflow.llm.cost"] = {"input_cost": 0.0, "output_cost": usage.usd, "total_cost": usage.usd}
    return attributes


def _tool_attributes(turn: ToolTurn) -> dict[str, Any]:
    return {
        "mlflow.spanType": "TOOL",
        "mlflow.spanInputs": _parsed(turn.arguments),
        "mlflow.spanOutputs": {"result": _cut(turn.result)},
    }


def _message(message: Message) -> dict[str, Any]:
    """As OpenAI's protocol writes it, which MLflow's pages render."""
    found: dict[str, Any] = {"role": message.role.value, "content": _cut(message.text)}
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def _choice(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _cut(answer.text)}
    if answer.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    return {"index": 0, "finish_reason": answer.finish.value, "message": message}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _cut(call.arguments)}}


def _tokens(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


def _question(episode: Episode) -> str:
    """The last message before the first answer: the brief as it was told."""
    turns = [step.model for step in episode.steps if step.model is not None and step.model.messages]
    return turns[0].messages[-1].text if turns else ""


def _parsed(arguments: str) -> dict[str, Any]:
    """A tool's arguments, where they are an object, or else their text in one: a model may write anything, and MLflow
    looks for JSON in an attribute that is a text.
    """
    try:
        value = json.loads(arguments) if len(arguments) <= MAX_TEXT_CHARS else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and _is_flat(value, MAX_DEPTH):
        return value
    return {"arguments": _cut(arguments)}


def _is_flat(value: Any, levels: int) -> bool:
    """Whether a value of JSON is nested no deeper than so."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_flat(item, levels - 1) for item in inner)
    return True


def _storable(text: str) -> str:
    """The text with a ? for each half of a character, which escapes in a model's JSON may spell."""
    return text.encode(errors="replace").decode()


def _cut(text: str, chars: int = MAX_TEXT_CHARS) -> str:
    """The text, or its beginning and end with a note between them."""
    if len(text) <= chars:
        return text
    note = f"\n[... {len(text) - chars} of {len(text)} characters left out ...]\n"
    room = max(0, chars - len(note))
    head = round(room * HEAD_SHARE)
    return text[:head] + note + text[len(text) - (room - head) :]


def _span(
    trace: int, number: int, parent: int | None, name: str, period: Period, attributes: dict[str, Any], error: str
) -> Span:
    """A finished span with ids of our own, which MLflow's API for new spans does not take."""
    from mlflow.entities import Span
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(span: int) -> SpanContext:
        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    values = {"mlflow.traceRequestId": f"tr-{trace:032x}", **attributes}
    return Span(
        ReadableSpan(
            name=name,
            context=context(number),
            resource=Resource.get_empty(),
            parent=None if parent is None else context(parent),
            attributes={key: _storable(json.dumps(value, ensure_ascii=False)) for key, value in values.items()},
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.OK),
            start_time=period.started_ms * 1_000_000,
            end_time=period.ended_ms * 1_000_000,
        )
    )
