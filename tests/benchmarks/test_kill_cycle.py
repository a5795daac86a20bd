"""What the figures of the killed cycle count: each difference is one, and none is overlooked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.figures import Outcome
from benchmarks.kill_cycle import Cycle, figures, ratio_of
from gristmill.kernel_table import KernelTable
from tests.tasks.world import candidate, rms_norm

TABLES = tuple(KernelTable(name, "float32", "cpu", ()) for name in ("rms_norm", "silu_and_mul"))
WHOLE = Cycle(TABLES, ("a", "b"), 2, 0, ("a", "b"), generations=1, unpaid=0)
KILLED = replace(WHOLE, judgements=5, kills=100, lives=101)


def outcomes(killed: Cycle, whole: Cycle = WHOLE) -> list[tuple[float | None, Outcome]]:
    return [(row.measured, row.verdict) for row in figures(whole, killed)]


def test_the_same_is_met_and_judgements_that_were_cut_off_are_told() -> None:
    assert outcomes(KILLED) == [(0.0, Outcome.MET), (0.0, Outcome.MET)]
    assert figures(WHOLE, KILLED)[1].note.startswith("3 judgements were cut off")


@pytest.mark.parametrize(
    ("wrong", "differing"),
    [
        ({"promoted": TABLES[:1]}, 1.0),
        ({"promoted": (TABLES[0], replace(TABLES[1], hardware="gpu"))}, 1.0),
        ({"promoted": ()}, 2.0),
        ({"judged": ("b", "a")}, 0.0),
        ({"runs": ("a", "a", "b")}, 0.0),
        ({"runs": ("a",)}, 0.0),
        ({"generations": 2}, 0.0),
        ({"unpaid": 1}, 0.0),
    ],
)
def test_every_difference_is_a_miss(wrong: dict[str, object], differing: float) -> None:
    first, second = outcomes(replace(KILLED, **wrong))  # type: ignore[arg-type]
    assert first == (differing, Outcome.MISSED) and second == (0.0, Outcome.MET)


def test_nothing_promoted_proves_nothing_and_one_judged_twice_is_a_miss() -> None:
    assert outcomes(replace(KILLED, promoted=()), replace(WHOLE, promoted=()))[0][1] is Outcome.MISSED
    assert outcomes(replace(KILLED, twice=1))[1] == (1.0, Outcome.MISSED)


def test_replayed_timings_depend_on_digests_alone() -> None:
    ratios = [ratio_of(candidate(number), rms_norm(4)) for number in range(50)]
    assert ratios == [ratio_of(candidate(number), rms_norm(4, calls=9)) for number in range(50)]
    assert min(ratios) < 1 < max(ratios) and len(set(ratios)) == 50
