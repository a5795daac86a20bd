"""The last lines of `./mill compile`: how each search ended, and why one judged nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.__main__ import main
from cli.compile import endings
from flows.compile import gain_text, remarks, search_rows
from tasks.agent_thread import Departure
from tasks.compilation import OperatorSearch, SearchResult
from tasks.search_plan import NOBODY, NOT_RELEASED, Skipped


def result(*operators: OperatorSearch) -> SearchResult:
    return SearchResult("s1", "p" * 64, (), operators, "")


def search(**fields: object) -> OperatorSearch:
    made = {"trials": 0, "statuses": {}, "best_ratios": (), "gains": {}, **fields}
    return OperatorSearch("rms_norm", "float32", 6.0, 6.0, 1, **made)  # type: ignore[arg-type]


def test_the_table_says_on_how_much_of_its_traffic_a_search_gained() -> None:
    row = search_rows(result(search(trials=9, statuses={"faster": 1}, best_ratios=(1.0, 1.0004), gains={"w": 1.05})))[0]
    assert (row["faster"], row["faster on"], row["gain on its traffic"]) == ("1", "1 of 1 workloads", "1.0004x")


@pytest.mark.parametrize(
    ("gain", "text"), [(1.0, "1.00x"), (1.00001, "1.0000x"), (1.0049, "1.0049x"), (1.005, "1.00x"), (1.92, "1.92x")]
)
def test_two_digits_unless_they_hide_a_gain(gain: float, text: str) -> None:
    assert gain_text(gain) == text


def test_who_used_up_its_seconds_needs_no_line() -> None:
    assert list(endings(result(search(trials=9)))) == []


def test_why_nothing_was_judged_is_said_once() -> None:
    (line,) = endings(result(search(ended="a cap", nothing="a cap")))
    assert line == "rms_norm float32 judged nothing: a cap"


def test_an_early_end_and_everybody_who_left_or_waited_is_named() -> None:
    lines = list(endings(result(search(trials=1, ended="a cap", waiting=2, departures=(Departure("llm:0", "why"),)))))
    assert lines == [
        "rms_norm float32 ended early: a cap",
        "rms_norm float32: 2 agents were waiting for their provider at the end",
        "rms_norm float32: llm:0 left: why",
    ]


def test_what_was_not_searched_and_what_is_not_released_is_said() -> None:
    gained = replace(search(trials=1, gains={"w": 1.5}), operator="rms_norm+skinny_linear")
    gainless = replace(search(trials=1), operator="silu_and_mul+skinny_linear")
    made = replace(result(gained, gainless), skipped=(Skipped("rms_norm+softmax", "float32", NOBODY),))
    assert list(remarks(made)) == [
        f"rms_norm+softmax float32 was not searched: {NOBODY}",
        f"rms_norm+skinny_linear float32: {NOT_RELEASED}",
    ]


@pytest.mark.parametrize("agents", ["-1", "257", "99999999999", "1e3"])
def test_more_agents_than_a_search_can_hold_are_refused_before_anything_starts(
    agents: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compile", f"--agents={agents}"])
    assert end.value.code == 2
    assert f"--agents: found '{agents}', expected a whole number from 0" in capsys.readouterr().err
