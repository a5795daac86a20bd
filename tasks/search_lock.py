"""One process at a time works on a search: its journal and its record of proposals have one writer.

A lock of the kernel on a file in the search's folder: whatever ends its holder frees it. Readers ask for none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import SearchBusyError

NAME = "lock"


@contextlib.contextmanager
def held(search: Path) -> Iterator[None]:
    """Holds the search of a folder, which is made if need be, until the block ends.

    Raises:
        SearchBusyError: another process holds it; the message says which.
    """
    search.mkdir(parents=True, exist_ok=True)
    with (search / NAME).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SearchBusyError(_told(search)) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def _told(search: Path) -> str:
    """For a moment, between lock and name, the file may name nobody, or the holder before."""
    pid = (search / NAME).read_text(errors="replace")
    who, end = (f"process {pid}", f"kill -INT {pid}") if pid.isdecimal() else ("another process", "Ctrl-C there")
    return (
        f"search {search.name}: {who} is at it already (it locks {search / NAME}); wait for it or end it ({end}); "
        "compile with another --seed is another search"
    )
