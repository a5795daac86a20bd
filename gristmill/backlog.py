"""The backlog of a spool: files that the store has not taken yet, in a bounded folder of this host.

While the folder cannot be written either (a full disk), they stay in memory, in bounds. Beyond both bounds the oldest
are given up, and what they held is counted. The processes of a host may share a folder: putting a file twice writes the
same object twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from gristmill import durable_file
from gristmill.errors import SpoolError, StoreAddressError, StoreError

if TYPE_CHECKING:
    from gristmill.store import ObjectStore

SUFFIX = ".waiting"
ASIDE = ".aside-*"
"""What a killed writer left behind: never a whole file."""
ASIDE_S = 3600.0
"""No writer takes that long."""
CONTENTS = b"gristmill.contents"
"""Metadata of a spool file: what is lost with it, as JSON."""


@dataclass(frozen=True)
class Contents:
    """What is in a spool file, or what was lost."""

    files: int = 0
    calls: int = 0
    requests: int = 0

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.files + other.files, self.calls + other.calls, self.requests + other.requests)


class Backlog:
    """Not thread-safe: its spool holds a lock."""

    def __init__(self, store: ObjectStore, folder: Path, max_bytes: int, max_memory_bytes: int) -> None:
        self._store = store
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_memory_bytes = max_memory_bytes
        self._unsaved: deque[tuple[str, bytes]] = deque()
        self.lost = Contents()
        """Given up since the process started."""

    def __len__(self) -> int:
        return len(self._waiting()) + len(self._unsaved)

    def add(self, key: str, content: bytes) -> None:
        self._unsaved.append((key, content))

    def deliver(self) -> tuple[list[str], str]:
        """Puts what waits, the oldest first, until the store refuses: the keys it took, and why it took no more.

        Raises:
            SpoolError: neither store nor folder take it, so that it waits in memory.
        """
        keys: list[str] = []
        problem = ""
        try:
            for path in self._waiting():
                self._send(path, keys)
            while self._unsaved:
                self._store.put(*self._unsaved[0])
                keys.append(self._unsaved.popleft()[0])
        except StoreError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{self._folder}: what waits cannot be read ({error}); mend its disk or its access"
        self._save()
        return keys, problem

    def _send(self, path: Path, keys: list[str]) -> None:
        key = unquote(path.name.removesuffix(SUFFIX))
        with contextlib.suppress(FileNotFoundError):  # another process of this host was faster
            try:
                self._store.put(key, path.read_bytes())
                keys.append(key)
            except StoreAddressError:  # no spool wrote this; it would be in the way for ever
                self.lost += Contents(files=1)
            path.unlink()

    def _save(self) -> None:
        """From memory to the folder, which is then cut to its bound."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            while self._unsaved:
                key, content = self._unsaved[0]
                durable_file.write(self._folder / (quote(key, safe="") + SUFFIX), content, mode=0o600)
                self._unsaved.popleft()
            self._trim()
        except OSError as error:
            self._trim_memory()
            if self._unsaved:
                raise SpoolError(
                    f"spool: store and folder {self._folder} both refuse samples ({error}), which wait in memory; free "
                    "space or mend either"
                ) from None

    def _trim(self) -> None:
        sizes = {path: path.stat().st_size for path in self._waiting() if path.exists()}
        excess = sum(sizes.values()) - self._max_bytes
        for path, size_bytes in sizes.items():
            if excess <= 0:
                return
            excess -= size_bytes
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                path.unlink()
                self.lost += contents_of(content)

    def _trim_memory(self) -> None:
        while sum(len(content) for _, content in self._unsaved) > self._max_memory_bytes:
            self.lost += contents_of(self._unsaved.popleft()[1])

    def _sweep(self) -> None:
        for path in self._folder.glob(ASIDE):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ASIDE_S:
                    path.unlink()

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*" + SUFFIX), key=_window_of)


def _window_of(waiting: Path) -> tuple[int, str]:
    """Orders waiting files by the start of their window, which their key's last part begins with."""
    start = unquote(waiting.name).rsplit("/", 1)[-1].split("-", 1)[0]
    return (int(start) if start.isdecimal() else 0, waiting.name)


def contents_of(file: bytes) -> Contents:
    """What a spool file says that it holds; one file of nothing where that cannot be read."""
    import io

    import pyarrow
    from pyarrow import parquet

    try:
        found = json.loads((parquet.read_metadata(io.BytesIO(file)).metadata or {})[CONTENTS])
        return Contents(1, int(found["calls"]), int(found["requests"]))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError):
        return Contents(files=1)
