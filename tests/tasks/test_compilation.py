"""A compile session: time goes where it can save, every trial is counted, and a killed one is found again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.caps import BudgetCaps, Caps
from agents.errors import BudgetSpentError
from agents.ledger import Ledger
from agents.metered_time import LEAST_S
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.errors import EmptyProfileError
from tasks import recruitment, search_session
from tasks.compilation import SearchResult, run_searches, search_id_of, weighted_gain
from tasks.errors import NoProfileError
from tasks.search_plan import MINIMUM_S
from tasks.search_session import Trial
from tests.tasks.world import PEAKS, Clock, FormulaBench, ListLog, profile, rms_norm, settings, silu_and_mul

SECOND_NS = 10**9
BUSY = (rms_norm(1, time_ns=6 * SECOND_NS), rms_norm(8, time_ns=2 * SECOND_NS), silu_and_mul(4, time_ns=2 * SECOND_NS))


@dataclass
class Told:
    """Progress as it was told."""

    operators: list[tuple[str, float, int]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """How many agents waited when a search ended."""

    def operator(self, operator: str, dtype: str, budget_s: float, workloads: int) -> None:
        self.operators.append((operator, budget_s, workloads))

    def trial(self, trial: Trial, best_ratio: float) -> None:
        self.ratios.append(best_ratio)

    def waiting(self, agents: int, why: str, *, at_the_end: bool = False) -> None:
        self.ends += [agents] if at_the_end else []


def unrolled(candidate: Candidate, workload: Workload) -> float:
    """More unrolling helps, and only at one token."""
    return 0.7 + 0.2 * int(candidate.origin.parameters["UNROLL"]) if workload.axes["tokens"] == 1 else 0.99


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`run_searches` on a formula, with the clock of the bench."""

    def search(budget_s: float = 20.0, dies_at: int = -1, told: Told | None = None, **options) -> tuple:
        bench, log = FormulaBench(unrolled, Clock(), 1.0, dies_at), ListLog()

        class OnClock(search_session.SearchSession):
            def __init__(self, *arguments, **keywords) -> None:
                super().__init__(*arguments, clock=bench.clock, **keywords)

        monkeypatch.setattr(recruitment, "SearchSession", OnClock)
        options = {"progress": told, "parent_run": lambda: "run-1", **options}
        traffic = options.pop("traffic", profile(*BUSY))
        result = run_searches(bench, log, settings(tmp_path), traffic, PEAKS, budget_s=budget_s, **options)
        return result, bench, log

    return search


def test_the_budget_follows_the_ranking(search) -> None:
    told = Told()
    result, bench, _ = search(budget_s=40.0, told=told)
    assert [r.operator for r in result.ranked] == ["rms_norm", "silu_and_mul"]
    first, second = result.operators
    assert told.ends == [first.waiting, second.waiting] == [0, 0]
    assert (first.operator, second.operator) == ("rms_norm", "silu_and_mul")
    assert first.budget_s / second.budget_s == pytest.approx(
        result.ranked[0].saving_share / result.ranked[1].saving_share
    )
    assert first.budget_s + second.budget_s == pytest.approx(40.0)
    for one in result.operators:
        assert one.budget_s <= one.spent_s < one.budget_s + 1.0
    assert first.trials + second.trials == len(bench.judged) == len(told.ratios)
    assert told.operators == [(o.operator, o.budget_s, o.workloads) for o in result.operators]
    assert result.parent_run == "run-1"


def test_an_operator_that_cannot_finish_a_round_gets_nothing(search) -> None:
    result, _, _ = search(budget_s=MINIMUM_S * 1.5)
    assert [one.operator for one in result.operators] == ["rms_norm"]
    assert len(result.ranked) == 2


def test_best_ratios_only_grow_and_count_what_is_proven(search) -> None:
    result, _, _ = search(traffic=profile(*BUSY[:2]))
    (one,) = result.operators
    assert list(one.best_ratios) == sorted(one.best_ratios)
    assert one.gains == {BUSY[0].label: pytest.approx(max(one.gains.values()))}
    assert one.best_ratios[-1] == pytest.approx(8 / (6 / one.gains[BUSY[0].label] + 2))
    assert sum(one.statuses.values()) == one.trials and set(one.statuses) == {"faster", "slower"}


def test_an_unproven_ratio_is_no_gain(search, monkeypatch: pytest.MonkeyPatch) -> None:
    """A median above 1 whose interval reaches below 1 is noise, and must not be told as a gain."""
    monkeypatch.setattr(FormulaBench, "judge", _barely(FormulaBench.judge))
    result, _, _ = search(traffic=profile(*BUSY[:2]))
    assert set(result.operators[0].best_ratios) == {1.0} and result.operators[0].gains == {}


def _barely(judge):
    def barely(self, candidate, workloads, **options):
        judged = judge(self, candidate, workloads, **options)
        timings = tuple(replace(t, ratio=1.03, ratio_low=0.98, ratio_high=1.08) for t in judged.timings)
        return replace(judged, status=type(judged.status).SLOWER, timings=timings)

    return barely


