"""The mill turns once, small and real: an engine serves, is sampled, gets proven kernels as it serves, gives them back.

Judge, builds, MLflow, signatures and the engine process are those of production; only sizes and budgets differ.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flows import steps
from flows.capture import Captured, capture_steps, ranking_rows
from flows.compile import compile_steps, search_rows
from flows.continuous import continuous_steps
from flows.promote import decision_table, promote_steps, range_rows, release_steps
from flows.rollback import rollback_steps
from gristmill.directory_store import DirectoryStore
from gristmill.kernel_table import Artifact
from gristmill.traces import Request
from registry.publication import Published
from registry.repository import Repository
from registry.rollback import history
from tasks import cycle_report, journal, promotion, search_lock
from tasks.compilation import SearchResult, Silent, journal_path
from tasks.errors import NoWinnerError, SearchBusyError
from tasks.search_session import Trial
from tasks.serving_client import Event, ServingProcess
from tasks.settings import Settings
from tests.conftest import MEMORY
from tests.registry.world import shared_keys
from tests.tasks.world import settings as settings_in

TINY = ["--layers=2", "--hidden=64", "--intermediate=96", "--query-heads=4", "--key-heads=2", "--head-dim=16"]
TINY += ["--vocabulary=256", "--positions=512", "--threads=1", "--poll-s=0.2", "--shadow-every=16"]
REQUESTS = tuple(Request(0.0, 4, 12) for _ in range(6))
CONCURRENCY = 2
BUDGET_S = 8.0
PROOF_S = 0.4
"""Of measuring per workload: nothing here depends on how narrow an interval is."""
PATIENCE_S = 60.0


@dataclass
class Turn:
    """What each phase left for the tests to look at."""

    settings: Settings
    process: ServingProcess
    events: list[Event] = field(default_factory=list)
    captured: Captured | None = None
    search: SearchResult | None = None
    published: Published | None = None
    artifacts: tuple[Artifact, ...] = ()

    def serve(self) -> Event:
        return self.process.replay(REQUESTS, CONCURRENCY, seed=3)

    def serve_until(self, holds: Callable[[Event], bool]) -> Event:
        """Serves until the engine's status is as wanted, as a fleet that follows a channel would."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(status := self.process.status()):
            assert time.monotonic() < deadline, (status, self.events)
            self.serve()
        return status


@pytest.fixture(scope="module")
def turn(template_home: Path) -> Iterator[Turn]:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on the PATH: nothing can be compiled here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setattr(promotion, "HELD_OUT_LIMIT", 2)
        chosen = settings_in(Path(folder) / "home", Path(folder) / "store")
        shutil.copytree(shared_keys(), chosen.keys_dir)
        shutil.copy(template_home / "mlflow.db", chosen.home)
        Repository(DirectoryStore(Path(folder) / "store"), promotion.keyring_of(chosen)).initialise()
        flags = {
            "store": chosen.store_url,
            "fleet": chosen.fleet,
            "model": chosen.model,
            "channel": "canary",
            "root-file": str(chosen.keys_dir / "root.json"),
            "cache-dir": str(chosen.home / "host"),
        }
        arguments = [*TINY, *(f"--{name}={value}" for name, value in flags.items())]
        events: list[Event] = []
        with ServingProcess(arguments, {}, chosen.home / "logs" / "serving.log", events.append) as process:
            process.wait_ready()
            yield Turn(chosen, process, events)


def test_1_traffic_becomes_a_ranked_profile(turn: Turn) -> None:
    before = turn.serve()
    assert before["finished"] == len(REQUESTS) and not any(before["hits"].values())
    turn.process.flush()
    captured = turn.captured = capture_steps(turn.settings, 1.0, steps.plain)
    assert captured.needs_compile and captured.drift is None
    found = {w.operator for w in captured.profile.workloads}
    assert {"rms_norm", "silu_and_mul", "rotary_embedding", "skinny_linear"} <= found
    assert CONCURRENCY in {w.axes["tokens"] for w in captured.profile.of("rms_norm", "float32")}
    assert captured.profile.requests.count == len(REQUESTS)
    rows = ranking_rows(captured.ranked)
    assert len(rows) == len(captured.ranked) and all(set(row) == set(rows[0]) for row in rows)
    again = capture_steps(turn.settings, 1.0, steps.plain)
    assert again.digest == captured.digest, "a capture of the same spool is the same profile"


class Intruder(Silent):
    """Wants the search while it runs, at every trial."""

    def __init__(self, searches: Path) -> None:
        self._searches = searches
        self.refused: list[str] = []

    def trial(self, trial: Trial, best_ratio: float) -> None:
        (lock,) = self._searches.glob("*/lock")
        with pytest.raises(SearchBusyError) as refusal, search_lock.held(lock.parent):
            pass
        self.refused.append(str(refusal.value))


