"""What an engine really sampled becomes a profile, is kept once, found again, and compared with what was compiled."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from gristmill.directory_store import DirectoryStore
from gristmill.dispatch import Dispatcher
from gristmill.errors import MalformedRecordError
from gristmill.sampler import Sampler
from gristmill.spool import Identity, Spool
from kernels.errors import EmptyProfileError, ProfileVersionError, SpoolObjectError
from kernels.profile import TrafficProfile
from tasks import traffic
from tasks.errors import NoProfileError
from tasks.settings import Settings
from tests.tasks.world import HARDWARE, profile, rms_norm, settings


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return settings(tmp_path / "home", tmp_path / "store")


@pytest.fixture
def store(chosen: Settings) -> DirectoryStore:
    root = Path(chosen.store_url.removeprefix("file://"))
    root.mkdir()
    return DirectoryStore(root)


class Fleet:
    """One engine's sampling: a real sampler and spool, fed call by call."""

    def __init__(self, store: DirectoryStore, folder: Path, model: str = "tiny") -> None:
        self._sampler = Sampler(period=2)
        self._site = Dispatcher(environ={}).site(
            "rms_norm", torch.float32, {"hidden": 8}, (1e-5,), lambda x, w, eps: (torch.rms_norm(x, (8,), w, eps),)
        )
        self._weight = torch.ones(8)
        self.spool = Spool(store, Identity("chat", model, HARDWARE, {"torch": "2.13.0"}), self._sampler, folder)

    def call(self, tokens: int, times: int) -> None:
        for number in range(times):
            cell = self._sampler.cell(self._site, tokens, (torch.ones(tokens, 8), self._weight))
            cell.calls += 1
            if number % 2:
                cell.timed_calls += 1
                cell.timed_ns += 1000 * tokens


def test_the_spool_of_all_processes_becomes_one_profile(store, chosen, tmp_path: Path) -> None:
    for process in ("a", "b"):
        fleet = Fleet(store, tmp_path / process)
        fleet.call(4, 10)
        fleet.call(1, 2)
        fleet.spool.add_request(100, 20, 1)
        fleet.spool.flush()
        fleet.call(4, 10)
        fleet.spool.flush()
    found = traffic.capture_profile(store, chosen, 1.0)
    by_tokens = {w.axes["tokens"]: w for w in found.workloads}
    assert {tokens: w.calls for tokens, w in by_tokens.items()} == {1: 4, 4: 40}
    assert by_tokens[4].time_ns == 40 * 4000
    assert found.requests.count == 2
    assert (found.fleet, found.model, found.hardware) == ("chat", "tiny", HARDWARE)


def test_other_models_older_windows_and_strangers_files_stay_out(store, chosen, tmp_path: Path) -> None:
    other = Fleet(store, tmp_path / "other", model="tiny2")
    other.call(64, 10)
    other.spool.flush()
    ours = Fleet(store, tmp_path / "ours")
    ours.call(4, 10)
    ours.spool.flush()
    folder = f"spool/chat/tiny/{HARDWARE}"
    old_ns = int((datetime.now(UTC) - timedelta(hours=2)).timestamp() * 1e9)
    for stranger in (f"{old_ns}-x-1-0.parquet", "README.txt", "x.parquet"):
        store.put_new(f"{folder}/operators/{stranger}", b"not parquet")
    assert [w.axes["tokens"] for w in traffic.capture_profile(store, chosen, 1.0).workloads] == [4]
    with pytest.raises(SpoolObjectError, match=str(old_ns)):
        traffic.capture_profile(store, chosen, 3.0)


def test_a_host_whose_clock_is_ahead_of_its_time_is_in_no_window(store, chosen, tmp_path: Path) -> None:
    """Else it would be in every one from now on, and make each last until then."""
    ours = Fleet(store, tmp_path / "ours")
    ours.call(4, 10)
    ours.spool.flush()
    for days, counts in ((365 * 74, False), (1, False), (1 / 48, True)):
        ahead_ns = int((datetime.now(UTC) + timedelta(days=days)).timestamp() * 1e9)
        key = f"spool/chat/tiny/{HARDWARE}/operators/{ahead_ns}-x-1-0.parquet"
        store.put_new(key, b"not parquet")
        if counts:
            with pytest.raises(SpoolObjectError, match=str(ahead_ns)):
                traffic.capture_profile(store, chosen, 1.0)
        else:
            assert [w.axes["tokens"] for w in traffic.capture_profile(store, chosen, 1.0).workloads] == [4]


def test_a_profile_is_found_by_as_many_digits_as_one_likes_and_by_no_empty_name(store, chosen) -> None:
    digest = traffic.keep_profile(store, chosen, profile(rms_norm(1)))
    for digits in (8, 12, 16, 17, 64):
        assert traffic.find_profile(store, chosen, digest[:digits]) == profile(rms_norm(1))
        assert traffic.find_profile(store, chosen, digest[:digits].upper()) == profile(rms_norm(1))
    for wrong in ("", ".json", "none", "x" * 5000, "\0", "/", digest[:15] + "x"):
        with pytest.raises(NoProfileError) as told:
            traffic.find_profile(store, chosen, wrong)
        assert len(str(told.value)) < 500 and "\n" not in str(told.value)


