"""The outbox: engines without network leave their status reports in a folder, and the sidecar sends them on.

For an engine it is an object store like any other: `DirectoryStore(folder)`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gristmill import limits, store
from gristmill.directory_store import DirectoryStore
from gristmill.errors import MalformedRecordError, ObjectNotFoundError, ObjectTooLargeError
from gristmill.status_report import parse_report, report_key, reports_prefix
from gristmill.store import ObjectStore
from gristmill.trust import Channel


class Outbox:
    """Sends on the reports of hosts of one kind. What is not a report under its own name stays where it is."""

    def __init__(self, folder: Path, object_store: ObjectStore, at: Channel) -> None:
        self._left = DirectoryStore(folder)
        self._store = object_store
        self._at = at
        self._sent: dict[str, float] = {}
        """By key, when what was sent last was written."""

    def forward(self) -> None:
        """Sends what was written since the last time; raises what the stores raise."""
        if not self._left.root.is_dir():
            return
        for found in self._left.scan(reports_prefix(self._at)):
            if found.modified_s == self._sent.get(found.key):
                continue
            with contextlib.suppress(ObjectNotFoundError, ObjectTooLargeError, MalformedRecordError):
                content = store.read(self._left, found.key, limits.MAX_REPORT_BYTES)
                if report_key(self._at, parse_report(content).name) == found.key:
                    self._store.put(found.key, content)
            self._sent[found.key] = found.modified_s
