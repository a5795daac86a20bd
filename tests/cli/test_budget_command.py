"""`./mill budget` says what is spent, in flight, abandoned and left; options of commands that spend are checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.caps import BudgetCaps, Caps
from agents.ledger import Ledger
from agents.spending import Amount
from cli.__main__ import main
from tasks.recruitment import DEFAULT_AGENTS

CAPS = BudgetCaps(Caps(usd=2.0, device_s=60.0), Caps(usd=9.0))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILL_HOME", str(tmp_path))
    return tmp_path


def spend(home: Path, search: str, usd: float) -> None:
    with Ledger(home / "ledger.db") as ledger:
        ledger.budget(search, CAPS).reserve(Amount(usd=2.0), "a call").settle(Amount(usd=usd, tokens=1200))


def test_before_anything_is_spent_there_is_no_ledger_and_none_is_made(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget"]) == 0
    assert capsys.readouterr().out.startswith("nothing was spent yet\nthe next search may spend 5 USD")
    assert not (home / "ledger.db").exists()


def test_the_table_tells_every_resource_that_is_capped_or_spent(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spend(home, "s1", 0.5)
    spend(home, "s2", 0.25)
    assert main(["budget", "--search", "s1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[4][:9] == ["search", "s1", "USD", "2", "0.5", "0", "1.5", "1", "settled,"]
    assert lines[5][:5] == ["tokens", "-", "1200", "0", "-"]
    assert lines[6][:6] == ["device", "seconds", "60", "0", "0", "60"]
    assert lines[2][2:7] == ["USD", "9", "0.75", "0", "8.25"]
    assert not any("s2" in line for line in lines)


@pytest.mark.parametrize("spent", [True, False])
def test_an_unknown_search_is_one_line_and_exit_code_2(
    home: Path, spent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if spent:
        spend(home, "s1", 0.5)
    assert main(["budget", "--search", "s9"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1
    assert shown.err.startswith("mill: search 's9': the ledger knows none")


def test_json_holds_every_account_and_what_is_open(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spend(home, "s1", 0.5)
    with Ledger(home / "ledger.db") as ledger:
        ledger.budget("s1", CAPS).reserve(Amount(usd=1.0), "a slow call")
        assert main(["budget", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["searches"][0]["remaining"]["usd"] == 0.5
    assert found["searches"][0]["in_flight"]["usd"] == 1.0
    assert [(entry["purpose"], entry["abandoned"]) for entry in found["open"]] == [("a slow call", False)]


def test_a_damaged_ledger_is_one_line_and_exit_code_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "ledger.db").write_bytes(b"no database" * 100)
    assert main(["budget"]) == 2
    error = capsys.readouterr().err
    assert "damaged" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("option", ["--max-usd", "--max-tokens", "--daily-device-s", "--daily-wall-s"])
@pytest.mark.parametrize("value", ["-1", "x", "nan", "1e99"])
def test_options_that_are_no_caps_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compile", f"{option}={value}"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {option}: found {value!r}, expected" in error and len(error.splitlines()) == 1


def test_help_tells_each_default_once_and_none_that_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compile", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert "(default: islands) --" in text and "120.0)" in text
    assert f"(default: {DEFAULT_AGENTS}); 0 for none --" in text
    for noise in ("(default: None)", "(default: [])", "(default: False)", "(default: islands) (default"):
        assert noise not in text
