"""A finished search is found again: by id, or as the last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.errors import MalformedRecordError
from kernels.profile import RankedOperator
from tasks import results
from tasks.compilation import OperatorSearch, SearchResult
from tasks.errors import NoWinnerError
from tasks.results import KeptSearch
from tests.tasks.world import profile, rms_norm, settings

ONE = OperatorSearch("rms_norm", "float32", 10.0, 10.5, 2, 3, {"faster": 1, "slower": 2}, (1.0, 1.5, 1.5), {"w": 1.5})
RESULT = SearchResult("aaa", "d" * 64, (RankedOperator("rms_norm", "float32", 1.0, 0.5, 0.5, 2),), (ONE,), "run")


def kept(search_id: str, finished_utc: str) -> KeptSearch:
    return KeptSearch(finished_utc, profile(rms_norm(1)), replace(RESULT, search_id=search_id))


def test_the_last_to_finish_or_the_one_asked_for(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    later, earlier = kept("aaa", "2026-12-01T02:00:00+00:00"), kept("bbb", "2026-12-01T01:00:00+00:00")
    for search in (later, earlier):
        results.keep(chosen, search)
    assert results.load(chosen) == later
    assert results.load(chosen, "bbb") == earlier


def test_keeping_it_again_replaces_it(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    results.keep(chosen, kept("aaa", "2026-12-01T01:00:00+00:00"))
    again = kept("aaa", "2026-12-01T03:00:00+00:00")
    results.keep(chosen, again)
    assert results.load(chosen) == again


@pytest.mark.parametrize("search_id", ["", "ccc", "../keys", "*", "a?a", "/etc"])
def test_what_has_not_finished_is_one_clear_error(tmp_path: Path, search_id: str) -> None:
    chosen = settings(tmp_path)
    if search_id:
        results.keep(chosen, kept("aaa", "2026-12-01T01:00:00+00:00"))
    (chosen.searches_dir / "unfinished").mkdir(parents=True)
    with pytest.raises(NoWinnerError, match=r"run \./mill compile first"):
        results.load(chosen, search_id)


def test_a_damaged_result_names_its_file(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    results.keep(chosen, kept("aaa", "2026-12-01T01:00:00+00:00"))
    path = chosen.searches_dir / "aaa" / "result.json"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MalformedRecordError, match=r"result\.json"):
        results.load(chosen)
