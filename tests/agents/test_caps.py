"""Caps are read strictly: a typing error must not become a budget without an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.caps import RESOURCES, BudgetCaps, Caps, cap
from agents.errors import CapError
from agents.spending import Amount


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "", "1 USD", "1e99", None, True, [], "NULL"])
@pytest.mark.parametrize("resource", RESOURCES)
def test_what_is_no_amount_is_refused_with_its_place(resource: str, value: object) -> None:
    with pytest.raises(CapError, match="MILL_MAX: found") as problem:
        cap(resource, value, "MILL_MAX")
    assert len(str(problem.value).splitlines()) == 1


def test_parts_of_tokens_are_refused() -> None:
    with pytest.raises(CapError, match="whole number"):
        cap("tokens", "1.5", "here")
    assert cap("tokens", "2e6", "here") == 2_000_000


@pytest.mark.parametrize("text", ["none", "None", " NONE "])
def test_none_switches_a_cap_off(text: str) -> None:
    assert cap("usd", text, "here") is None


@given(st.floats(0, 1e14, allow_nan=False))
def test_any_number_from_0_on_is_a_cap(number: float) -> None:
    assert cap("usd", repr(number), "here") == cap("usd", number, "here") == number


def test_money_has_caps_unless_somebody_says_none() -> None:
    assert BudgetCaps().search.usd and BudgetCaps().day.usd
    assert BudgetCaps().with_values("search", {"usd": None}) == BudgetCaps(search=Caps())


def test_caps_tell_whether_somebody_asked_for_one_on_money() -> None:
    asked = BudgetCaps().with_values("search", {"usd": 5.0})
    assert not BudgetCaps().with_values("day", {"tokens": 5}).money_asked, "the default is nobody's wish"
    assert asked.money_asked and asked.with_values("day", {"usd": None}).money_asked
    assert not asked.with_values("search", {"usd": None}).money_asked


def test_nothing_is_left_below_0() -> None:
    left = Caps(usd=1.0, tokens=5).left(Amount(usd=2.0, tokens=3, device_s=9.0))
    assert left == Caps(usd=0.0, tokens=2)
