"""The comparison of searches: who was best when, when a level was reached, and what the figure says of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.figures import Outcome
from benchmarks.memory import CASES, Comparison, Trial
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tests.tasks import world

ONE, FOUR = world.rms_norm(1), world.rms_norm(4)


def trial(number: int, *ratios: float) -> Trial:
    candidate = world.candidate(number)
    timings = (world.timing(w, r, 0.01) for w, r in zip((ONE, FOUR), ratios, strict=True))
    return Trial(candidate, world.verdict(candidate, *timings))


def test_contenders_are_the_best_few_of_each_workload() -> None:
    trials = [
        trial(0, 0.9, 0.9),
        trial(1, 2.0, 0.9),
        trial(2, 1.5, 3.0),
        *(trial(n, 2.0 + n, 1.5) for n in range(3, 9)),
    ]
    found = {candidate.digest for candidate in memory.contenders(trials)}
    names = [one.candidate.digest for one in trials]
    assert names[8] in found and names[4] in found, "the five best on the first workload"
    assert names[2] in found, "the best on the second"
    assert not {names[0], names[1]} & found


def test_gains_are_by_the_second_judgement_and_never_fall() -> None:
    """The first judgement of the second was luck: judged again it is no better than the first."""
    trials = [trial(0, 2.0, 1.0), trial(1, 9.0, 1.0), trial(2, 1.5, 2.0), trial(3, 1.1, 1.1)]
    a, b, c, _ = (one.candidate.digest for one in trials)
    ratios = {(a, ONE.digest): 2.0, (b, ONE.digest): 1.5, (c, FOUR.digest): 2.0}
    assert memory.gains(trials, [ONE, FOUR], ratios) == [pytest.approx(gain) for gain in (4 / 3, 4 / 3, 2.0, 2.0)]


def test_a_level_is_reached_with_the_first_that_comes_near_enough() -> None:
    assert memory.reached([1.0, 1.8, 1.92, 2.0], 2.0) == 3
    assert memory.reached([1.0, 1.8], 2.0) == 3, "never: one more than there were"


def test_the_figure_is_of_sums_and_says_whether_it_is_met() -> None:
    found = [Comparison("a", 0, 2.0, without=1, warm=2), Comparison("b", 0, 2.0, without=19, warm=4)]
    row = memory.figure(found, "a best", 40)
    assert (row.measured, row.verdict) == (0.3, Outcome.MET)
    assert row.interval is not None and row.interval[0] <= 0.3 <= row.interval[1]
    assert "6 instead of 20 candidates over 2 operators and 2 pairs" in row.note and "worst 2.00" in row.note
    assert memory.figure(found[:1], "a best", 40).verdict is Outcome.MISSED


def test_it_goes_on_until_it_is_sure() -> None:
    def pairs(*counts: tuple[int, int]) -> list[Comparison]:
        return [Comparison("a", 0, 2.0, cold, warm) for cold, warm in counts]

    assert memory.is_sure(pairs((20, 2), (18, 3), (22, 4), (15, 1), (20, 5), (19, 2)))
    assert memory.is_sure(pairs((4, 4), (5, 3), (3, 3), (2, 2), (6, 7), (3, 2)))
    assert not memory.is_sure(pairs((20, 2), (18, 18), (22, 4), (15, 14), (20, 5), (19, 2)))


def test_new_shapes_are_new() -> None:
    for case in CASES:
        first, then = (memory.workloads_of(case, shapes) for shapes in (case.first, case.then))
        assert not {w.digest for w in first} & {w.digest for w in then} and len(first) == len(then)


@dataclass
class FormulaJudge:
    """Ratios by the constants alone: one choice of each is the best."""

    prepared: list[str] = field(default_factory=list)

    def prepare(self, candidate: Candidate) -> None:
        self.prepared.append(candidate.digest)

    def judge(self, candidate: Candidate, workloads) -> Verdict:
        values = candidate.origin.parameters
        ratio = 0.9 + 0.6 * (values["UNROLL"] == "1") + 0.6 * (values["LANES"] != "16")
        inside = [w for w in workloads if candidate.domain.admits(w)]
        return world.verdict(candidate, *(world.timing(w, ratio) for w in inside))


@pytest.mark.parametrize("recruit", [memory.pattern_agents, memory.unset_agents])
def test_a_search_with_memory_starts_with_what_it_holds(tmp_path: Path, recruit: memory.Recruit) -> None:
    judge, case = FormulaJudge(), CASES[0]
    first, then = (memory.brief_of(memory.workloads_of(case, s), world.PEAKS) for s in (case.first, case.then))
    with memory.memory_in(tmp_path / "memory") as known:
        for one in memory.explored(judge, first, 0, known, 30, recruit):  # type: ignore[arg-type]
            known.record(one.candidate, one.verdict)
        searches = [list(memory.explored(judge, then, 7, m, 30, recruit)) for m in (None, known)]  # type: ignore[arg-type]
    for trials in searches:
        digests = [one.candidate.digest for one in trials]
        assert len(digests) == len(set(digests)) == 30
    cold, warm = (next(n for n, one in enumerate(trials) if (one.verdict.ratio or 0) > 2) for trials in searches)
    assert warm == 0 < cold


def test_both_levels_are_compared_with_the_search_that_set_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "Judge", lambda *_: contextlib.nullcontext(FormulaJudge()))
    to_first, to_cold = memory.compare(CASES[0], 0, 30, tmp_path / "memory", world.PEAKS, memory.unset_agents)
    assert to_first.level == to_cold.level > 2, "the constants alone decide"
    assert to_first.warm == to_cold.warm == 1
    assert min(to_first.without, to_cold.without) > 1, "neither began with it"
