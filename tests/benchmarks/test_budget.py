"""A few of the benchmark's runs, with real kills; and its audit, which must see what it is there to see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.caps import BudgetCaps, Caps
from agents.ledger import Ledger
from agents.spending import Amount
from benchmarks import budget
from benchmarks.budget import Charge, Run
from benchmarks.figures import Outcome

CAPS = BudgetCaps(Caps(usd=1.0, tokens=1000), Caps(usd=1.5))


def test_no_cap_breaks_whenever_workers_are_killed() -> None:
    runs = [budget.perform(seed) for seed in range(8)]
    assert sum(run.kills for run in runs) > 0
    assert sum(len(run.charges) for run in runs) > 50
    assert budget.figure(runs).verdict is Outcome.MET, [run.beyond + run.forgotten for run in runs]


def test_a_ledger_that_forgets_what_is_in_flight_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs over a ledger that checks nothing but what was settled."""
    import agents.ledger

    monkeypatch.setattr(agents.ledger, "_room", lambda *arguments: (agents.ledger.MOST,) * 4)
    monkeypatch.setattr(budget, "_work", _three_calls)
    runs = [budget.perform(seed) for seed in range(3)]
    assert budget.figure(runs).verdict is Outcome.MISSED


def _three_calls(folder: Path, caps: BudgetCaps, search: str, *_: object) -> None:
    ledger = Ledger(folder / "ledger.db")
    for _number in range(3):
        reservation = ledger.budget(search, caps).reserve(Amount(usd=30.0, tokens=10**6), "a call")
        budget._charge(folder, Charge(search, reservation.day, 30.0, 10**6, 30.0, 10**6))
        reservation.settle(Amount(usd=30.0, tokens=10**6))


def books(folder: Path, *charges: Charge) -> Run:
    (folder / "books").write_text("".join(json.dumps(vars(charge)) + "\n" for charge in charges))
    run = Run(0, charges=list(charges))
    Ledger(folder / "ledger.db").budget("first", CAPS)
    with Ledger(folder / "ledger.db") as ledger:
        for charge in charges:
            ledger.budget(charge.search, BudgetCaps(Caps(), Caps())).reserve(Amount(), "a call").settle(
                Amount(charge.usd, charge.tokens)
            )
    today = ledger.today()
    run.charges = [Charge(c.search, today, c.usd, c.tokens, c.usd_bound, c.tokens_bound) for c in charges]
    budget._audit(folder, CAPS, run)
    return run


def test_the_audit_forgives_one_call_its_excess_and_nothing_else(tmp_path: Path) -> None:
    honest, dear = Charge("first", "", 0.6, 10, 0.6, 10), Charge("first", "", 0.9, 10, 0.4, 10)
    assert books(tmp_path, honest, dear).beyond == []
    (tmp_path / "ledger.db").unlink()
    assert books(tmp_path, honest, honest).beyond == ["usd of search first: 1.2 charged, the cap is 1.0"]


def test_the_audit_sees_what_a_ledger_forgot(tmp_path: Path) -> None:
    run = books(tmp_path, Charge("first", "", 0.6, 10, 0.6, 10))
    assert run.forgotten == []
    run.charges *= 2
    budget._audit(tmp_path, CAPS, run)
    assert any("usd of search first" in text for text in run.forgotten)
