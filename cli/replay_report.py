"""A replay as text: the verdict, where the candidate comes from, each episode step by step, the agent's course; or what
each agent of a search has brought about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cli.table import compact_table
from gristmill import records

if TYPE_CHECKING:
    from agents.chat import Answer, Message, Usage
    from agents.episode import Episode, ModelTurn, ToolTurn
    from tasks.replay import Judged, Replay, SearchReplay

SHORT_LINES = 12
SHORT_CHARS = 1200
"""Of one text, unless all of it is asked for."""
LAST_SHOWN = 10
"""Steps of a course before the candidate; of those further back only the improvements are shown."""
INDENT = "    "


def render(found: Replay, *, full: bool = False) -> str:
    """The whole page, in printable characters."""
    blocks = []
    if found.candidate is not None:
        blocks.append("\n".join(_head(found.candidate, found.lineage)))
    blocks += ["\n".join(_episode(episode, full)) for episode in found.episodes]
    if found.candidate is not None and not found.episodes:
        blocks.append(_course(found.course, full))
    return _printable("\n\n".join(blocks))


def render_search(found: SearchReplay, *, full: bool = False) -> str:
    """The gain on the traffic; then a line per agent and operator, with its best candidate, or per candidate, where all
    is asked for.
    """
    judged = found.judged
    won = sum(one.status == "faster" for one in judged)
    best = max(judged, key=_worth)
    headers: Sequence[str] = ("agent", "operator", "candidates", "faster", "ratio where timed", "best candidate")
    rows: Iterator[Sequence[object]] = _by_agent(judged)
    if full:
        headers = ("trial", "candidate", "operator", "agent", "verdict", "ratio where timed")
        rows = ((place, *_named(one), one.agent, one.status, one.ratio) for place, one in enumerate(judged, start=1))
    more = "" if full else "; --full lists every candidate"
    told = "ratio where timed: of one candidate, on the workloads that it takes, by their calls and the judge's times"
    gains = "".join(
        f"{operator}: {gain:.2f}x on all of its traffic, with the best candidate for each workload\n"
        for operator, gain in found.gains.items()
    )
    return _printable(
        f"search {found.search}: {len(judged)} candidates, {won} faster\n{gains}\n"
        f"{compact_table(rows, headers)}\n\n{told}\n"
        f"./mill replay {records.short(best.digest)} shows how that one came about{more}"
    )


def _by_agent(judged: Sequence[Judged]) -> Iterator[tuple[object, ...]]:
    groups: dict[tuple[str, str], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.agent, _named(one)[1]), []).append(one)
    for (agent, operator), mine in groups.items():
        best = max(mine, key=_worth)
        won = sum(one.status == "faster" for one in mine)
        yield agent, operator, len(mine), won, best.ratio, records.short(best.digest)


def _named(one: Judged) -> tuple[str, str]:
    return records.short(one.digest), f"{one.operator} {one.dtype}"


def _worth(one: Judged) -> tuple[bool, float]:
    return one.status == "faster", one.ratio or 0.0


def _printable(text: str) -> str:
    """What a model or a provider wrote may hold control characters, which were meant for the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _head(candidate: Judged, lineage: Sequence[Judged]) -> Iterator[str]:
    yield (
        f"candidate {records.short(candidate.digest)}: {candidate.operator} {candidate.dtype}, "
        f"search {candidate.search}{f', run {candidate.run_id}' if candidate.run_id else ''}"
    )
    yield f"verdict   {candidate.status}{_times(candidate.ratio)}: {candidate.reason}"
    yield f"agent     {candidate.agent}{f' with {candidate.model}' if candidate.model else ''}"
    if candidate.pattern:
        yield f"pattern   {candidate.pattern}"
    if candidate.parameters:
        yield f"chosen    {_parameters(candidate)}"
    for parent in lineage:
        yield f"after     {records.short(parent.digest)} ({parent.agent}: {parent.status}{_times(parent.ratio)})"
    unknown = set(candidate.parents) - {parent.digest for parent in lineage}
    yield from (f"after     {records.short(digest)} (of another search)" for digest in sorted(unknown))


