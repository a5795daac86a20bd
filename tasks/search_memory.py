"""Memory as a search has it: asked and told in the search's threads, read and written in a thread of its own.

What is told goes to disk every half minute and from there to the store. What was recalled last is kept on disk too, and
told again when the store does not answer: an outage neither stops nor slows a search.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from agents import recall
from agents import shelf as shelves
from agents.memory import SCHEMA, Contents, Recollection, Segment, family_of
from gristmill.errors import GristmillError, MalformedRecordError
from gristmill.hardware import Hardware
from gristmill.store import ObjectStore
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import object_store, recollection_file
from tasks.memory_shelves import MemoryShelves
from tasks.memory_spool import MemorySpool, Parcel
from tasks.settings import Settings

LOGGER = logging.getLogger(__name__)
EVERY_S = 30.0
"""How often what was told goes to disk and to the store: what a crash may lose."""
RECALL_WAIT_S = 5.0
"""So long a search waits for the store before it makes do with what was recalled last."""
RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)
"""Waits after successive failures; the last one repeats."""
STALL_S = 10.0
"""How long `close` waits without anything getting through before it leaves the rest to the spool."""
COMPACT_FROM = 8
"""Segments of a family that wait before somebody folds them."""
OUTAGES = (GristmillError, OSError)
"""What a store, or what starts it, raises when it cannot be used now."""


@dataclass
class _Learned:
    """What was told and is not on disk yet, of one family."""

    contents: Contents = field(default_factory=Contents)
    sources: dict[str, Candidate] = field(default_factory=dict)


@dataclass(frozen=True)
class _Question:
    operator: str
    dtype: str
    hardware: str
    answer: Future[Recollection]


class SearchMemory:
    """See `agents.memory.Memory`. Use it as a context manager; at its end, what the store has not taken by then stays
    in the spool, and the next `SearchMemory` of the same home sends it.
    """

    def __init__(
        self,
        home: Path,
        hardware: str,
        open_store: Callable[[], AbstractContextManager[ObjectStore]],
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        recall_wait_s: float = RECALL_WAIT_S,
    ) -> None:
        """
        Args:
            hardware: key of the hardware that verdicts come from.
            open_store: called in memory's own thread, again after each failure.
        """
        self._hardware = hardware
        self._now_ms = now_ms
        self._recall_wait_s = recall_wait_s
        self._copies = home / "memory"
        self._spool = MemorySpool(home / "spool" / "memory")
        self._writer = secrets.token_hex(8)
        self._written = 0
        self._saved_ms = now_ms()
        self._lock = threading.Lock()
        self._learned: defaultdict[str, _Learned] = defaultdict(_Learned)
        self._known: dict[str, Contents] = {}
        self._questions: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._asked: list[_Question] = []
        self._keeper = _Keeper(self, open_store)

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, stall_s: float = STALL_S) -> bool:
        """Returns whether the store has taken everything. What it has not stays on disk."""
        self.save()
        sent = self._keeper.stop(stall_s)
        if not sent:
            LOGGER.warning("memory: the store was not reached; what it lacks stays in %s", self._spool.folder)
        return sent

    def recall(self, operator: str, dtype: str, hardware: Hardware) -> Recollection:
        question = _Question(operator, dtype, hardware.key, Future())
        self._questions.put(question)
        self._keeper.wake()
        try:
            return question.answer.result(self._recall_wait_s)
        except (NoAnswerError, *OUTAGES) as error:
            LOGGER.info("memory: %s", error or "no answer in time")
            return self._copy(question)

    def record(self, candidate: Candidate, verdict: Verdict) -> None:
        learned = shelves.learned(candidate, verdict, self._hardware, self._now_ms())
        family = family_of(candidate.operator)
        with self._lock:
            mine = self._learned[family]
            mine.contents = shelves.merged(mine.contents, learned)
            if learned.candidates:
                mine.sources[candidate.digest] = candidate
            self._known[family] = shelves.merged(self._known.get(family, Contents()), learned)
        if self._now_ms() - self._saved_ms > EVERY_S * 1000:
            self.save()

    def search(self, query: str, limit: int = 8) -> tuple[str, ...]:
        with self._lock:
            known = [self._known[family] for family in sorted(self._known)]
        return recall.search(known, query, limit)

    def save(self) -> None:
        """Makes parcels of what was told. What the disk does not take is tried again next time."""
        with self._lock:
            self._saved_ms = self._now_ms()
            for family, mine in list(self._learned.items()):
                contents = shelves.bounded(mine.contents)
                named = {entry.candidate for entry in contents.candidates}
                segment = Segment(SCHEMA, family, self._writer, self._written, self._now_ms(), contents)
                sources = tuple(source for digest, source in mine.sources.items() if digest in named)
                try:
                    self._spool.put(Parcel(segment, sources))
                except OSError as error:
                    LOGGER.warning("memory: %s cannot be written: %s", self._spool.folder, error.strerror)
                    return
                self._written += 1
                del self._learned[family]

    def to_store(self, kept: MemoryShelves) -> Iterator[str]:
        """Sends what waits, one parcel per step, and yields its family. Raises what the store raises."""
        for path, parcel in self._spool.parcels():
            kept.add(parcel.segment, parcel.sources)
            path.unlink(missing_ok=True)
            yield parcel.segment.family

    def collect(self) -> None:
        """Takes up what was asked by now. To be answered with what was told before: call it before `save`."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._asked.append(self._questions.get_nowait())

    def answer(self, kept: MemoryShelves) -> None:
        """Answers what was taken up. Raises what the store raises."""
        while self._asked:
            recalled = self._recollect(kept, self._asked[0])
            self._keep_copy(recalled)
            self._asked.pop(0).answer.set_result(recalled)

    def refuse(self, error: Exception) -> None:
        """Answers all that was asked with an outage."""
        self.collect()
        while self._asked:
            self._asked.pop(0).answer.set_exception(error)

    def _recollect(self, kept: MemoryShelves, question: _Question) -> Recollection:
        read = {family: kept.read(family).contents for family in kept.families()}
        with self._lock:
            # Everything that was told before the question is in the store by now; what was told since is merged in.
            since = {family: mine.contents for family, mine in self._learned.items()}
            self._known = {
                family: shelves.merged(read.get(family, Contents()), since.get(family, Contents()))
                for family in {*read, *since}
            }
        asked = question.operator, question.dtype, question.hardware
        wanted = [entry.candidate for entry in recall.wanted_entries(read.values(), *asked)]
        return recall.recollection(read.values(), kept.sources(family_of(question.operator), wanted), *asked)

    def _copy_path(self, operator: str, dtype: str, hardware: str) -> Path:
        return self._copies / (re.sub(r"[^\w.-]", "_", f"{operator}-{dtype}-{hardware}") + ".json")

    def _keep_copy(self, recalled: Recollection) -> None:
        with contextlib.suppress(OSError):
            path = self._copy_path(recalled.operator, recalled.dtype, recalled.hardware)
            recollection_file.write(path, recalled)

    def _copy(self, question: _Question) -> Recollection:
        path = self._copy_path(question.operator, question.dtype, question.hardware)
        try:
            return recollection_file.read(path)
        except FileNotFoundError:
            return Recollection(question.operator, question.dtype, question.hardware)
        except (OSError, MalformedRecordError) as error:
            LOGGER.warning("memory: %s is left out: %s", path, error)
            return Recollection(question.operator, question.dtype, question.hardware)


