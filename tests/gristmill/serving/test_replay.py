"""Replays serve everything, the same each time, also while kernels are swapped in and out."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.adapters.transformers import attach
from gristmill.dispatch import Dispatcher
from gristmill.errors import ServingError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.serving.replay import ReplayHooks, ReplayResult, serve
from gristmill.traces import Request

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
CHOOSER = random.Random(3)
REQUESTS = [Request(i * 0.1, CHOOSER.randint(1, 20), CHOOSER.randint(1, 12)) for i in range(9)]


def replay(model: Any, dispatcher: Dispatcher, hooks: ReplayHooks | None = None) -> ReplayResult:
    attachment = attach(model, dispatcher)
    try:
        return serve(model, attachment, REQUESTS, 3, 0, hooks or ReplayHooks())
    finally:
        attachment.detach()


def test_everything_is_served_and_counted(tiny_model: Any) -> None:
    finished: list[Request] = []
    result = replay(tiny_model, Dispatcher(environ={}), ReplayHooks(finished=finished.append))
    assert (result.requests, result.finished) == (9, 9)
    assert [len(tokens) for tokens in result.tokens] == [r.generated_tokens for r in REQUESTS]
    assert result.generated_tokens == sum(r.generated_tokens for r in REQUESTS)
    assert result.decode_tokens == result.generated_tokens - 9  # the first of each comes with its prefill
    assert sum(step.batch for step in result.steps) == result.decode_tokens
    assert max(step.batch for step in result.steps) == 3
    assert result.tokens_per_s == pytest.approx(result.decode_tokens / result.decode_s)
    assert sorted(finished, key=lambda r: r.arrival_s) == REQUESTS
    assert set(result.median_step_ns) == {str(step.batch) for step in result.steps}
    assert replay(tiny_model, Dispatcher(environ={})).tokens == result.tokens


def test_swaps_during_a_replay_change_no_token(
    tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    wanted = replay(tiny_model, Dispatcher(environ={})).tokens
    dispatcher = Dispatcher(environ={})
    generations = [
        make_generation(1, make_entry("rms_norm", 1, 64), make_entry("skinny_linear", 1, 2)),
        make_generation(2, make_entry("skinny_linear", 1, 64), make_entry("rotary_embedding", 1, 64)),
        make_generation(3),
        make_generation(4, make_entry("rms_norm", 3, 3)),
    ]
    steps, hits = 0, []

    def boundary() -> None:
        nonlocal steps
        steps += 1
        if steps % 5 == 0 and generations:
            hits.append(dispatcher.hits())
            assert not dispatcher.stage(generations.pop(0))
        dispatcher.step_boundary()

    result = replay(tiny_model, dispatcher, ReplayHooks(boundary=boundary))
    assert result.tokens == wanted
    assert not generations
    assert [any(found.values()) for found in hits[1:3]] == [True, True]
    assert dispatcher.generation.number == 4


def test_stop_ends_early_with_what_there_is(tiny_model: Any) -> None:
    calls = iter(range(100))
    result = replay(tiny_model, Dispatcher(environ={}), ReplayHooks(stop=lambda: next(calls) >= 2))
    assert result.finished < 9
    assert len(result.steps) == 2


@pytest.mark.parametrize(
    ("requests", "concurrency", "said"),
    [
        ([], 1, "0 requests"),
        ([Request(0, 1, 1)], 0, "0 at a time"),
        ([Request(0, 1, 1), Request(0, 500, 100)], 1, "request 1: 500 prompt"),
        ([Request(0, 0, 5)], 1, "request 0"),
    ],
)
def test_what_cannot_be_served_is_refused(
    tiny_model: Any, requests: list[Request], concurrency: int, said: str
) -> None:
    attachment = attach(tiny_model, Dispatcher(environ={}))
    with pytest.raises(ServingError, match=said):
        serve(tiny_model, attachment, requests, concurrency, 0, ReplayHooks())