def test_2_a_search_finds_and_keeps_faster_kernels_and_is_one_process_s(turn: Turn) -> None:
    intruder = Intruder(turn.settings.searches_dir)
    search = turn.search = compile_steps(
        turn.settings, steps.plain, budget_s=BUDGET_S, only=["rms_norm"], progress=intruder
    )
    assert len(intruder.refused) == search.operators[0].trials and f"process {os.getpid()} " in intruder.refused[0]
    (one,) = search.operators
    assert one.operator == "rms_norm" and one.statuses.get("faster", 0) > 0, one.statuses
    assert one.best_ratios[-1] > 1
    assert len(search_rows(search)) == 1
    entries = journal.read(journal_path(turn.settings, search.search_id))
    assert len(entries) == one.trials
    assert search.parent_run, "MLflow was reached"
    assert "Pareto by range" in cycle_report.path_of(turn.settings, search.search_id).read_text()
    assert not capture_steps(turn.settings, 1.0, steps.plain).needs_compile, "it was compiled for"


def test_3_the_confirmed_ones_are_published_and_swapped_in_while_serving(turn: Turn) -> None:
    told: list[str] = []
    turn.published, turn.artifacts = promote_steps(
        turn.settings, steps.plain, channel="canary", proof_s=PROOF_S, tell=told.append
    )
    assert told and turn.published.number > 0 and list(turn.published.manifests) == ["rms_norm.float32"]
    assert all(float(row["at least"].removesuffix("x")) > 1 for row in range_rows(turn.artifacts))
    (decided,) = decision_table(turn.published, turn.artifacts)
    assert (decided["decision"], decided["reason"]) == ("published", f"generation {turn.published.number} of canary")
    assert turn.search is not None
    assert decided["reason"] in cycle_report.path_of(turn.settings, turn.search.search_id).read_text()
    number = turn.published.number
    turn.serve_until(lambda status: status["generation"] == number)
    served = turn.serve()
    assert served["finished"] == len(REQUESTS) and served["generation"] == number
    proven = {entry.candidate for artifact in turn.artifacts for entry in artifact.table.entries}
    assert {name for name, count in served["hits"].items() if count} <= proven
    assert sum(served["hits"].values()) > 0, "deployed is not used until it is hit"
    assert [event["generation"] for event in turn.events if event["event"] == "swap"] == [number]


def test_4_promoting_again_publishes_what_is_better_or_nothing(turn: Turn) -> None:
    published, _ = promote_steps(turn.settings, steps.plain, channel="canary", proof_s=PROOF_S)
    assert turn.published is not None
    assert (published.number == turn.published.number) == (published.manifests == turn.published.manifests)
    assert (published.number == turn.published.number) == bool(published.declined)
    turn.published = published


def test_5_stable_serves_what_canary_serves_once_released(turn: Turn) -> None:
    assert turn.published is not None
    released = release_steps(turn.settings, steps.plain)
    assert released.manifests == turn.published.manifests
    assert release_steps(turn.settings, steps.plain).number == released.number


def test_6_rolled_back_the_host_follows_to_the_engines_own_kernels(turn: Turn) -> None:
    back = rollback_steps(turn.settings, "canary", 0, steps.plain)
    turn.serve_until(lambda status: status["generation"] == back.number)
    assert not any(turn.serve()["hits"].values())
    assert "rollback" in {event["event"] for event in turn.events}
    assert not [event for event in turn.events if event["event"] in ("refusal", "poll_failed")]
    store = DirectoryStore(Path(turn.settings.store_url.removeprefix("file://")))
    states = history(store, promotion.keyring_of(turn.settings), promotion.channel_of(turn.settings, "canary"))
    assert states[0].index.tables == {} and states[0].index.restores == 0


def test_7_the_continuous_flow_rests_while_traffic_is_what_it_was(turn: Turn) -> None:
    rested = continuous_steps(turn.settings, steps.plain, window_h=1.0, budget_s=BUDGET_S, channel="canary")
    assert not rested.compiled and rested.generation is None


def test_8_a_search_without_winners_promotes_nothing(turn: Turn) -> None:
    assert turn.search is not None
    path = journal_path(turn.settings, turn.search.search_id)
    kept = path.read_bytes()
    path.write_bytes(b"")
    try:
        with pytest.raises(NoWinnerError, match=turn.search.search_id):
            promote_steps(turn.settings, steps.plain, channel="canary", proof_s=PROOF_S)
    finally:
        path.write_bytes(kept)
