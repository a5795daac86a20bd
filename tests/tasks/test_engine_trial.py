"""A start is measured by turns, with the kill switch between the arms; hits and tokens are attributed to their arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.traces import Request
from tasks.engine_trial import KILL_WORD, TrialSettings, run_start
from tasks.errors import ServingError

REQUESTS = tuple(Request(0.0, 8, 3) for _ in range(2))


class Engine:
    """Obeys the kill switch file, counts hits while it is empty, and takes half the time per token then."""

    def __init__(self, kill_file: Path) -> None:
        self.kill_file = kill_file
        self.hits = self.timed = 0
        self.arms: list[str] = []
        self.kernels_token = 7
        self.unfinished = 0

    @property
    def killed(self) -> bool:
        return self.kill_file.read_text() == KILL_WORD

    def status(self) -> dict[str, Any]:
        counted = {"calls": self.timed, "timed_calls": self.timed, "timed_ns": self.timed * 100}
        served = {"one": self.hits} if self.hits else {}
        return {"served": served, "sampled": {"rms_norm.bfloat16": counted}, "cpu_ns": self.timed * 50}

    def replay(self, requests: Any, concurrency: int, seed: int, *, detail: bool = False) -> dict[str, Any]:
        self.arms.append("engine" if self.killed else "kernels")
        self.hits += 0 if self.killed else 10
        self.timed += 6
        token, tpot_s = (7, 0.04) if self.killed else (self.kernels_token, 0.02)
        one = {"tokens": [5, token, 9], "ttft_s": 0.1, "tpot_s": tpot_s, "gaps": [0.5, 0.2, 0.5] if detail else []}
        finished = len(requests) - self.unfinished
        return {"requests": [one] * finished, "generated_tokens": 3 * finished, "tokens_per_s": 1 / tpot_s}


def measured(engine: Engine, pairs: int = 4) -> Any:
    settings = TrialSettings((2, 4), pairs, 3, engine.kill_file)
    return run_start(engine, REQUESTS, settings, 0)  # type: ignore[arg-type]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "kill").write_text("")
    return Engine(tmp_path / "kill")


def test_arms_take_turns_and_are_told_apart(engine: Engine) -> None:
    start = measured(engine)
    assert len(start.pairs) == 2 * 4
    assert [sorted(pair) for pair in zip(engine.arms[::2], engine.arms[1::2], strict=True)] == [
        ["engine", "kernels"]
    ] * 10  # the first pair of each concurrency warms up
    assert start.hits == {"one": 80}
    assert start.hits_off == 0
    assert all(pair.kernels.tokens_per_s == 2 * pair.engine.tokens_per_s for pair in start.pairs)
    assert {pair.first for pair in start.pairs} == {"engine", "kernels"}
    assert start.operator_ns["engine"] == {"rms_norm.bfloat16": 100.0}
    assert start.cpu_ns == {"engine": 50.0, "kernels": 50.0}
    assert (start.compared_requests, start.compared_tokens, start.differences) == (16, 48, ())
    assert engine.kill_file.read_text() == ""


def test_where_tokens_part_the_engine_is_asked_how_clear_its_choice_was(engine: Engine) -> None:
    engine.kernels_token = 8
    start = measured(engine, 1)
    assert {(one.position, one.engine_token, one.kernels_token, one.gap) for one in start.differences} == {
        (1, 7, 8, 0.2)
    }
    assert engine.arms[-1] == "engine"
    assert start.compared_tokens == 2 * 2 * 2


def test_kernels_are_on_again_after_a_failure(engine: Engine) -> None:
    engine.unfinished = 1
    with pytest.raises(ServingError, match="1 of 2"):
        measured(engine)
    assert engine.kill_file.read_text() == ""
