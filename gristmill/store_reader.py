"""What one poll reads from a store: any number of objects, but not for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from gristmill import store
from gristmill.errors import StoreUnreachableError
from gristmill.store import ObjectStore

T = TypeVar("T")


class StoreReader:
    """Reads until its time is over. Thread-safe as the store is.

    Every transfer has its own deadline (`gristmill.transfer`). This is the one for all of them together, lest a store
    that is just quick enough with each object of a large channel holds a poll for hours.
    """

    def __init__(self, object_store: ObjectStore, seconds: float, strict: bool = False) -> None:
        """`strict` also leaves a read behind that is under way when the time is over."""
        self.url = object_store.url
        self._store = object_store
        self._seconds = seconds
        self._ends_at_s = time.monotonic() + seconds
        self._strict = strict

    def read(self, key: str, max_bytes: int) -> bytes:
        """The content of an object; errors as `ObjectStore.get`."""
        if time.monotonic() > self._ends_at_s:
            raise StoreUnreachableError(
                f"{self.url}: {key} was not reached within the {self._seconds:.0f} s of one poll; the next one goes on "
                "from here"
            )
        if not self._strict:
            return store.read(self._store, key, max_bytes)
        left_s = self._ends_at_s - time.monotonic()
        return within(left_s, f"{self.url}: {key}", lambda: store.read(self._store, key, max_bytes))


def within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """What `work` returns or raises. It is left behind, on a thread of its own, if it takes longer.

    Raises:
        StoreUnreachableError: it does.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=attempt, name="gristmill-read", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors[0]
    if not results:
        raise StoreUnreachableError(f"{what} was not read in time; the next poll waits longer")
    return results[0]
