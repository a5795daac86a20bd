"""Where caps come from: options win over the environment, that over the file, that over the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.caps import BudgetCaps, Caps
from agents.errors import CapError
from gristmill.errors import GristmillError
from tasks import budgeting
from tasks.errors import SettingsError
from tasks.settings import Settings, from_environment


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return from_environment({"MILL_HOME": str(tmp_path)})


def write(settings: Settings, text: str) -> None:
    (settings.home / "budget.toml").write_text(text)


def test_without_anything_only_money_has_caps(settings: Settings) -> None:
    assert budgeting.caps(settings, environ={}) == BudgetCaps(Caps(usd=5.0), Caps(usd=20.0))


def test_each_source_wins_over_the_one_below_it_cap_by_cap(settings: Settings) -> None:
    write(settings, '[search]\nusd = 1\ntokens = 1000\ndevice_s = "none"\n[day]\nusd = 2.5\nwall_s = 60\n')
    environ = {"MILL_MAX_USD": "3", "MILL_DAILY_WALL_S": "none", "MILL_MAX_TOKENS": ""}
    found = budgeting.caps(settings, {"max_usd": 4.0, "daily_device_s": None}, environ)
    assert found == BudgetCaps(Caps(usd=4.0, tokens=1000), Caps(usd=2.5))


def test_an_option_that_says_none_wins_too(settings: Settings) -> None:
    assert budgeting.caps(settings, {"max_usd": None}, {"MILL_MAX_USD": "3"}).search == Caps()


@pytest.mark.parametrize("name", budgeting.CAP_NAMES)
def test_every_cap_can_be_set_everywhere(settings: Settings, name: budgeting.CapName) -> None:
    def of(found: BudgetCaps) -> object:
        return getattr(getattr(found, name.scope), name.resource)

    assert of(budgeting.caps(settings, {name.option: 7}, {})) == 7
    assert of(budgeting.caps(settings, {}, {name.variable: "7"})) == 7
    write(settings, f"[{name.scope}]\n{name.resource} = 7\n")
    assert of(budgeting.caps(settings, {}, {})) == 7


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[search]\nusd = -1", r"\[search\] usd"),
        ("[search]\ntokens = 1.5", "whole number"),
        ("[search]\nusd = nan", r"\[search\] usd"),
        ("[search]\neuro = 1", "expected usd, tokens"),
        ("[week]\nusd = 1", r"\[search\] and \[day\]"),
        ("usd = 1", r"\[search\] and \[day\]"),
        ("[search", "not TOML"),
        ("\udcff", "not TOML"),
    ],
)
def test_a_bad_file_is_one_clear_line(settings: Settings, text: str, place: str) -> None:
    (settings.home / "budget.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(GristmillError, match=place) as problem:
        budgeting.caps(settings, environ={})
    assert "budget.toml" in str(problem.value) and len(str(problem.value).splitlines()) == 1


def test_a_bad_variable_is_named(settings: Settings) -> None:
    with pytest.raises(CapError, match="MILL_DAILY_TOKENS: found 'lots'"):
        budgeting.caps(settings, environ={"MILL_DAILY_TOKENS": "lots"})


def test_a_file_that_cannot_be_read_is_one_clear_line(settings: Settings) -> None:
    (settings.home / "budget.toml").mkdir()
    with pytest.raises(SettingsError, match="directory"):
        budgeting.caps(settings, environ={})