class _Keeper:
    """The thread that writes, sends and answers."""

    def __init__(self, memory: SearchMemory, open_store: Callable[[], AbstractContextManager[ObjectStore]]) -> None:
        self._memory = memory
        self._open_store = open_store
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._all_sent = False
        self._progress = 0
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._news.set()

    def stop(self, stall_s: float) -> bool:
        """Waits for the thread as long as something gets through every `stall_s`; whether all did."""
        self._stopping.set()
        self._news.set()
        seen = -1
        while self._thread.is_alive() and self._progress != seen:
            seen = self._progress
            self._thread.join(stall_s)
        return self._all_sent and not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._all_sent:
            try:
                with self._open_store() as store:
                    kept = MemoryShelves(store)
                    self._rounds(kept)
            except OUTAGES as error:
                LOGGER.info("memory: %s", error)
                self._news.clear()
                self._memory.refuse(error)
                self._memory.save()
                if self._stopping.is_set():
                    return
                self._news.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1

    def _rounds(self, kept: MemoryShelves) -> None:
        """Until it is told to stop and all is sent."""
        while True:
            last_round = self._stopping.is_set()
            self._news.clear()
            self._memory.collect()
            self._memory.save()
            for family in set(self._sent(kept)):
                if kept.unfolded(family) >= COMPACT_FROM:
                    kept.compact(family)
            self._memory.answer(kept)
            if last_round:
                self._all_sent = True
                return
            self._news.wait(EVERY_S)

    def _sent(self, kept: MemoryShelves) -> Iterator[str]:
        for family in self._memory.to_store(kept):
            self._progress += 1
            yield family


def opened(settings: Settings) -> SearchMemory:
    """The memory of these settings' store, not started yet. The embedded store is started unless it already runs."""

    @contextlib.contextmanager
    def open_store() -> Iterator[ObjectStore]:
        with object_store.opened(settings) as found:
            yield found.store

    return SearchMemory(settings.home, settings.hardware, open_store)
