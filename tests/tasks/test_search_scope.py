"""The workloads that stand for traffic: the heaviest, but every model shape first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gristmill.workload import Workload
from tasks.search_scope import PROOF, SEARCH, Scope, representative
from tests.tasks.world import rms_norm

traffic = st.lists(
    st.builds(rms_norm, st.integers(1, 40), st.sampled_from([32, 64, 96]), st.just(1), st.integers(0, 10**6)),
    unique_by=lambda w: w.digest,
    max_size=30,
)


@given(workloads=traffic, limit=st.integers(1, 12))
def test_every_model_shape_first_then_the_most_time(workloads: list[Workload], limit: int) -> None:
    chosen = representative(workloads, Scope(per_shape=0, at_least=limit))
    assert len(chosen) == min(limit, len(workloads))
    assert {w.digest for w in chosen} <= {w.digest for w in workloads}
    assert [w.time_ns for w in chosen] == sorted((w.time_ns for w in chosen), reverse=True)
    shapes = {w.axes["hidden"] for w in workloads}
    assert len({w.axes["hidden"] for w in chosen}) == min(limit, len(shapes))
    for shape in {w.axes["hidden"] for w in chosen}:
        of_shape = [w.time_ns for w in workloads if w.axes["hidden"] == shape]
        assert max(w.time_ns for w in chosen if w.axes["hidden"] == shape) == max(of_shape)


@given(workloads=traffic)
def test_the_order_of_the_profile_decides_nothing(workloads: list[Workload]) -> None:
    assert representative(workloads, Scope(1, 5)) == representative(list(reversed(workloads)), Scope(1, 5))


@given(workloads=traffic, scope=st.sampled_from([SEARCH, PROOF]))
def test_no_model_shape_is_left_to_chance(workloads: list[Workload], scope: Scope) -> None:
    chosen = representative(workloads, scope)
    for shape in {w.axes["hidden"] for w in workloads}:
        there = sum(w.axes["hidden"] == shape for w in workloads)
        assert sum(w.axes["hidden"] == shape for w in chosen) >= min(scope.per_shape, there)


def test_no_doubling_that_has_its_time_is_left_out_for_the_heaviest_of_each_shape() -> None:
    """Two of each shape, and in every shape 4 tokens and 96 are heavier than 8."""
    times_ns = {4: 600, 96: 500, 8: 450, 1: 10}
    workloads = [rms_norm(tokens, hidden, 1, t) for hidden in (32, 64, 96, 128) for tokens, t in times_ns.items()]
    chosen = representative(workloads, Scope(per_shape=2, at_least=1))
    tokens = Counter(w.axes["tokens"] for w in chosen)
    assert tokens == {4: 4, 96: 2, 8: 2}
