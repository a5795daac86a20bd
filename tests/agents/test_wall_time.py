"""A search's time is charged as it passes, and a dead search's at most one slice too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.caps import BudgetCaps, Caps
from agents.errors import BudgetSpentError
from agents.ledger import Ledger
from agents.spending import Amount
from agents.wall_time import WallTime


def test_time_is_charged_slice_by_slice_until_the_cap(tmp_path: Path) -> None:
    now_s = 0.0
    with Ledger(tmp_path / "ledger.db") as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(wall_s=25.0)))
        with pytest.raises(BudgetSpentError, match="seconds"), WallTime(budget, 10.0, lambda: now_s) as time:
            while True:
                assert ledger.searches()[0].in_flight == Amount(wall_s=10.0)
                now_s += 4.0
                time.tick()
        # Slices ended after 12 s and 24 s; a third one did not fit.
        assert now_s == 24.0
        assert ledger.searches()[0].spent == Amount(wall_s=24.0)
        assert ledger.searches()[0].in_flight == Amount()


def test_the_end_charges_what_was_used(tmp_path: Path) -> None:
    now_s = 0.0
    with Ledger(tmp_path / "ledger.db") as ledger:
        with WallTime(ledger.budget("s1", BudgetCaps()), 10.0, lambda: now_s):
            now_s = 3.5
        assert ledger.searches()[0].spent == Amount(wall_s=3.5)
