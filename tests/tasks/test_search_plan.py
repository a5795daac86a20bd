"""What a session searches: fused operators where asked for, and each that is left out with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import fusion_plan
from kernels.profile import TrafficProfile, rank
from tasks.errors import NoProfileError
from tasks.recruitment import Staff
from tasks.search_plan import MINIMUM_S, NO_SECONDS, NOBODY, SearchPlan, plan, workloads_of
from tests.tasks.fused_world import FUSED, TWINS, feed_forward, feeding, twins
from tests.tasks.world import PEAKS

WHOLE = "skinny_linear-skinny_linear+silu_and_mul"


def planned(
    profile: TrafficProfile,
    budget_s: float = 120.0,
    only: tuple[str, ...] = (),
    fusions: bool = True,
    is_writable: Callable[[str, str], bool] = lambda operator, dtype: True,
) -> SearchPlan:
    return plan(profile, PEAKS, budget_s, only=only, fusions=fusions, is_writable=is_writable)


def test_fused_operators_are_searched_only_where_asked_for() -> None:
    asked, unasked = planned(feeding()), planned(feeding(), fusions=False)
    assert {operator for operator, _ in asked.seconds} == {"silu_and_mul", "skinny_linear", FUSED}
    assert {operator for operator, _ in unasked.seconds} == {"silu_and_mul", "skinny_linear"}
    assert unasked.fusions == unasked.skipped == asked.skipped == ()
    assert asked.ranked == unasked.ranked == rank(feeding(), PEAKS), "the ranking is of what the fleet runs"


def test_a_name_is_enough_and_nothing_else_is_searched_then() -> None:
    assert list(planned(feeding(), only=(FUSED,), fusions=False).seconds.items()) == [((FUSED, "float32"), 120.0)]


def test_the_budget_follows_what_fusing_itself_saves() -> None:
    made = planned(feeding(), budget_s=6000.0)
    savings = {(r.operator, r.dtype): r.saving_share for r in made.ranked}
    savings |= {(p.operator, p.dtype): p.saving_share for p in made.fusions}
    for key, seconds in made.seconds.items():
        assert seconds / 6000.0 == pytest.approx(savings[key] / sum(savings.values()))


def test_what_nobody_can_write_gets_no_seconds_and_says_so() -> None:
    made = planned(twins(), is_writable=Staff().can_write)
    assert [(one.operator, one.reason) for one in made.skipped] == [(TWINS, NOBODY)]
    assert (TWINS, "float32") not in made.seconds and (FUSED, "float32") in made.seconds
    assert sum(made.seconds.values()) == pytest.approx(120.0), "the others have them"


def test_a_part_of_what_saves_more_is_not_tried_unless_it_is_named() -> None:
    made = planned(feed_forward(), budget_s=600.0)
    fused = {operator for operator, _ in made.seconds if fusion_plan.is_fused(operator)}
    assert fused == {WHOLE, FUSED, f"rms_norm+{WHOLE.partition('+')[0]}"}
    reasons = {one.operator: one.reason for one in made.skipped}
    assert reasons["skinny_linear+silu_and_mul"] == f"it is a part of {WHOLE}, which saves more"
    part = ("skinny_linear+silu_and_mul",)
    assert [operator for operator, _ in planned(feed_forward(), only=part).seconds] == list(part)


def test_what_the_budget_does_not_reach_says_so() -> None:
    made = planned(feeding(), budget_s=2 * MINIMUM_S)
    assert [(one.operator, one.reason) for one in made.skipped] == [(FUSED, NO_SECONDS)]


def test_what_is_not_there_is_one_line_with_what_is() -> None:
    with pytest.raises(NoProfileError, match=r"^operators softmax: .* holds silu_and_mul, skinny_linear$"):
        planned(feeding(), only=("softmax",))
    with pytest.raises(NoProfileError, match=r"; of these could be fused silu_and_mul\+skinny_linear$"):
        planned(feeding(), only=("rms_norm+skinny_linear",))
    with pytest.raises(NoProfileError, match=r"; of these could be fused nothing$"):
        planned(replace(feeding(), edges=()), only=(FUSED,))


@given(
    budget_s=st.floats(0.5, 500), fusions=st.booleans(), writable=st.sets(st.sampled_from((FUSED, TWINS, "softmax")))
)
def test_every_fusion_is_searched_or_says_why_not(budget_s: float, fusions: bool, writable: set[str]) -> None:
    made = planned(
        twins(), budget_s, fusions=fusions, is_writable=lambda o, d: o in writable or not fusion_plan.is_fused(o)
    )
    skipped = [(one.operator, one.dtype) for one in made.skipped]
    assert len(skipped) == len(set(skipped)) and not set(skipped) & set(made.seconds)
    assert {(one.operator, one.dtype) for one in made.fusions} <= {*skipped, *made.seconds}
    assert sum(made.seconds.values()) == pytest.approx(budget_s)


def test_workloads_come_from_the_profile_or_from_what_was_proposed() -> None:
    made = planned(feeding(1, 4))
    (fused,) = made.fusions
    assert workloads_of(feeding(1, 4), made.fusions, FUSED, "float32") == fused.workloads
    assert {w.axes["tokens"] for w in fused.workloads} == {1, 4}
    assert workloads_of(feeding(), made.fusions, FUSED, "bfloat16") == ()
    assert workloads_of(feeding(), made.fusions, "silu_and_mul", "float32") == feeding().of("silu_and_mul", "float32")
