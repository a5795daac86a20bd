"""The rows of spool files: what a window held, value by value in the order of the columns (`gristmill.spool`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gristmill import records

if TYPE_CHECKING:
    from gristmill.request_log import FinishedRequest
    from gristmill.sampler import Sample
    from gristmill.sequence import Edge, StepTimes
    from gristmill.value_capture import CapturedInput

Row = tuple[Any, ...]
Where = tuple[int, int, str]
"""Start and end of the window, and the host."""


def operators(samples: Iterable[Sample], where: Where, process: int, dropped: int) -> list[Row]:
    """`dropped` is told in the first."""
    rows: list[Row] = []
    for sample in samples:
        pattern = (sample.operator, sample.dtype, _json(sample.axes), _json(sample.layouts))
        counted = (sample.calls, sample.timed_calls, sample.timed_ns, sample.one_in)
        rows.append((*where, process, *pattern, *counted, 0 if rows else dropped))
    return rows


def requests(kept: Iterable[tuple[FinishedRequest, int]], where: Where, dropped: int) -> list[Row]:
    """Of requests with how many each stands for. `dropped` is told in the first."""
    rows: list[Row] = []
    for request, weight in kept:
        tokens = (request.prompt_tokens, request.generated_tokens, request.arrival_ns, request.cached_tokens)
        rows.append((*where, *tokens, request.drafts, _json(request.accepted), weight, 0 if rows else dropped))
    return rows


def edges(found: Iterable[Edge], where: Where) -> list[Row]:
    return [
        (
            *where,
            edge.producer,
            _json(edge.producer_axes),
            edge.output,
            edge.consumer,
            _json(edge.consumer_axes),
            edge.input,
            edge.dtype,
            edge.uses,
            edge.calls,
        )
        for edge in found
    ]


def steps(times: StepTimes, where: Where) -> list[Row]:
    """One, if any step was traced."""
    return [(*where, times.steps, times.calls, times.step_ns, times.operator_ns)] if times.steps else []


def values(captured: Iterable[CapturedInput], where: Where, process: int) -> list[Row]:
    return [
        (
            *where,
            process,
            one.operator,
            one.dtype,
            _json(one.axes),
            one.call,
            one.position,
            _json(one.shape),
            one.content,
        )
        for one in captured
    ]


def _json(value: object) -> str:
    return records.canonical_json(value).decode()
