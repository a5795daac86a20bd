"""Time is charged as it passes: a dead search's wall time by a slice too much at most, a device's by one call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.caps import BudgetCaps, Caps
from agents.errors import BudgetSpentError
from agents.ledger import Ledger, LedgerReservation
from agents.metered_time import LEAST_S, DeviceTime, WallTime
from agents.spending import Amount


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as ledger:
        yield ledger


def test_wall_time_is_charged_slice_by_slice_until_the_cap(ledger: Ledger) -> None:
    now_s = 0.0
    budget = ledger.budget("s1", BudgetCaps(search=Caps(wall_s=25.0)))
    with pytest.raises(BudgetSpentError, match="seconds"), WallTime(budget, 10.0, lambda: now_s) as time:
        while True:
            assert ledger.searches()[0].in_flight == Amount(wall_s=10.0 if now_s < 24 else 1.0)
            now_s += 4.0
            time.tick()
    # Slices of 10 s ended after 12 s and 24 s, and one of the second that was left after 28 s.
    assert now_s == 28.0
    assert ledger.searches()[0].spent == Amount(wall_s=28.0)
    assert ledger.searches()[0].in_flight == Amount()


ROUNDING_S = 1e-4
"""A dozen slices are charged in whole microseconds each."""


@given(st.floats(0.05, 100), st.floats(0.01, 30), st.floats(0.001, 5))
@settings(max_examples=15, deadline=None)
def test_any_cap_on_wall_time_is_used_up_and_passed_by_one_tick_at_most(
    cap_s: float, slice_s: float, step_s: float
) -> None:
    now_s = 0.0
    step_s = max(step_s, cap_s / 12)
    with TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.db") as ledger:
        budget = ledger.budget("s1", BudgetCaps(search=Caps(wall_s=cap_s)))
        with pytest.raises(BudgetSpentError), WallTime(budget, slice_s, lambda: now_s) as time:
            while now_s < 1000:
                now_s += step_s
                time.tick()
        assert cap_s - LEAST_S - ROUNDING_S <= now_s <= cap_s + step_s + ROUNDING_S
        assert ledger.searches()[0].spent.wall_s == pytest.approx(now_s, abs=1e-3)


@pytest.mark.parametrize("cap", ["wall_s", "device_s"])
def test_a_cap_of_nothing_is_refused_in_one_line(ledger: Ledger, cap: str) -> None:
    budget = ledger.budget("s1", BudgetCaps(search=Caps(**{cap: 0})))
    with pytest.raises(BudgetSpentError, match="would pass the cap, which is smaller") as raised:
        (WallTime(budget) if cap == "wall_s" else DeviceTime(budget).charge("a judgement")).__enter__()
    assert "\n" not in str(raised.value)


def test_a_cap_on_device_time_that_is_shorter_than_a_call_allows_one(ledger: Ledger) -> None:
    now_s = 0.0
    device = DeviceTime(ledger.budget("s1", BudgetCaps(search=Caps(device_s=0.3))), lambda: now_s)
    with device.charge("a judgement"):
        assert ledger.searches()[0].in_flight == Amount(device_s=0.3)
        now_s += 0.8
    with pytest.raises(BudgetSpentError, match=r"0\.8 of 0\.3 device seconds"), device.charge("a judgement"):
        pytest.fail("the cap is spent")


def test_the_end_charges_the_wall_time_that_was_used(ledger: Ledger) -> None:
    now_s = 0.0
    with WallTime(ledger.budget("s1", BudgetCaps()), 10.0, lambda: now_s):
        now_s = 3.5
    assert ledger.searches()[0].spent == Amount(wall_s=3.5)


def test_a_slice_whose_settlement_is_interrupted_is_charged_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    settle = LedgerReservation.settle

    def interrupted(reservation: LedgerReservation, actual: Amount) -> None:
        settle(reservation, actual)
        raise KeyboardInterrupt

    monkeypatch.setattr(LedgerReservation, "settle", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        WallTime(ledger.budget("s1", BudgetCaps()), 10.0, lambda: now_s) as wall,
    ):
        now_s = 12.0
        wall.tick()
    assert ledger.searches()[0].spent == Amount(wall_s=12.0)
    assert ledger.open_reservations() == ()


def test_device_time_passes_a_cap_by_the_last_call_at_most(ledger: Ledger) -> None:
    now_s = 0.0
    device = DeviceTime(ledger.budget("s1", BudgetCaps(search=Caps(device_s=20.0))), lambda: now_s)
    durations = iter([2.0, 7.0, 3.0, 9.0, 1.0])
    calls = 0
    with pytest.raises(BudgetSpentError, match="device seconds"):
        for duration in durations:
            with device.charge("a judgement"):
                calls += 1
                now_s += duration
    assert (calls, now_s) == (4, 21.0)
    assert ledger.searches()[0].spent == Amount(device_s=21.0)


def test_waits_for_the_compiler_are_not_charged(ledger: Ledger) -> None:
    now_s = 0.0
    device = DeviceTime(ledger.budget("s1", BudgetCaps()), lambda: now_s)
    with device.charge("a judgement") as waits_s:
        now_s += 5.0
        waits_s.append(4.0)
    assert ledger.searches()[0].spent == Amount(device_s=1.0)


def test_a_failed_judgement_is_charged_too(ledger: Ledger) -> None:
    now_s = 0.0
    device = DeviceTime(ledger.budget("s1", BudgetCaps()), lambda: now_s)
    with pytest.raises(KeyboardInterrupt), device.charge("a judgement"):
        now_s += 5.0
        raise KeyboardInterrupt
    assert ledger.searches()[0].spent == Amount(device_s=5.0)
    assert ledger.searches()[0].in_flight == Amount()