def test_steps_count_through_all_operators(search) -> None:
    _, _, log = search()
    assert [step for _, step in log.recorded] == list(range(len(log.recorded)))


def test_only_the_named_operators_are_searched_with_the_whole_budget(search) -> None:
    result, _, _ = search(only=["silu_and_mul"])
    assert [(o.operator, o.budget_s) for o in result.operators] == [("silu_and_mul", 20.0)]
    with pytest.raises(NoProfileError, match=r"softmax.*holds rms_norm, silu_and_mul"):
        search(only=["softmax"])


def test_an_empty_profile_is_one_clear_error(search, tmp_path: Path) -> None:
    with pytest.raises(EmptyProfileError, match="capture again"):
        search(traffic=profile(rms_norm(1, time_ns=0)))
    assert not (tmp_path / "searches").exists()


@pytest.mark.parametrize("dies_at", [3, 17])
def test_killed_and_started_again_it_judges_nothing_twice(search, dies_at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(dies_at=dies_at)
    resumed, bench, _ = search()
    assert len(bench.judged) == sum(o.trials for o in resumed.operators) - dies_at
    again, idle, _ = search()
    assert idle.judged == [] and _without_times(again) == _without_times(resumed)


def _without_times(result: SearchResult) -> SearchResult:
    """Without what belongs to one life only."""
    return replace(
        result,
        operators=tuple(
            replace(o, spent_s=0.0, busy_share=0.0, starved_share=0.0, unjudged=0) for o in result.operators
        ),
    )


def test_a_search_is_named_by_its_patterns_and_seed_not_by_counts_or_window() -> None:
    one = profile(*BUSY)
    same = profile(*(replace(w, calls=1, time_ns=5) for w in reversed(BUSY)), end="2027-01-01T00:00:00+00:00")
    assert search_id_of(one, 1) == search_id_of(same, 1)
    assert len({search_id_of(one, 1), search_id_of(one, 2), search_id_of(profile(*BUSY[:2]), 1)}) == 3


ratios = st.floats(0.01, 100)
TRAFFIC = tuple(rms_norm(tokens, time_ns=tokens * 1000) for tokens in (1, 2, 4))
gain_tables = st.dictionaries(st.sampled_from([w.digest for w in TRAFFIC]), ratios)


@given(gains=gain_tables)
def test_a_weighted_gain_lies_between_one_and_the_best(gains: dict[str, float]) -> None:
    gain = weighted_gain(TRAFFIC, gains)
    assert gain * (1 + 1e-12) >= 1.0
    assert gain <= max(1.0, *gains.values(), 1.0) * (1 + 1e-12)


@given(gains=gain_tables, workload=st.sampled_from(TRAFFIC), factor=st.floats(1, 10))
def test_a_weighted_gain_never_falls_when_one_workload_gains(
    gains: dict[str, float], workload: Workload, factor: float
) -> None:
    more = {**gains, workload.digest: gains.get(workload.digest, 1.0) * factor}
    assert weighted_gain(TRAFFIC, more) >= weighted_gain(TRAFFIC, gains) * (1 - 1e-12)


def test_the_weight_is_time() -> None:
    slow, quick = rms_norm(1, time_ns=9000), rms_norm(2, time_ns=1000)
    assert weighted_gain([slow, quick], {slow.digest: 9.0}) == pytest.approx(10 / 2)
    assert weighted_gain([slow, quick], {quick.digest: 1000.0}) == pytest.approx(10 / 9, rel=1e-3)
    assert weighted_gain([], {}) == weighted_gain([rms_norm(1, time_ns=0)], {}) == 1.0


def test_a_spent_budget_ends_the_search_with_what_was_found(search, tmp_path: Path) -> None:
    """A formula takes no time, so that each judgement is charged some microseconds."""
    with Ledger(tmp_path / "ledger.db") as ledger:
        caps = BudgetCaps(search=Caps(device_s=LEAST_S))
        result, bench, _ = search(budget=ledger.budget("s1", caps))
        (account,) = ledger.searches()
    assert len(bench.judged) == 1, "after it, less is left than is set aside at least"
    assert [one.trials for one in result.operators] == [1]
    assert "device seconds" in result.operators[0].ended and not result.operators[0].nothing
    assert account.calls_in_flight == 0 and account.spent.device_s > 0 and account.spent.wall_s > 0


def test_a_cap_that_is_shorter_than_a_slice_is_used_up(search, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(wall_s=2 * LEAST_S)))
        result, _, _ = search(budget=budget)
        (account,) = ledger.searches()
    assert "the search's time" in result.operators[0].ended
    assert account.spent.wall_s >= LEAST_S and account.calls_in_flight == 0


def test_no_time_at_all_is_refused_before_anything_is_done(search, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(BudgetSpentError, match="0 of 0 seconds spent"):
        search(budget=ledger.budget("s1", BudgetCaps(search=Caps(wall_s=0))))


def test_a_budget_that_was_spent_before_ends_a_search_at_once(search, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(device_s=0)))
        result, bench, log = search(budget=budget)
    assert bench.judged == log.recorded == []
    assert [one.trials for one in result.operators] == [0]
    assert "device seconds" in result.operators[0].nothing, "the result says why nothing was judged"
