"""The continuous flow: one turn after another, each cut off wherever it may be, none of them lost.

Steps that measure are replaced through the seam that Prefect uses as well; store, journal, signatures are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from flows.continuous import continuous_steps
from flows.promote import Turn, promote_steps
from flows.steps import Step
from gristmill.workload import Workload
from kernels.profile import TrafficProfile, rank
from registry import failures
from registry.errors import RegistryStateError
from registry.repository import Repository
from registry.rollback import roll_back
from tasks import cycle_report, object_store, promotion
from tasks.compilation import OperatorSearch, SearchResult, journal_path, search_id_of
from tasks.errors import SearchBusyError
from tasks.journal import Journal
from tasks.settings import Settings
from tests.registry.world import shared_keys
from tests.tasks.world import PEAKS, FormulaBench, candidate, profile, rms_norm, settings

SMALL, LARGE = profile(rms_norm(1)), profile(rms_norm(4096), end="2026-12-01T02:00:00+00:00")


@dataclass
class Mill:
    """Runs turns over scripted traffic and measurements; dies before a step if told to."""

    settings: Settings
    traffic: TrafficProfile = SMALL
    ratio: float = 2.0
    dies_before: str = ""
    searches: int = 0
    told: list[str] = field(default_factory=list)

    def turn(self) -> Turn:
        return continuous_steps(
            self.settings, self.step, window_h=1.0, budget_s=10.0, channel="canary", tell=self.told.append
        )

    @property
    def current(self) -> int:
        """Number of the generation that the channel serves; 0 if there is none."""
        with object_store.opened(self.settings) as opened:
            repository = Repository(opened.store, promotion.keyring_of(self.settings))
            try:
                entry = repository.current(promotion.channel_of(self.settings, "canary"))
            except RegistryStateError:
                return 0
        return 0 if entry is None else entry.index.number

    @property
    def step(self) -> Step:
        measured: dict[str, Callable[..., Any]] = {
            "capture_profile": lambda *_: self.traffic,
            "cached_peaks": lambda _: PEAKS,
            "search_operators": self._search,
            "prove_winners": self._prove,
        }

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            if function.__name__ == self.dies_before:
                raise KeyboardInterrupt
            return measured.get(function.__name__, function)

        return wrap

    def _ratio(self, candidate: object, workload: Workload) -> float:
        return self.ratio

    def _search(self, settings: Settings, traffic: TrafficProfile, *_: object) -> SearchResult:
        self.searches += 1
        search_id = search_id_of(traffic, 0)
        journal = Journal(journal_path(settings, search_id))
        one, workloads = candidate(round(self.ratio * 10)), traffic.workloads
        journal.append(one, FormulaBench(self._ratio).judge(one, workloads), workloads)
        operator = OperatorSearch("rms_norm", "float32", 10.0, 10.0, 1, 1, {"faster": 1}, (self.ratio,), {})
        return SearchResult(search_id, "", rank(traffic, PEAKS), (operator,), "")

    def _prove(self, settings: Settings, traffic: TrafficProfile, winners: dict, *_: object) -> tuple:
        bench = FormulaBench(self._ratio)
        return tuple((promotion.prove(bench, traffic, found), {"torch": "2.13.0"}) for found in winners.values())


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mill:
    monkeypatch.setattr(cycle_report.report, "render", lambda shown: "drawing takes most of the time")
    chosen = settings(tmp_path / "home", tmp_path / "store")
    shutil.copytree(shared_keys(), chosen.keys_dir)
    (tmp_path / "store").mkdir()
    return Mill(chosen)


def test_a_turn_compiles_once_and_rests_until_traffic_moves(mill: Mill) -> None:
    first = mill.turn()
    assert first.compiled and first.generation is not None and mill.told[0] == "nothing was compiled for this fleet yet"
    assert not mill.turn().compiled and mill.searches == 1
    mill.traffic = LARGE
    moved = mill.turn()
    assert moved.compiled and mill.searches == 2 and any(told.startswith("traffic has moved: ") for told in mill.told)
    assert moved.generation is not None and moved.generation > first.generation, "kernels for the new traffic"
    assert not mill.turn().compiled


@pytest.mark.parametrize(
    "step", ["search_operators", "keep", "load", "prove_winners", "publish_artifacts", "mark_compiled"]
)
def test_a_turn_that_was_cut_off_is_done_by_the_next(mill: Mill, step: str) -> None:
    """Winners that were found but not yet published must not be forgotten because traffic stays as it is."""
    mill.dies_before = step
    with pytest.raises(KeyboardInterrupt):
        mill.turn()
    mill.dies_before = ""
    before = mill.current
    turned = mill.turn()
    assert turned.compiled
    if step == "mark_compiled":
        assert before > 0 and mill.current == before, "it had been published already"
    else:
        assert before == 0 and turned.generation == mill.current > 0
    assert not mill.turn().compiled


def test_a_turn_without_a_winner_is_a_turn(mill: Mill) -> None:
    mill.ratio = 0.9
    turned = mill.turn()
    assert turned.compiled and turned.generation is None and "proved no candidate faster" in turned.reason
    assert not mill.turn().compiled


def fail_canary(mill: Mill) -> None:
    with object_store.opened(mill.settings) as opened:
        keyring, channel = promotion.keyring_of(mill.settings), promotion.channel_of(mill.settings, "canary")
        roll_back(opened.store, keyring, channel, to=0, reason=failures.told("3 mismatches"))


def test_what_failed_in_canary_is_not_pushed_round_and_round(mill: Mill) -> None:
    first = mill.turn()
    fail_canary(mill)
    mill.traffic = LARGE
    turned = mill.turn()
    assert turned.compiled and turned.generation is None and mill.searches == 2, "it finds the same again"
    assert f"generation {first.generation} failed in canary: 3 mismatches" in turned.reason
    assert "./mill promote --again" in turned.reason
    assert not mill.turn().compiled, "nor does it search for ever"
    published, _ = promote_steps(mill.settings, mill.step, channel="canary", again=True)
    assert published.manifests and not published.declined, "a person has said so"


def test_another_kernel_is_tried_after_one_has_failed(mill: Mill) -> None:
    first = mill.turn()
    fail_canary(mill)
    mill.traffic, mill.ratio = LARGE, 2.5
    turned = mill.turn()
    assert turned.generation is not None and first.generation is not None and turned.generation > first.generation


def test_what_the_gate_declines_is_told_and_no_generation(mill: Mill) -> None:
    mill.turn()
    mill.traffic = profile(rms_norm(1), rms_norm(4096, calls=1000), end="2026-12-01T02:00:00+00:00")
    mill.ratio = 1.1
    turned = mill.turn()
    assert turned.compiled and turned.generation is None
    assert turned.reason.startswith("rms_norm.float32 stays: gain over all ranges")


def test_a_turn_leaves_a_search_to_the_process_that_is_at_it(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduled turn and a compilation that an event started may meet."""

    def busy(*_: object) -> SearchResult:
        raise SearchBusyError("search abc: process 7 is at it already")

    with monkeypatch.context() as patched:
        patched.setattr(mill, "_search", busy)
        turned = mill.turn()
    assert not turned.compiled and turned.generation is None and "process 7 is at it" in turned.reason
    assert mill.turn().generation is not None, "what the other leaves undone is done"


def test_a_new_version_of_the_engine_starts_a_turn(mill: Mill) -> None:
    mill.traffic = replace(SMALL, versions={"torch": "2.12.0"})
    mill.turn()
    mill.traffic = replace(SMALL, versions={"torch": "2.13.0"}, window_end_utc="2026-12-01T03:00:00+00:00")
    assert mill.turn().compiled and mill.told[-1] != "traffic has moved" and mill.searches == 2
    assert any("torch 2.13.0 is new" in text for text in mill.told)
    assert not mill.turn().compiled
