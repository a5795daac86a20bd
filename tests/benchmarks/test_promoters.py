"""Promoters in processes of their own, and that the count is one that could be missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import promoters
from benchmarks.figures import Outcome
from gristmill.directory_store import DirectoryStore
from registry.rollback import roll_back
from tests.registry.world import CANARY, World


def test_a_short_run_loses_nothing(tmp_path: Path) -> None:
    course = promoters.run("directory", tmp_path, f"file://{tmp_path}/store", {}, promoters=3, promotions=2)
    assert (course.present, course.promised, len(course.confirmed)) == (6, 6, 6)
    assert sorted(one.number for one in course.confirmed) == sorted({one.number for one in course.confirmed})
    assert promoters.figure(course).verdict is Outcome.MET
    for worse in (replace(course, present=5), replace(course, confirmed=course.confirmed[1:])):
        assert promoters.figure(worse).verdict is Outcome.MISSED


def test_what_is_not_there_does_not_count(tmp_path: Path) -> None:
    world = World(tmp_path, DirectoryStore(tmp_path / "store"))
    confirmed = promoters.promote(tmp_path, world.store.url, {}, 0, 2)
    assert promoters.count_present(world, confirmed) == 2
    assert promoters.count_present(world, [replace(confirmed[0], number=99), confirmed[1]]) == 1
    roll_back(world.store, world.keyring, CANARY)
    assert promoters.count_present(world, confirmed) == 1