def test_an_empty_spool_is_one_clear_line(store, chosen) -> None:
    with pytest.raises(EmptyProfileError, match="sampling on") as raised:
        traffic.capture_profile(store, chosen, 1.0)
    assert "\n" not in str(raised.value)


def test_keeping_twice_writes_once_and_the_newest_is_found(store, chosen) -> None:
    first, second = profile(rms_norm(1)), profile(rms_norm(4), end="2026-12-01T02:00:00.5+00:00")
    assert traffic.keep_profile(store, chosen, second) == traffic.keep_profile(store, chosen, second)
    traffic.keep_profile(store, chosen, first)
    assert len(list(store.list("profiles/"))) == 2
    assert traffic.latest_profile(store, chosen) == second


def test_no_profile_names_the_fleet_and_what_to_do(store, chosen) -> None:
    traffic.keep_profile(store, replace(chosen, model="tiny2"), profile(rms_norm(1)))
    with pytest.raises(NoProfileError, match=r"'chat'.*'tiny'.*run \./mill capture"):
        traffic.latest_profile(store, chosen)


def test_a_damaged_profile_names_its_key(store, chosen) -> None:
    traffic.keep_profile(store, chosen, profile(rms_norm(1)))
    (key,) = store.list("profiles/")
    store.put(key, b'{"fleet":1}')
    with pytest.raises(MalformedRecordError, match=re.escape(key)):
        traffic.latest_profile(store, chosen)


def test_drift_is_against_what_was_compiled_for_last(store, chosen) -> None:
    small, large = profile(rms_norm(1)), profile(rms_norm(4096), end="2026-12-01T02:00:00+00:00")
    assert traffic.drift_since_compiled(store, chosen, small) is None
    traffic.mark_compiled(store, chosen, small)
    traffic.mark_compiled(store, chosen, small)
    unmoved = traffic.drift_since_compiled(store, chosen, small)
    assert unmoved is not None and not unmoved.exceeds
    moved = traffic.drift_since_compiled(store, chosen, large)
    assert moved is not None and moved.exceeds
    traffic.mark_compiled(store, chosen, large)
    assert not traffic.drift_since_compiled(store, chosen, large).exceeds


def at(hour: float, tokens: int, day: int = 1) -> TrafficProfile:
    end = datetime(2026, 12, day, tzinfo=UTC) + timedelta(hours=hour)
    made = profile(rms_norm(tokens), end=end.isoformat())
    return replace(made, window_start_utc=(end - timedelta(hours=1)).isoformat())


def test_traffic_that_this_hour_had_before_the_last_search_has_not_drifted(store, chosen) -> None:
    night, noon = at(3, 1), at(12, 64)
    for one in (night, noon):
        traffic.keep_profile(store, chosen, one)
    traffic.mark_compiled(store, chosen, noon)
    for day in (2, 3, 6):
        again = traffic.drift_since_compiled(store, chosen, at(3.2, 1, day))
        assert not again.exceeds and again.moves[0].usual == "on 2026-12-01 03:00"
    assert traffic.drift_since_compiled(store, chosen, at(5, 1, 2)).exceeds, "nobody knows what five o'clock is like"
    assert traffic.drift_since_compiled(store, chosen, at(3, 4096, 2)).exceeds, "it never was so"


def test_traffic_that_moved_since_the_last_search_does_not_excuse_itself_the_day_after(store, chosen) -> None:
    for one in (at(3, 64), at(12, 64)):
        traffic.keep_profile(store, chosen, one)
    traffic.mark_compiled(store, chosen, at(12, 64))
    for day in (2, 3, 9):
        moved = at(3, 1, day)
        assert traffic.drift_since_compiled(store, chosen, moved).exceeds
        traffic.keep_profile(store, chosen, moved)


def test_a_week_has_a_season_too(store, chosen) -> None:
    sunday, friday, saturday = at(12, 1, 6), at(12, 64, 11), at(12, 64, 12)
    for one in (sunday, friday, saturday):
        traffic.keep_profile(store, chosen, one)
    traffic.mark_compiled(store, chosen, saturday)
    again = traffic.drift_since_compiled(store, chosen, at(12, 1, 13))
    assert not again.exceeds and again.moves[0].usual == "on 2026-12-06 12:00"


def test_a_profile_of_a_newer_release_is_refused(store, chosen) -> None:
    newer = replace(profile(rms_norm(1)), schema_version=99)
    traffic.keep_profile(store, chosen, newer)
    with pytest.raises(ProfileVersionError, match="version 99"):
        traffic.latest_profile(store, chosen)
