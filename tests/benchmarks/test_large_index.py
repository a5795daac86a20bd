"""A small channel with one real host in a process of its own, and which sums count as met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import fleet, large_index
from benchmarks.figures import Outcome
from benchmarks.fleet import Address
from benchmarks.large_index import OPERATORS, Seen
from tests.registry.world import CANARY

GOOD = Seen(0.4, 0.8, (3.0, 4.0, 30.0), 55_000_000, 35_000_000, 6, news_ms=150.0)


def test_a_host_takes_its_own_tables_of_a_large_index(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(b"code")
    at = Address(f"file://{tmp_path / 'store'}", {})
    world = fleet.open_registry(tmp_path, at)
    names = large_index.fill(world, b"code", kernels=40)
    current = world.repository.current(CANARY)
    assert current is not None
    assert len(current.index.tables) == 40
    assert [name.partition(".")[0] for name in names] == list(OPERATORS)
    seen = large_index.watched(tmp_path, at, world, names)
    assert seen.tables == len(OPERATORS)
    assert len(seen.warm_ms) == large_index.POLLS
    assert max(seen.news_ms, 1e3 * seen.cold_s) > min(seen.warm_ms)
    assert seen.added_bytes > seen.imports_bytes > 0


def test_the_worst_bound_decides() -> None:
    good = [GOOD, replace(GOOD, cold_s=0.81, added_bytes=55_100_000)]
    cold, warm, memory = large_index.figures(good)
    assert [row.verdict for row in (cold, warm, memory)] == [Outcome.MET] * 3
    assert (warm.measured, memory.measured) == (4.0, 55.05)
    assert "30.0 ms" in warm.note
    assert "150 ms" in warm.note
    assert large_index.figures([GOOD, replace(GOOD, cold_s=2.5)])[0].verdict is Outcome.MISSED
    assert large_index.figures([replace(GOOD, warm_ms=(60.0,))] * 2)[1].verdict is Outcome.MISSED
    assert large_index.figures([replace(GOOD, added_bytes=101_000_000)] * 2)[2].verdict is Outcome.MISSED
