"""How much memory this process and everything it started take together, sampled while they run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
INTERVAL_S = 2.0


class MemoryPeak:
    """Samples in a thread. Pages that several processes share count once (proportional set size), as far as the kernel
    lets us look: processes of other users are left out unless we are root.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, tree_bytes(os.getpid()))


def tree_bytes(root: int) -> int:
    """Proportional set size of a process and its descendants, now."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            parent = _parent(folder)
            if parent is not None:
                children.setdefault(parent, []).append(int(folder.name))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += _proportional_bytes(PROC / str(pid))
        waiting.extend(children.get(pid, ()))
    return total


def _parent(folder: Path) -> int | None:
    """The fourth field of `stat`; the second is a name in brackets that may hold spaces."""
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _proportional_bytes(folder: Path) -> int:
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
