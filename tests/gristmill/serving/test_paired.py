"""The A/B compares like with like, sees a wrong kernel, and leaves the engine as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.adapters.transformers import attach
from gristmill.dispatch import Dispatcher
from gristmill.errors import ServingError
from gristmill.generation import Generation
from gristmill.kernel_table import TableEntry
from gristmill.route import DispatchSettings
from gristmill.sampler import Sampler
from gristmill.serving.paired import ENGINE, KERNELS, PairedResult, PairedSettings, median_interval, run_paired
from gristmill.serving.replay import ReplayHooks
from gristmill.traces import Request

MakeEntry = Callable[..., tuple[TableEntry, Path]]
MakeGeneration = Callable[..., Generation]
REQUESTS = [Request(0.0, 3 + 2 * i, 4 + i) for i in range(5)]
SETTINGS = PairedSettings(concurrency=(2, 3), pairs=5, block_steps=3)
LAYERS, VARIANTS = 2, 2


def run(model: Any, generation: Generation, settings: PairedSettings = SETTINGS) -> tuple[PairedResult, ...]:
    dispatcher = Dispatcher(environ={}, settings=DispatchSettings(shadow_every=0))
    sampler = Sampler()
    attachment = attach(model, dispatcher, sampler)
    assert not dispatcher.stage(generation)
    dispatcher.step_boundary()
    results = run_paired(model, attachment, REQUESTS, settings, ReplayHooks())
    assert attachment.sampler is sampler
    assert dispatcher.enabled
    assert sampler.flush().samples == ()  # what an A/B calls is not traffic
    return results


def test_right_kernels_decode_the_same_tokens(
    tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    norm = make_entry("rms_norm", 1, 4)
    results = run(tiny_model, make_generation(1, norm, make_entry("skinny_linear", 1, 4)))
    assert [r.concurrency for r in results] == [2, 3]
    for result in results:
        assert result.differences == ()
        assert result.compared_tokens == 5 * 3 * result.concurrency
        assert len(result.pairs) == 5
        # the warm-up pair counts as well, and prefills of up to 4 tokens
        assert result.hits[norm[0].candidate] >= 6 * 3 * (LAYERS + 1)
        assert set(result.engine_operator_ns) == set(result.kernels_operator_ns)
        assert "skinny_linear" in result.engine_operator_ns
        assert {pair.first for pair in result.pairs} <= {ENGINE, KERNELS}
        assert result.ratio_low <= result.ratio <= result.ratio_high


def test_the_same_arms_give_a_ratio_near_one(tiny_model: Any, make_generation: MakeGeneration) -> None:
    (result,) = run(tiny_model, make_generation(1), PairedSettings((2,), pairs=30, block_steps=4))
    assert 0.7 < result.ratio < 1.4
    assert result.ratio_low <= result.ratio <= result.ratio_high
    assert {pair.first for pair in result.pairs} == {ENGINE, KERNELS}


def test_a_wrong_kernel_shows_where_tokens_differ(
    tiny_model: Any, make_entry: MakeEntry, make_generation: MakeGeneration
) -> None:
    (result,) = run(
        tiny_model,
        make_generation(1, make_entry("rms_norm", 1, 4, "WRONG_AFTER=1")),
        PairedSettings((2,), pairs=5, block_steps=4),
    )
    assert result.differences
    for difference in result.differences:
        assert difference.engine_token != difference.kernels_token
        assert difference.top2_gap >= 0
        assert difference.logit_scale > 0
        assert 0 <= difference.step < 4
    found = [(d.pair, d.request) for d in result.differences]
    assert len(found) == len(set(found))


def test_stop_ends_early(tiny_model: Any, make_generation: MakeGeneration) -> None:
    attachment = attach(tiny_model, Dispatcher(environ={}))
    (result,) = run_paired(tiny_model, attachment, REQUESTS, PairedSettings((2,)), ReplayHooks(stop=lambda: True))
    assert (result.pairs, result.ratio) == ((), 0.0)


@pytest.mark.parametrize("settings", [PairedSettings(()), PairedSettings(pairs=0), PairedSettings(block_steps=0)])
def test_an_ab_of_nothing_is_refused(tiny_model: Any, settings: PairedSettings) -> None:
    attachment = attach(tiny_model, Dispatcher(environ={}))
    with pytest.raises(ServingError, match="expected at least one of each"):
        run_paired(tiny_model, attachment, REQUESTS, settings, ReplayHooks())


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(0, 5))
def test_interval_holds_the_median(ratios: list[float], seed: int) -> None:
    middle, low, high = median_interval(ratios, seed)
    assert min(ratios) <= low <= middle <= high <= max(ratios) or low == pytest.approx(high)