def _episode(episode: Episode, full: bool) -> Iterator[str]:
    yield f"episode {episode.id}: {episode.agent} with {episode.model}, {episode.operator} {episode.dtype}"
    parents = ", ".join(records.short(parent) for parent in episode.parents)
    facts = {"pattern": episode.pattern, "strategy": episode.strategy, "from": parents}
    asked = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
    if asked:
        yield f"asked     {asked}"
    candidates = ", ".join(records.short(digest) for digest in episode.candidates)
    yield f"outcome   {episode.outcome.value}: {episode.reason}{f' ({candidates})' if candidates else ''}"
    yield f"cost      {_cost(episode.usage)}"
    starts = [turn.started_ms for step in episode.steps if (turn := step.model or step.tool) is not None]
    for step in episode.steps:
        yield ""
        if step.model is not None:
            yield from _model_turn(step.model, min(starts), full)
        if step.tool is not None:
            yield from _tool_turn(step.tool, min(starts), full)


def _model_turn(turn: ModelTurn, began_ms: int, full: bool) -> Iterator[str]:
    yield f"{_clock(turn.started_ms, began_ms)} to the model"
    for message in turn.messages:
        yield from _message(message, full)
    if turn.answer is None:
        yield f"          no answer: {turn.error}"
    else:
        yield from _answer(turn.answer, turn.started_ms, began_ms, full)


def _message(message: Message, full: bool) -> Iterator[str]:
    yield f"          {message.role.value}{f' (answers {message.tool_call_id})' if message.tool_call_id else ''}:"
    yield from _text(message.text, full)
    for call in message.tool_calls:
        yield f"          calls {call.name} ({call.id}):"
        yield from _text(call.arguments, full)


def _answer(answer: Answer, started_ms: int, began_ms: int, full: bool) -> Iterator[str]:
    ended_ms = started_ms + round(answer.latency_s * 1000)
    yield (
        f"{_clock(ended_ms, began_ms)} {answer.model} after {answer.latency_s:.1f} s, {_cost(answer.usage)}, "
        f"finished: {answer.finish.value}"
    )
    yield from _text(answer.text, full)
    for call in answer.tool_calls:
        yield f"          calls {call.name} ({call.id}):"
        yield from _text(call.arguments, full)


def _tool_turn(turn: ToolTurn, began_ms: int, full: bool) -> Iterator[str]:
    yield f"{_clock(turn.started_ms, began_ms)} {turn.name} took {turn.duration_s:.2f} s:"
    yield from _text(turn.result, full)


def _text(text: str, full: bool) -> Iterator[str]:
    lines = text.expandtabs(4).splitlines()
    shown = lines if full else _shortened(lines)
    yield from (f"{INDENT}{INDENT}{INDENT}{line}".rstrip() for line in shown)


def _shortened(lines: Sequence[str]) -> list[str]:
    shown: list[str] = []
    chars = 0
    for line in lines[:SHORT_LINES]:
        room = SHORT_CHARS - chars
        if room <= 0:
            break
        shown.append(line if len(line) <= room else line[:room] + "...")
        chars += len(line)
    left = len(lines) - len(shown)
    return [*shown, f"... {left} more lines; --full shows them"] if left else shown


def _course(course: Sequence[Judged], full: bool) -> str:
    """The trials of a pattern agent: all of the last ones, and of the earlier ones those that improved on the best."""
    if not course:
        return "its search has not judged it yet"
    rows = []
    best = 0.0
    for place, one in enumerate(course, start=1):
        improved = one.status == "faster" and (one.ratio or 0.0) > best
        best = max(best, one.ratio or 0.0) if improved else best
        if full or improved or place > len(course) - LAST_SHOWN:
            rows.append((place, records.short(one.digest), one.status, one.ratio, best or None, _parameters(one)))
    table = compact_table(rows, ("trial", "candidate", "verdict", "ratio where timed", "best", "parameters"))
    left = len(course) - len(rows)
    note = f"\n{left} earlier trials without an improvement are left out; --full shows them" if left else ""
    return f"course of {course[-1].agent} to it, {len(course)} trials\n\n{table}{note}"


def _parameters(one: Judged) -> str:
    return " ".join(f"{name}={value}" for name, value in one.parameters.items())


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f" {ratio:.2f}x"


def _cost(usage: Usage) -> str:
    return f"{usage.input_tokens} + {usage.output_tokens} tokens, {usage.usd:.4g} USD"


def _clock(time_ms: int, began_ms: int) -> str:
    return f"[{(time_ms - began_ms) / 1000:5.1f} s]"
