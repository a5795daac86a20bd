"""What a fleet runs that nothing was compiled for: told once for each, and never of what is as it was."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.directory_store import DirectoryStore
from gristmill.hardware import gpus_of_nvidia_smi
from kernels.profile import TrafficProfile
from tasks import traffic
from tasks.compilation import search_id_of
from tasks.fleet_changes import Kind, engine_change, engine_versions, fleet_changes, places_changed, reason_to_compile
from tasks.settings import Settings
from tests.tasks.world import HARDWARE, profile, rms_norm, settings

ONE = rms_norm(1)


def ran(torch: str = "2.12.0", end: str = "2026-12-01T01:00:00+00:00", **versions: str) -> TrafficProfile:
    return replace(profile(ONE, end=end), versions={"torch": torch, "gristmill": "0.1", **versions})


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.settings: Settings = settings(folder / "home", folder / "store")
        (folder / "store").mkdir()
        self.store = DirectoryStore(folder / "store")

    def samples(self, model: str = "tiny", hardware: str = HARDWARE, hours_ago: float = 0.5) -> None:
        start_ns = time.time_ns() - round(hours_ago * traffic.NS_PER_HOUR)
        self.store.put_new(f"spool/chat/{model}/{hardware}/{start_ns}-x.parquet", b"samples")

    def changes(self) -> list[tuple[Kind, str, str]]:
        return [(one.kind, one.model, one.hardware) for one in fleet_changes(self.store, self.settings, 24.0)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_fleet_that_nothing_was_compiled_for_is_a_new_model(fleet: Fleet) -> None:
    assert fleet.changes() == []
    fleet.samples()
    assert fleet.changes() == [(Kind.MODEL, "tiny", HARDWARE)]


def test_what_was_compiled_for_is_no_change_and_what_is_new_beside_it_is(fleet: Fleet) -> None:
    fleet.samples()
    traffic.keep_profile(fleet.store, fleet.settings, ran())
    traffic.mark_compiled(fleet.store, fleet.settings, ran())
    assert fleet.changes() == []
    fleet.samples(hardware="other")
    fleet.samples(model="next")
    fleet.samples(model="old", hours_ago=30.0)
    assert fleet.changes() == [(Kind.MODEL, "next", HARDWARE), (Kind.DEVICE, "tiny", "other")]


def test_a_version_of_the_engine_is_new_once(fleet: Fleet) -> None:
    fleet.samples()
    traffic.mark_compiled(fleet.store, fleet.settings, ran())
    upgrading = ran("2.12.0, 2.13.0", end="2026-12-01T02:00:00+00:00")
    traffic.keep_profile(fleet.store, fleet.settings, upgrading)
    (change,) = fleet_changes(fleet.store, fleet.settings, 24.0)
    assert (change.kind, change.told) == (Kind.ENGINE, "torch 2.13.0 is new, compiled for was 2.12.0")
    assert reason_to_compile(fleet.store, fleet.settings, upgrading) == change.told
    traffic.mark_compiled(fleet.store, fleet.settings, upgrading)
    upgraded = ran("2.13.0", end="2026-12-01T03:00:00+00:00")
    traffic.keep_profile(fleet.store, fleet.settings, upgraded)
    assert fleet.changes() == []
    assert reason_to_compile(fleet.store, fleet.settings, upgraded) == ""


def test_reasons_to_compile(fleet: Fleet) -> None:
    assert "nothing was compiled" in reason_to_compile(fleet.store, fleet.settings, ran())
    traffic.mark_compiled(fleet.store, fleet.settings, ran())
    assert reason_to_compile(fleet.store, fleet.settings, ran()) == ""
    moved = replace(profile(rms_norm(4096), end="2026-12-01T05:00:00+00:00"), versions=ran().versions)
    assert reason_to_compile(fleet.store, fleet.settings, moved) == (
        "traffic has moved: rms_norm float32: tokens from 1 to 4096, 100% of the time"
    )


def test_a_gpu_that_arrives_is_a_new_device_and_one_without_a_profile_is_told_so(fleet: Fleet) -> None:
    """Hosts sample under the key of what their model is computed on, so that nothing else has to notice."""
    known, unknown = gpus_of_nvidia_smi("NVIDIA H200, 9.0\nNVIDIA X100, 13.0\n")
    traffic.mark_compiled(fleet.store, fleet.settings, ran())
    fleet.samples(hardware=known.key)
    (change,) = fleet_changes(fleet.store, fleet.settings, 24.0)
    assert (change.kind, change.hardware) == (Kind.DEVICE, "sm_90-NVIDIA_H200")
    assert change.told == "tiny is served on sm_90-NVIDIA_H200, which is new"
    traffic.mark_compiled(fleet.store, replace(fleet.settings, hardware=known.key), replace(ran(), hardware=known.key))
    fleet.samples(hardware=unknown.key)
    (change,) = fleet_changes(fleet.store, fleet.settings, 24.0)
    assert change.told.endswith("sm_130-NVIDIA_X100, which is new; no file of kernels/devices says what it can do")


def test_our_own_version_is_no_engine() -> None:
    assert engine_versions({"torch": "1, 2", "gristmill": "3"}) == {"torch": {"1", "2"}}
    assert engine_change(ran(), replace(ran(), versions={"torch": "2.12.0", "gristmill": "9"})) == ""
    assert "vllm 0.32 is new, compiled for was none" in engine_change(ran(), ran(vllm="0.32"))


def test_a_new_model_on_a_new_device_is_a_new_model() -> None:
    (found,) = places_changed({("next", "other")}, {("tiny", HARDWARE)})
    assert found.kind is Kind.MODEL


def test_verdicts_against_another_version_of_the_engine_are_another_search_s() -> None:
    assert search_id_of(ran(), 0) == search_id_of(replace(ran(), versions={**ran().versions, "gristmill": "2"}), 0)
    assert search_id_of(ran(), 0) != search_id_of(ran("2.13.0"), 0)
