"""The gate on an engine: no evidence, no hits or an interval that reaches 1 release nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gristmill.domain import AxisRange, Domain
from gristmill.kernel_table import Artifact, FileRef, KernelTable, TableEntry
from tasks.engine_gate import decide_engine_release
from tasks.engine_trial import ArmTimes, ReplayPair, Start, TokenDifference, Trial, bootstrapped

FILE = FileRef("objects/00", "00" * 32, 1)


def artifact(operator: str, candidate: str) -> Artifact:
    entry = TableEntry(
        Domain(operator, "bfloat16", (AxisRange("tokens", 1, 8),)), candidate, FILE, False, (), "2.0", "1.5"
    )
    return Artifact(KernelTable(operator, "bfloat16", "cpu", (entry,)), {}, FILE, "2026-12-02T00:00:00Z")


def start(number: int, *ratios: float, **changes: object) -> Start:
    pairs = tuple(
        ReplayPair(number, 8, "engine", ArmTimes(100.0, 0.5, 0.04), ArmTimes(100.0 * ratio, 0.5 / ratio, 0.04 / ratio))
        for ratio in ratios
    )
    plain = Start(pairs, {"one": 50}, 0, 16 * len(pairs), 384 * len(pairs), (), {})
    return replace(plain, **changes)  # type: ignore[arg-type]


GOOD = (1.05, 1.06, 1.07, 1.05, 1.06)
TABLES = (artifact("rms_norm", "one"),)


def decided(*starts: Start) -> tuple[bool, str]:
    decision = decide_engine_release(Trial(starts, 1), TABLES)
    return decision.promote, decision.reason


def test_a_gain_in_every_start_is_released() -> None:
    promoted, reason = decided(start(0, *GOOD), start(1, *GOOD))
    assert promoted, reason
    assert "1.05" in reason and "2 starts" in reason


@pytest.mark.parametrize(
    ("starts", "word"),
    [
        ((), "0 starts"),
        ((start(0, *GOOD),), "1 starts"),
        ((start(0), start(1)), "starts"),
        ((start(0, *GOOD, hits={}), start(1, *GOOD, hits={})), "no call"),
        ((start(0, *GOOD, hits={"another": 9}), start(1, *GOOD, hits={})), "rms_norm.bfloat16"),
        ((start(0, *GOOD, hits_off=3), start(1, *GOOD)), "3 hits"),
        ((start(0, 0.97, 1.06, 1.01), start(1, 1.02, 0.99, 1.04)), "inconclusive"),
        ((start(0, 0.9, 0.91, 0.92), start(1, 0.9, 0.91, 0.92)), "slower"),
        ((start(0, *GOOD), start(1, 0.93, 0.94, 0.93, 0.94, 0.93)), "inconclusive"),
    ],
)
def test_what_is_not_proven_is_not_released(starts: tuple[Start, ...], word: str) -> None:
    promoted, reason = decided(*starts)
    assert not promoted
    assert word in reason


def test_a_table_that_nobody_called_holds_back_the_others() -> None:
    tables = (*TABLES, artifact("silu_and_mul", "two"))
    decision = decide_engine_release(Trial((start(0, *GOOD), start(1, *GOOD)), 1), tables)
    assert not decision.promote
    assert "silu_and_mul.bfloat16" in decision.reason


def test_latency_that_is_proven_worse_is_not_released() -> None:
    slow = [replace(pair, kernels=replace(pair.kernels, ttft_s=0.7)) for pair in start(0, *GOOD).pairs]
    promoted, reason = decided(start(0, pairs=tuple(slow)), start(1, pairs=tuple(slow)))
    assert not promoted
    assert "TTFT" in reason


@pytest.mark.parametrize(
    ("gap", "count", "promotes"), [(0.1, 1, True), (None, 1, True), (0.6, 1, False), (0.1, 40, False)]
)
def test_other_tokens_are_forgiven_where_rounding_decided(gap: float | None, count: int, promotes: bool) -> None:
    parted = tuple(TokenDifference(3, 7, 11, 12, gap) for _ in range(count))
    promoted, reason = decided(start(0, *GOOD, differences=parted), start(1, *GOOD))
    assert promoted is promotes, reason


def test_what_differs_between_starts_widens_the_interval() -> None:
    alike = bootstrapped([[1.04, 1.05, 1.06]] * 2, 1)
    apart = bootstrapped([[1.00, 1.01, 1.02], [1.08, 1.09, 1.10]], 1)
    assert apart.high - apart.low > 2 * (alike.high - alike.low)
    assert alike.low <= alike.middle <= alike.high
