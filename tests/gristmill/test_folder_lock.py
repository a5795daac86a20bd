"""One process at a time holds a folder, whatever becomes of the lock's file, of children and of who holds it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import folder_lock
from gristmill.cache import Cache
from gristmill.errors import CacheError
from tests.gristmill.forks import in_child

HOLDING = r"""
import os, sys, time
from pathlib import Path
from gristmill import folder_lock
with folder_lock.held(Path(sys.argv[1]), 60):
    if sys.argv[2:] and os.fork() == 0:
        os.write(1, b"%d\n" % os.getpid())
        sys.stdin.read()
        os._exit(0)
    os.write(1, b"holds\n")
    time.sleep(600)
"""


@contextlib.contextmanager
def holder(lock: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until it is killed."""
    command = [sys.executable, "-c", HOLDING, str(lock), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_free(lock: Path) -> bool:
    try:
        with folder_lock.held(lock, 0.0):
            return True
    except CacheError:
        return False


def test_it_waits_no_longer_than_it_is_told_and_names_the_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with holder(lock) as other:
        assert line(other) == "holds"
        with pytest.raises(CacheError, match=r"lock: another process has held this lock for 0 s"):
            folder_lock.held(lock, 0.05).__enter__()
        with pytest.raises(CacheError, match="has held this lock"), Cache(tmp_path).locked(0.05):
            pytest.fail("two hold it")
        other.kill()
        other.wait()
        with Cache(tmp_path).locked(60):
            pass
    assert folder_lock._held == set()


def test_it_is_had_once_the_other_lets_go(tmp_path: Path) -> None:
    lock, entered = tmp_path / "lock", threading.Event()

    def second() -> None:
        with folder_lock.held(lock, 60):
            entered.set()

    thread = threading.Thread(target=second)
    with folder_lock.held(lock, 60):
        thread.start()
        assert not entered.wait(0.05)
    thread.join(60)
    assert entered.is_set()


def test_a_file_that_took_the_place_of_the_one_that_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody clears the cache while two wait: whoever gets the old file's lock holds nothing that others ask for."""
    lock = tmp_path / "lock"
    locked, opened = folder_lock._locked, list[int]()

    def cleared_meanwhile(descriptor: int) -> bool:
        opened.append(os.fstat(descriptor).st_ino)
        if len(opened) == 1:
            lock.rename(tmp_path / "old")
        if len(opened) == 2:
            lock.unlink()
        return locked(descriptor)

    monkeypatch.setattr(folder_lock, "_locked", cleared_meanwhile)
    with folder_lock.held(lock, 60):
        assert lock.stat().st_ino == opened[2] and len(opened) == 3
        monkeypatch.undo()
        assert not is_free(lock)
    assert is_free(lock)


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        folder_lock.held(tmp_path / "gone" / "lock", 1).__enter__()
    cache = Cache(tmp_path / "cache")
    with cache.locked():
        shutil.rmtree(cache.folder)
    with cache.locked():
        pass


def test_a_child_neither_holds_nor_lets_go_what_its_parent_has_locked(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def leave(block: contextlib.ExitStack) -> set[int]:
        block.close()
        return folder_lock._held

    with contextlib.ExitStack() as block:
        block.enter_context(folder_lock.held(lock, 60))
        assert in_child(lambda: leave(block)) == set()
        assert in_child(lambda: is_free(lock)) is False
    assert is_free(lock)


def test_a_child_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with holder(lock, "forks") as other:
        found = {line(other), line(other)}
        (child,) = found - {"holds"}
        assert not is_free(lock)
        other.kill()
        other.wait()
        with folder_lock.held(lock, 60):
            os.kill(int(child), signal.SIGKILL)
