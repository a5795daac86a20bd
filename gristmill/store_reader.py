"""What one poll reads from a store: any number of objects, but not for ever."""

from __future__ import annotations

import time

from gristmill import store
from gristmill.errors import StoreUnreachableError
from gristmill.store import ObjectStore


class StoreReader:
    """Reads until its time is over. Thread-safe as the store is.

    Every transfer has its own deadline (`gristmill.transfer`). This is the one for all of them together, lest a store
    that is just quick enough with each object of a large channel holds a poll for hours.
    """

    def __init__(self, object_store: ObjectStore, seconds: float) -> None:
        self.url = object_store.url
        self._store = object_store
        self._seconds = seconds
        self._ends_at_s = time.monotonic() + seconds

    def read(self, key: str, max_bytes: int) -> bytes:
        """The content of an object; errors as `ObjectStore.get`."""
        if time.monotonic() > self._ends_at_s:
            raise StoreUnreachableError(
                f"{self.url}: {key} was not reached within the {self._seconds:.0f} s of one poll; the next one goes on "
                "from here"
            )
        return store.read(self._store, key, max_bytes)
