"""A scheduler's link on a stand-in of vLLM's: what it adds up, what it spools, and that it never stands in the way."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill import records
from gristmill.adapters.vllm_scheduler import SchedulerLink, link_schedulers
from gristmill.membership import VARIABLE, Membership


class Scheduler:
    """The structure of vLLM 0.32's."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.freed: list[str] = []
        self.gristmill: Any = None
        device = types.SimpleNamespace(device_type="cpu")
        self.vllm_config = types.SimpleNamespace(device_config=device)

    def get_request_counts(self) -> tuple[int, int]:
        return 2, 1

    def get_kv_cache_usage(self) -> float:
        return 0.25

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        return "outputs"

    def make_spec_decoding_stats(self, stats: Any, **keywords: Any) -> str:
        return "stats"

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> tuple[None, None]:
        self.freed.append(request.request_id)
        return None, None

    def shutdown(self) -> None:
        self.freed.append("all")


def step(*new: tuple[str, int], tokens: int = 5) -> Any:
    requests = [types.SimpleNamespace(req_id=name, num_computed_tokens=cached) for name, cached in new]
    return types.SimpleNamespace(scheduled_new_reqs=requests, total_num_scheduled_tokens=tokens)


def request(name: str, prompt: int = 30, generated: int = 7) -> Any:
    return types.SimpleNamespace(
        request_id=name, num_prompt_tokens=prompt, num_output_tokens=generated, arrival_time=1_700_000_000.5
    )


def drafted(scheduler: Any, name: str, accepted: int) -> None:
    assert (
        scheduler.make_spec_decoding_stats(
            None, num_draft_tokens=3, num_accepted_tokens=accepted, num_invalid_spec_tokens=None, request_id=name
        )
        == "stats"
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "root.json"
    root.write_text("{}")
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path / 'store'}"
    membership = Membership("eu", "tiny", str(root), str(tmp_path / "cache"), store=store, spool_s=3600)
    return {VARIABLE: records.canonical_json(membership).decode()}


def test_batches_and_requests_are_added_up_and_spooled(environ: dict[str, str], tmp_path: Path) -> None:
    import pyarrow.parquet

    scheduler: Any = Scheduler()
    link = SchedulerLink(scheduler, environ)
    assert scheduler.update_from_output(step(("a", 16), ("b", 0)), None) == "outputs"
    scheduler.update_from_output(step(tokens=2), None)
    for accepted in (2, 0, 1):
        drafted(scheduler, "a", accepted)
    scheduler._free_request(request("a"))
    scheduler._free_request(request("b"), delay_free_blocks=True)
    scheduler.shutdown()
    assert scheduler.freed == ["a", "b", "all"]
    assert link.status() == {
        "steps": 2,
        "scheduled_tokens": 7,
        "running": 4,
        "waiting": 2,
        "cache_usage": 0.5,
        "finished": 2,
        "generated_tokens": 14,
        "cached_tokens": 16,
        "drafts": 3,
        "accepted": [2, 1],
    }
    (file,) = (tmp_path / "store").rglob("requests/*.parquet")
    rows = pyarrow.parquet.read_table(file).to_pylist()
    names = ("prompt_tokens", "generated_tokens", "arrival_ns", "cached_tokens", "drafts", "accepted")
    assert sorted(tuple(row[name] for name in names) for row in rows) == [
        (30, 7, 1_700_000_000_500_000_000, 0, 0, "[]"),
        (30, 7, 1_700_000_000_500_000_000, 16, 3, "[2,1]"),
    ]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda scheduler: setattr(scheduler, "get_request_counts", lambda: 1 / 0),
        lambda scheduler: setattr(scheduler, "get_kv_cache_usage", None),
    ],
)
def test_a_scheduler_that_differs_schedules_on(environ: dict[str, str], break_it: Callable[[Any], None]) -> None:
    scheduler: Any = Scheduler()
    link = SchedulerLink(scheduler, environ)
    break_it(scheduler)
    for _ in range(2):
        assert scheduler.update_from_output(step(("a", 0)), None) == "outputs"
    scheduler._free_request(request("a"))
    assert scheduler.freed == ["a"]
    assert link.status()["finished"] == 0


def test_the_kill_switch_ends_the_reading(environ: dict[str, str]) -> None:
    scheduler: Any = Scheduler()
    link = SchedulerLink(scheduler, {**environ, "GRISTMILL_KILL": "off"})
    scheduler.update_from_output(step(("a", 0)), None)
    assert link.status()["steps"] == 0


def test_a_kill_switch_that_means_nothing_ends_neither_the_reading_nor_the_engine(environ: dict[str, str]) -> None:
    scheduler: Any = Scheduler()
    link = SchedulerLink(scheduler, {**environ, "GRISTMILL_KILL": "of"})
    assert scheduler.update_from_output(step(("a", 0)), None) == "outputs"
    assert link.status()["steps"] == 1


def test_subclasses_that_the_engine_makes_are_linked_once(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Scheduler):
        pass

    class Asynchronous(Own):
        pass

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    link_schedulers(Own)
    link_schedulers(Own)
    scheduler: Any = Asynchronous(9)
    assert scheduler.size == 9
    assert isinstance(scheduler.gristmill, SchedulerLink)
    scheduler.update_from_output(step(), None)
    assert scheduler.gristmill.status()["steps"] == 1
    scheduler.shutdown()
