"""Replaying a trace through the batcher at a fixed number of concurrent requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.adapters.transformers import Attachment
from gristmill.errors import ServingError
from gristmill.serving.batcher import Batcher, prompt_tokens
from gristmill.serving.batcher import Sequence as Served
from gristmill.traces import Request

PROGRESS_EVERY_S = 1.0


@dataclass(frozen=True)
class StepRecord:
    """One decode step."""

    batch: int
    decode_ns: int


@dataclass(frozen=True)
class ReplayResult:
    """What a replay did. `tokens` has one entry per request, in trace order; unfinished ones hold what they got."""

    requests: int
    finished: int
    generated_tokens: int
    decode_tokens: int
    decode_s: float
    prefill_s: float
    tokens_per_s: float
    """Decode tokens over decode time; prefill is not in it."""
    steps: tuple[StepRecord, ...]
    median_step_ns: dict[str, float]
    """Per batch size."""
    tokens: tuple[tuple[int, ...], ...]
    probabilities: tuple[tuple[float, ...], ...]


@dataclass
class ReplayHooks:
    """How a replay is watched and steered; every one may be left as it is."""

    boundary: Callable[[], Any] = lambda: None
    """Called between steps."""
    finished: Callable[[Request], None] = lambda request: None
    progress: Callable[[dict[str, Any]], None] = lambda progress: None
    decoded: Callable[[int, int], None] = lambda tokens, duration_ns: None
    """Called after each decode step."""
    stop: Callable[[], bool] = lambda: False


@dataclass
class _Totals:
    prefill_ns: int = 0
    steps: list[StepRecord] = field(default_factory=list)


def check_requests(requests: Sequence[Request], concurrency: int, positions: int) -> None:
    """Refuses what the model cannot serve.

    Raises:
        ServingError: no request, no concurrency, or a request longer than the model's positions.
    """
    if not requests or concurrency < 1:
        raise ServingError(
            f"replay of {len(requests)} requests, {concurrency} at a time: expected at least one of each"
        )
    for number, request in enumerate(requests):
        length = request.prompt_tokens + request.generated_tokens
        if request.prompt_tokens < 1 or request.generated_tokens < 1 or length > positions:
            raise ServingError(
                f"request {number}: {request.prompt_tokens} prompt and {request.generated_tokens} generated tokens; "
                f"expected at least 1 of each and {positions} together; scale the trace"
            )


def serve(
    model: Any, attachment: Attachment, requests: Sequence[Request], concurrency: int, seed: int, hooks: ReplayHooks
) -> ReplayResult:
    """Serves all requests in arrival order, `concurrency` at a time: one leaves, the next joins.

    Prompts are random tokens drawn from `seed` and the request's position, so that two replays decode the same.
    """
    check_requests(requests, concurrency, model.config.max_position_embeddings)
    batcher = Batcher(model, attachment.softmax)
    vocabulary = model.config.vocab_size
    served = [
        Served(index, prompt_tokens(seed, index, request.prompt_tokens, vocabulary), request.generated_tokens)
        for index, request in enumerate(requests)
    ]
    totals = _Totals()
    waiting = list(reversed(served))
    finished = 0
    reported_s = time.monotonic()
    while (waiting or len(batcher)) and not hooks.stop():
        hooks.boundary()
        while waiting and len(batcher) < concurrency:
            sequence = waiting.pop()
            start_ns = time.perf_counter_ns()
            batcher.join(sequence)
            totals.prefill_ns += time.perf_counter_ns() - start_ns
            if sequence.done:
                finished += 1
                hooks.finished(requests[sequence.index])
        if len(batcher):
            batch, start_ns = len(batcher), time.perf_counter_ns()
            batcher.step()
            totals.steps.append(StepRecord(batch, time.perf_counter_ns() - start_ns))
            hooks.decoded(batch, totals.steps[-1].decode_ns)
        for sequence in batcher.retire():
            finished += 1
            hooks.finished(requests[sequence.index])
        if time.monotonic() - reported_s > PROGRESS_EVERY_S:
            reported_s = time.monotonic()
            hooks.progress({"done": finished, "of": len(requests), "steps": len(totals.steps), "batch": len(batcher)})
    return _result(served, finished, totals)


def _result(served: Sequence[Served], finished: int, totals: _Totals) -> ReplayResult:
    decode_s = sum(step.decode_ns for step in totals.steps) / 1e9
    decode_tokens = sum(step.batch for step in totals.steps)
    by_batch: dict[int, list[int]] = {}
    for step in totals.steps:
        by_batch.setdefault(step.batch, []).append(step.decode_ns)
    return ReplayResult(
        requests=len(served),
        finished=finished,
        generated_tokens=sum(len(sequence.tokens) for sequence in served),
        decode_tokens=decode_tokens,
        decode_s=decode_s,
        prefill_s=totals.prefill_ns / 1e9,
        tokens_per_s=decode_tokens / decode_s if decode_s else 0.0,
        steps=tuple(totals.steps),
        median_step_ns={str(batch): statistics.median(times) for batch, times in sorted(by_batch.items())},
        tokens=tuple(tuple(sequence.tokens) for sequence in served),
        probabilities=tuple(tuple(sequence.probabilities) for sequence in served),
    )
