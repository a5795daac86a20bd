"""Selection keeps the best per workload, whatever order verdicts come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agents.swarm import Selection
from gristmill.workload import Workload, dense
from kernels.verdict import Status, Verdict, WorkloadTiming

WORKLOADS = [
    Workload("softmax", "float32", {"rows": rows, "columns": 8}, (dense((rows, 8), "float32"),)) for rows in (1, 2, 3)
]


def timing(workload: Workload, ratio: float, low: float) -> WorkloadTiming:
    return WorkloadTiming(workload, ratio, low, ratio + 0.1, 100.0, 100.0 * ratio, 9, 0.5, 10.0)


def verdict(name: str, *timings: WorkloadTiming) -> Verdict:
    status = Status.FASTER if any(t.ratio_low > 1 for t in timings) else Status.SLOWER
    return Verdict(status, "", name, "softmax", 1.0, timings)


def test_specialists_survive_side_by_side() -> None:
    decode, prefill, both = WORKLOADS
    selection = Selection()
    for each in (
        verdict("a", timing(decode, 3.0, 2.9), timing(prefill, 1.1, 1.05)),
        verdict("b", timing(prefill, 2.0, 1.9)),
        verdict("c", timing(decode, 2.5, 2.4), timing(both, 0.9, 0.8)),
    ):
        selection = selection.with_verdict(each)
    assert {b.candidate for b in selection.best.values()} == {"a", "b"}
    assert set(selection.candidates) == {"a", "b"}
    assert both.digest not in selection.best


def test_a_median_above_one_is_not_enough() -> None:
    selection = Selection().with_verdict(verdict("a", timing(WORKLOADS[0], 1.4, 0.97), timing(WORKLOADS[1], 2.0, 1.5)))
    assert list(selection.best) == [WORKLOADS[1].digest]


def test_failures_are_not_selected() -> None:
    crashed = Verdict(Status.CRASHED, "", "a", "softmax")
    assert Selection().with_verdict(crashed).best == {}


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.5, 5.0)), max_size=12), st.randoms())
def test_order_does_not_matter(measured: list[tuple[int, float]], chance: object) -> None:
    verdicts = [
        verdict(f"c{i}", timing(WORKLOADS[index], ratio, ratio - 0.05)) for i, (index, ratio) in enumerate(measured)
    ]
    ordered, shuffled = Selection(), Selection()
    for each in verdicts:
        ordered = ordered.with_verdict(each)
    chance.shuffle(verdicts)  # type: ignore[attr-defined]
    for each in verdicts:
        shuffled = shuffled.with_verdict(each)
    assert {k: b.ratio for k, b in ordered.best.items()} == {k: b.ratio for k, b in shuffled.best.items()}
