"""A search has one process at a time, whoever else wants it; it is free the moment that process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill import records
from tasks import search_lock
from tasks.bench_session import search_operators
from tasks.compilation import search_id_of
from tasks.errors import SearchBusyError
from tasks.journal import Journal, read
from tests.tasks.world import PEAKS, candidate, profile, rms_norm, settings, verdict

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from tasks import search_lock
with search_lock.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process, which holds the search once this returns, until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_the_first_is_and_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "searches" / "s1"
    with holder(folder) as first:
        with pytest.raises(SearchBusyError) as refused, search_lock.held(folder):
            pass
        first.communicate()
    told = str(refused.value)
    assert f"search s1: process {first.pid} " in told and str(folder / "lock") in told
    assert f"kill -INT {first.pid}" in told and "\n" not in told and refused.value.exit_code == 2
    with search_lock.held(folder):
        assert (folder / "lock").read_text() == str(os.getpid())


def test_a_killed_holder_leaves_nothing_that_blocks(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        first.kill()
    assert first.returncode == -signal.SIGKILL
    with search_lock.held(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_another_search_and_readers_are_not_held_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "s1" / "verdicts.jsonl")
    journal.append(candidate(), verdict(candidate()), (rms_norm(1),))
    with holder(tmp_path / "s1") as first:
        with search_lock.held(tmp_path / "s2"):
            assert read(tmp_path / "s1" / "verdicts.jsonl") == list(journal.entries())
        first.communicate()


def test_it_is_free_within_one_process_as_well_once_the_block_ends(tmp_path: Path) -> None:
    with pytest.raises(SearchBusyError), search_lock.held(tmp_path), search_lock.held(tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), search_lock.held(tmp_path):
        raise ZeroDivisionError
    with search_lock.held(tmp_path):
        pass


def test_a_second_search_of_the_same_profile_and_seed_is_refused(tmp_path: Path) -> None:
    chosen, captured = settings(tmp_path / "home"), profile(rms_norm(1, time_ns=10**9))
    (chosen.home / "peaks.json").write_bytes(records.canonical_json(PEAKS))
    with holder(chosen.searches_dir / search_id_of(captured, 3)) as first:
        with pytest.raises(SearchBusyError, match=f"process {first.pid} is at it already"):
            search_operators(chosen, captured, 10.0, 3, (), None)
        first.communicate()
    assert not (chosen.home / "mlflow.db").exists(), "refused before anything was opened"
