"""What every budget promises, whatever holds its caps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from agents.caps import BudgetCaps, Caps
from agents.errors import BudgetSpentError
from agents.spending import Amount, Budget

MakeBudget = Callable[[BudgetCaps], Budget]


class BudgetContract:
    """Subclasses give a fixture `make_budget`: a fresh budget with these caps."""

    def test_what_is_reserved_is_in_flight_until_it_is_settled(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(usd=1.0)))
        reservation = budget.reserve(Amount(usd=0.7), "a call")
        with pytest.raises(BudgetSpentError, match="in flight"):
            budget.reserve(Amount(usd=0.4), "another call")
        reservation.settle(Amount(usd=0.1))
        budget.reserve(Amount(usd=0.4), "another call")

    def test_what_is_cancelled_was_never_spent(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(tokens=100)))
        budget.reserve(Amount(tokens=100), "a call").cancel()
        budget.reserve(Amount(tokens=100), "a call").settle(Amount(tokens=100))
        with pytest.raises(BudgetSpentError, match="tokens"):
            budget.reserve(Amount(tokens=1), "a call")

    @pytest.mark.parametrize("scope", ["search", "day"])
    @pytest.mark.parametrize("resource", ["usd", "tokens", "device_s", "wall_s"])
    def test_every_cap_of_every_scope_holds_to_the_last_unit(
        self, make_budget: MakeBudget, scope: str, resource: str
    ) -> None:
        none = BudgetCaps(Caps(), Caps())
        budget = make_budget(none.with_values(scope, {resource: 10}))
        for _ in range(10):
            budget.reserve(Amount(**{resource: 1}), "a call").settle(Amount(**{resource: 1}))
        with pytest.raises(BudgetSpentError, match=scope):
            budget.reserve(Amount(**{resource: 1}), "a call")
        others = {name: 5 for name in ("usd", "tokens", "device_s", "wall_s") if name != resource}
        budget.reserve(Amount(**others), "a call of another kind").settle(Amount(**others))

    def test_a_call_that_costs_more_than_its_bound_counts_in_full(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(usd=1.0)))
        budget.reserve(Amount(usd=0.1), "a call").settle(Amount(usd=5.0))
        with pytest.raises(BudgetSpentError, match="5 of 1 USD"):
            budget.reserve(Amount(usd=1e-6), "another call")

    def test_what_is_left_is_enough_where_little_will_do(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(wall_s=10.0), day=Caps(wall_s=8.0)))
        assert budget.reserve(Amount(wall_s=5.0), "a slice", Amount(wall_s=1.0)).amount == Amount(wall_s=5.0)
        assert budget.reserve(Amount(wall_s=5.0), "a slice", Amount(wall_s=1.0)).amount == Amount(wall_s=3.0)
        with pytest.raises(BudgetSpentError, match="1 more for a slice"):
            budget.reserve(Amount(wall_s=5.0), "a slice", Amount(wall_s=1.0))

    def test_a_cap_that_no_such_call_fits_is_told_apart(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(tokens=100)))
        with pytest.raises(
            BudgetSpentError, match="101 more for a call would pass the cap, which is smaller"
        ) as raised:
            budget.reserve(Amount(tokens=101), "a call")
        assert not raised.value.may_fit_later
        budget.reserve(Amount(tokens=60), "a call").settle(Amount(tokens=60))
        with pytest.raises(BudgetSpentError, match=r"60 more for a call would pass the cap \("):
            budget.reserve(Amount(tokens=60), "a call")

    def test_a_refusal_says_whether_waiting_may_help(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(usd=1.0)))
        reservation = budget.reserve(Amount(usd=0.9), "a call")
        with pytest.raises(BudgetSpentError) as refusal:
            budget.reserve(Amount(usd=0.5), "another call")
        assert refusal.value.may_fit_later
        reservation.settle(Amount(usd=0.8))
        with pytest.raises(BudgetSpentError) as refusal:
            budget.reserve(Amount(usd=0.5), "another call")
        assert not refusal.value.may_fit_later

    def test_a_call_without_a_bound_is_refused(self, make_budget: MakeBudget) -> None:
        with pytest.raises(BudgetSpentError, match="any number of USD"):
            make_budget(BudgetCaps()).reserve(Amount(usd=float("inf")), "a call of unknown price")

    @pytest.mark.parametrize("amount", [Amount(usd=-1.0), Amount(tokens=-1), Amount(device_s=float("nan"))])
    def test_negative_amounts_are_a_bug_of_the_caller(self, make_budget: MakeBudget, amount: Amount) -> None:
        with pytest.raises(ValueError, match="0 or more"):
            make_budget(BudgetCaps()).reserve(amount, "a call")

    def test_a_reservation_ends_once(self, make_budget: MakeBudget) -> None:
        reservation = make_budget(BudgetCaps()).reserve(Amount(usd=1.0), "a call")
        reservation.settle(Amount(usd=1.0))
        with pytest.raises(RuntimeError, match="before"):
            reservation.cancel()

    def test_threads_together_never_pass_a_cap(self, make_budget: MakeBudget) -> None:
        budget = make_budget(BudgetCaps(search=Caps(tokens=100)))
        passed: list[int] = []

        def spend() -> None:
            while True:
                try:
                    budget.reserve(Amount(tokens=3), "a call").settle(Amount(tokens=2))
                except BudgetSpentError:
                    return
                passed.append(2)

        threads = [threading.Thread(target=spend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 90 <= sum(passed) <= 100
