"""The lock of a folder that processes share: one of them at a time, for as long as it lives, and no longer.

It is `flock` on a file in the folder. Whoever clears the folder takes that file's name from those who hold or wait for
it, so a lock counts only while its file still has that name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import forked_child
from gristmill.errors import CacheError

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.1
"""Between looks at a lock that another process holds."""

_held: set[int] = set()
"""Descriptors of the files that this process has locked, or tries to."""


@contextlib.contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Waits so long for the lock and holds it. Threads of one process exclude each other as processes do.

    Raises:
        CacheError: another process, or thread, has held it all the time.
        OSError: the file can't be made or locked.
    """
    lock = _taken(path, time.monotonic() + seconds, seconds)
    try:
        yield
    finally:
        _let_go(lock)


def _taken(path: Path, ends_at_s: float, seconds: float) -> int:
    pause_s = SHORTEST_PAUSE_S
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        _held.add(lock)
        try:
            while not _locked(lock):
                if time.monotonic() >= ends_at_s:
                    raise CacheError(
                        f"{path}: another process has held this lock for {seconds:.0f} s; it is tried again, and if "
                        "that goes on, look which one hangs (fuser names it)"
                    )
                time.sleep(min(pause_s, max(0.0, ends_at_s - time.monotonic())))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if _has_name(lock, path):
                return lock
        except BaseException:
            _let_go(lock)
            raise
        _let_go(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
            raise
        return False
    return True


def _has_name(lock: int, path: Path) -> bool:
    """Whether others who open the path wait for this lock."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), path.lstat())
    return False


def _let_go(lock: int) -> None:
    """Unlocks before it closes: a child that was forked meanwhile may have a copy of the descriptor. In such a child
    it is its parent's lock, and left alone.
    """
    if lock not in _held:
        return
    _held.discard(lock)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


forked_child.closes(_held)
