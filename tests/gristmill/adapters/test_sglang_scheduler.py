"""A scheduler's link on a stand-in of SGLang's: what it adds up and spools, and that it never stands in the way."""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill import records
from gristmill.adapters import sglang_runner, sglang_scheduler
from gristmill.adapters.sglang_scheduler import accepted_by_position
from gristmill.membership import VARIABLE, Membership
from tests.gristmill.adapters.test_sglang_runner import ModelRunner, hooked


class Request:
    """What is read of SGLang 0.5.23's `Req`."""

    def __init__(self, prompt: int, wanted: int, cached: int = 0, histogram: tuple[int, ...] = ()) -> None:
        self.origin_input_ids, self.output_ids = [1] * prompt, list[int]()
        self.wanted, self.cached_tokens = wanted, cached
        self.spec_verify_ct, self.spec_correct_drafts_histogram = sum(histogram), list(histogram)
        self.time_stats = types.SimpleNamespace(scheduler_recv_time=time.perf_counter() - 5.0)

    def finished(self) -> bool:
        return len(self.output_ids) >= self.wanted


class Scheduler:
    """The structure of SGLang 0.5.23's."""

    def __init__(self, server_args: Any, port_args: Any = None) -> None:
        self.tp_worker = types.SimpleNamespace(model_runner=server_args)
        self.waiting_queue = [None]
        stats = types.SimpleNamespace(get_kv_token_stats=lambda: (4, 0.25))
        self.pool_stats_observer: Any = types.SimpleNamespace(get_pool_stats=lambda: stats)
        self.released = 0
        self.gristmill: Any = None
        self.gristmill_flush: Any = None

    def process_batch_result(self, batch: Any, result: Any) -> str:
        for request in batch.reqs:
            if not request.finished():
                request.output_ids.append(7)
        return "processed"

    def get_internal_state(self, recv_req: Any) -> Any:
        return types.SimpleNamespace(internal_state={"own": 1})

    def release_host_resources(self) -> None:
        self.released += 1


def batch(*requests: Request, extends: int = 0) -> Any:
    mode = types.SimpleNamespace(is_extend=lambda: extends > 0, is_decode=lambda: extends == 0)
    return types.SimpleNamespace(reqs=list(requests), forward_mode=mode, extend_num_tokens=extends or None)


def processed(scheduler: Scheduler, of: Any) -> None:
    assert sglang_scheduler.process_batch_result(Scheduler.process_batch_result, scheduler, of, None) == "processed"


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setattr(sglang_runner, "_amx", lambda: False)
    monkeypatch.setattr(sglang_scheduler, "speaks_for_its_requests", lambda: True)
    (tmp_path / "root.json").write_text("{}")
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path / 'store'}"
    membership = Membership(
        "eu", "tiny", str(tmp_path / "root.json"), str(tmp_path / "cache"), store=store, spool_s=3600
    )
    monkeypatch.setenv(VARIABLE, records.canonical_json(membership).decode())
    monkeypatch.setenv("GRISTMILL_KILL_FILE", str(tmp_path / "kill"))
    return made()


def made() -> Scheduler:
    runner = hooked(ModelRunner())
    runner.load_model()
    scheduler = Scheduler.__new__(Scheduler)
    sglang_scheduler.make(Scheduler.__init__, scheduler, runner)
    return scheduler


def left(scheduler: Scheduler) -> None:
    sglang_scheduler.release_host_resources(Scheduler.release_host_resources, scheduler)


def rows(tmp_path: Path) -> list[tuple[Any, ...]]:
    import pyarrow.parquet

    names = ("prompt_tokens", "generated_tokens", "cached_tokens", "drafts", "accepted")
    return sorted(
        tuple(row[name] for name in names)
        for file in (tmp_path / "store").rglob("requests/*.parquet")
        for row in pyarrow.parquet.read_table(file).to_pylist()
    )


def test_batches_and_requests_are_added_up_and_spooled_once(scheduler: Scheduler, tmp_path: Path) -> None:
    short, long = Request(30, 1), Request(20, 2, cached=16, histogram=(1, 1, 1))
    processed(scheduler, batch(short, long, extends=34))
    processed(
        scheduler, batch(short, long)
    )  # the first came once more: this batch was started before its end was known
    processed(scheduler, batch(short, long))
    found = scheduler.gristmill.status()["scheduler"]
    assert found == {
        "steps": 3,
        "scheduled_tokens": 38,
        "running": 6,
        "waiting": 3,
        "cache_usage": 0.75,
        "finished": 2,
        "generated_tokens": 3,
        "cached_tokens": 16,
        "drafts": 3,
        "accepted": [2, 1],
        "problem": "",
    }
    left(scheduler)
    assert scheduler.released == 1
    assert rows(tmp_path) == [(20, 2, 16, 3, "[2,1]"), (30, 1, 0, 0, "[]")]


def test_what_the_engine_tells_of_itself_holds_our_status(scheduler: Scheduler) -> None:
    answer = sglang_scheduler.get_internal_state(Scheduler.get_internal_state, scheduler, None)
    assert answer.internal_state["own"] == 1
    status = answer.internal_state["gristmill"]
    assert status["problem"] == "" and records.encode(status) == status
    assert scheduler.gristmill_flush()["calls"] == 0
    left(scheduler)


def test_a_rank_that_shares_its_requests_with_one_that_spools_them_keeps_them_to_itself(
    scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(scheduler)
    monkeypatch.setattr(sglang_scheduler, "speaks_for_its_requests", lambda: False)
    second = made()
    processed(second, batch(Request(3, 1)))
    assert second.gristmill.status()["scheduler"]["finished"] == 1
    left(second)
    assert not rows(tmp_path)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda scheduler: setattr(scheduler, "waiting_queue", None),
        lambda scheduler: setattr(scheduler, "pool_stats_observer", None),
    ],
)
def test_a_scheduler_that_differs_schedules_on(scheduler: Scheduler, break_it: Callable[[Any], None]) -> None:
    break_it(scheduler)
    for _ in range(2):
        processed(scheduler, batch(Request(3, 1)))
    found = scheduler.gristmill.status()
    assert "a bug" in found["scheduler"]["problem"] and found["problem"] == ""
    assert found["scheduler"]["steps"] == 0
    left(scheduler)


def test_requests_that_differ_are_processed_all_the_same(scheduler: Scheduler) -> None:
    request = Request(3, 1)
    del request.time_stats
    processed(scheduler, batch(request))
    assert request.output_ids == [7]
    assert "time_stats" in scheduler.gristmill.status()["scheduler"]["problem"]
    left(scheduler)


def test_the_kill_switch_ends_the_reading(scheduler: Scheduler, tmp_path: Path) -> None:
    (tmp_path / "kill").write_text("off")
    scheduler.gristmill.runner.member.boundary()
    processed(scheduler, batch(Request(3, 1)))
    assert scheduler.gristmill.status()["scheduler"]["steps"] == 0
    left(scheduler)


@pytest.mark.parametrize(
    ("histogram", "accepted"),
    [([], ()), ([4], ()), ([1, 1, 1], (2, 1)), ([0, 0, 3], (3, 3)), ([5, 2, 0, 1], (3, 1, 1))],
)
def test_accepted_tokens_are_told_by_position(histogram: list[int], accepted: tuple[int, ...]) -> None:
    assert accepted_by_position(histogram) == accepted
