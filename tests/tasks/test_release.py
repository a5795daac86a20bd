"""The end-to-end gate says yes to evidence of a gain, and to nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.serving.paired import Difference, Pair, PairedResult
from tasks.release import ROUNDING_GAP, ReleasePolicy, decide_release

GOOD = PairedResult(
    concurrency=4,
    block_steps=6,
    pairs=(Pair(10.0, 17.0, "engine"),),
    ratio=1.7,
    ratio_low=1.5,
    ratio_high=1.9,
    mean_ratio=1.7,
    engine_tokens_per_s=10.0,
    kernels_tokens_per_s=17.0,
    engine_operator_ns={},
    kernels_operator_ns={},
    hits={"abc": 100},
    compared_tokens=1000,
    differences=(),
)


def difference(gap: float, scale: float = 1.0) -> Difference:
    return Difference(0, 3, 17, 5, 9, gap, scale)


def test_a_gain_everywhere_is_released_with_its_worst_bound() -> None:
    decision = decide_release([GOOD, replace(GOOD, concurrency=8, ratio_low=1.2)])
    assert decision.promote and "1.20x" in decision.reason and "4, 8" in decision.reason


def test_no_evidence_is_no() -> None:
    assert not decide_release([]).promote


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"hits": {}}, "no call reached"),
        ({"hits": {"abc": 0}}, "no call reached"),
        ({"ratio_low": 0.98}, "lower bound 0.980"),
        ({"ratio_low": 1.0}, "lower bound 1.000"),
        ({"differences": (difference(0.5),)}, "request 17 got token 9 instead of 5"),
        ({"differences": (difference(ROUNDING_GAP / 2),) * 11}, "11 of 1000 tokens differ"),
        ({"differences": (difference(0.0),), "compared_tokens": 0}, "1 of 0 tokens differ"),
    ],
)
def test_one_bad_concurrency_is_enough_for_no(bad: dict, reason: str) -> None:
    """Wherever it stands: also after good ones, also with a good one after it."""
    worse = replace(GOOD, concurrency=8, **bad)
    for runs in ([worse], [GOOD, worse], [worse, GOOD]):
        decision = decide_release(runs)
        assert not decision.promote
        assert decision.reason.startswith("8 concurrent requests") and reason in decision.reason


def test_rounding_is_told_from_error_by_the_spread_of_the_logits() -> None:
    assert decide_release([replace(GOOD, differences=(difference(0.009, scale=10.0),))]).promote
    assert not decide_release([replace(GOOD, differences=(difference(0.011, scale=10.0),))]).promote


def test_a_stricter_policy_is_obeyed() -> None:
    assert not decide_release([GOOD], ReleasePolicy(min_ratio_low=1.5)).promote
    rounded = replace(GOOD, differences=(difference(0.0),))
    assert not decide_release([rounded], ReleasePolicy(max_difference_share=0.0)).promote


differences = st.builds(Difference, *[st.just(0)] * 5, st.floats(0, 0.01), st.floats(0.1, 10))
runs = st.builds(
    replace,
    st.just(GOOD),
    ratio_low=st.floats(0.5, 3),
    hits=st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 3), max_size=2),
    differences=st.lists(differences, max_size=3).map(tuple),
    compared_tokens=st.integers(0, 400),
)


@given(st.lists(runs, max_size=4))
def test_a_release_means_that_every_run_gained_was_used_and_decoded_the_same(evidence: list[PairedResult]) -> None:
    if not decide_release(evidence).promote:
        return
    assert evidence
    for run in evidence:
        assert run.ratio_low > 1 and sum(run.hits.values()) > 0
        assert len(run.differences) <= run.compared_tokens / 100
        assert all(d.top2_gap <= ROUNDING_GAP * d.logit_scale for d in run.differences)


@given(st.lists(runs, min_size=1, max_size=3), runs)
def test_more_evidence_never_turns_a_no_into_a_yes(evidence: list[PairedResult], more: PairedResult) -> None:
    assert decide_release(evidence).promote or not decide_release([*evidence, more]).promote
