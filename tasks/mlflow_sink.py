"""Every candidate of a search becomes an MLflow run, and every episode a trace: an outage neither stops nor slows it.

What is recorded goes through a spool: `record` returns when it is on disk. A thread sends the spool on, in order, and
tries again after an outage; what it could not send stays, and the next `SearchLog` of the same home sends it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agents.episode import Episode
from agents.redaction import Redactor
from gristmill.errors import MalformedRecordError
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tasks import mlflow_store
from tasks.errors import SpoolError
from tasks.mlflow_spool import SearchEnd, SearchEpisode, SearchStart, SearchTrial, Spool, SpoolLine
from tasks.mlflow_writer import RunWriter, outages, refused

LOGGER = logging.getLogger(__name__)
SEARCH_ID = re.compile(r"[\w.-]+", re.ASCII)
RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)
"""Waits after successive failures; the last one repeats."""
LOCK_WAIT_S = 20.0
"""Another process may be sending this search's spool on; that ends soon."""
GATHER_S = 0.5
"""How long news waits for more: traces that are sent together cost half as much."""
BATCH = 16
"""Episodes that are sent together at most."""
STALL_S = 15.0
"""How long `close` waits without anything getting through before it leaves the rest to the spool."""


class SearchLog:
    """The record of one search: a parent run, and a child run per candidate. Use it as a context manager.

    The first verdict of a candidate within a search is the one that is kept. Thread-safe.
    """

    def __init__(
        self,
        home: Path,
        search_id: str,
        experiment: str = "gristmill",
        tags: Mapping[str, str] | None = None,
        *,
        tracking_uri: str = "",
        redactor: Redactor | None = None,
    ) -> None:
        """
        Args:
            redactor: takes out of episodes what must not leave this machine. One that was made while the environment
                held the provider keys; if none is given, one is made now.
        """
        if not SEARCH_ID.fullmatch(search_id):
            raise ValueError(f"search id {search_id!r}: letters, digits, `_`, `.` and `-` were expected")
        self._start = SearchStart(search_id, experiment, _now_ms(), dict(tags or {}))
        self._folder = spool_folder(home)
        self._spool = Spool(self._folder / f"{search_id}.jsonl")
        self._known: set[str] = set()
        self._append_lock = threading.Lock()
        self._redactor = redactor or Redactor.of_this_host()
        self.episodes = RedactedEpisodes(self)
        """Where agents record theirs."""
        self._closed = self._sent = False
        self._drain = _Drain(home, mlflow_store.store_uri(home, tracking_uri), self._spool)

    @property
    def parent_run_id(self) -> str | None:
        """None until MLflow has been reached."""
        return self._drain.parent_run_id

    def __enter__(self) -> Self:
        if not self._spool.open(wait_s=LOCK_WAIT_S):
            raise SpoolError(
                f"search {self._start.search_id}: another process logs it ({self._spool.path}); "
                "wait for it, or end it, then run again"
            )
        lines = [line for line, _ in self._spool.lines()]
        self._known = {line.trial.candidate.digest for line in lines if line.trial}
        self._known |= {_episode_key(line.episode.episode.id) for line in lines if line.episode}
        if not lines:
            self._spool.append(SpoolLine(start=self._start))
        self._drain.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, candidate: Candidate, verdict: Verdict, step: int) -> None:
        """Returns once the trial is on disk."""
        self._append(candidate.digest, SpoolLine(trial=SearchTrial(step, _now_ms(), candidate, verdict)))

    def record_episode(self, episode: Episode) -> None:
        """Returns once the episode is on disk, without secrets, host paths and names."""
        line = SpoolLine(episode=SearchEpisode(_now_ms(), self._redactor.record(episode)))
        self._append(_episode_key(episode.id), line)

    def _append(self, key: str, line: SpoolLine) -> None:
        with self._append_lock:
            if key in self._known:
                return
            self._spool.append(line)
            self._known.add(key)
        self._drain.wake()

    def finish(self, summary: Mapping[str, object]) -> None:
        """Ends the search: its run gets the summary, the plot and the leaderboard."""
        texts = {name: str(value) for name, value in summary.items()}
        with self._append_lock:
            self._spool.append(SpoolLine(end=SearchEnd(_now_ms(), texts)))
        self._drain.wake()

    def close(self, stall_s: float = STALL_S) -> bool:
        """Waits while the spool gets through; returns whether all did. Safe to call twice."""
        if self._closed:
            return self._sent
        self._closed = True
        self._sent = sent = self._drain.stop(stall_s)
        if sent and self._drain.search_ended:
            self._spool.remove()
        self._spool.close()
        if not sent:
            LOGGER.warning("MLflow could not be reached; what it lacks stays in %s and is sent next time", self._folder)
        return sent


@dataclass(frozen=True)
class RedactedEpisodes:
    """See `agents.episode.EpisodeLog`: the one edge at which episodes come in."""

    log: SearchLog

    def record(self, episode: Episode) -> None:
        self.log.record_episode(episode)


def _episode_key(episode_id: str) -> str:
    """Among the digests of candidates, which are hexadecimal."""
    return f"episode {episode_id}"


def spool_folder(home: Path) -> Path:
    """Where the spools of a home lie."""
    return home / "spool" / "mlflow"


def send_leftovers(home: Path, tracking_uri: str = "") -> int:
    """Sends what earlier processes could not, in this thread; returns how many spools still wait."""
    sender = _Sender(home, mlflow_store.store_uri(home, tracking_uri))
    try:
        sender.send_others(None)
    except outages() as error:
        LOGGER.info("MLflow: %s", error)
    return len(list(spool_folder(home).glob("*.jsonl")))


class _Sender:
    """Moves spools to MLflow. After any failure it starts from what MLflow holds, not from what it believes."""

    def __init__(self, home: Path, uri: str) -> None:
        self._home = home
        self._uri = uri
        self._writer: RunWriter | None = None
        self._parent_run_id: str | None = None
        self.progress = 0
        """Grows with every line that got through."""

    @property
    def parent_run_id(self) -> str | None:
        """Of the own search, as soon as it is known."""
        if self._writer and self._writer.parent_run_id:
            self._parent_run_id = self._writer.parent_run_id
        return self._parent_run_id

    @property
    def search_ended(self) -> bool:
        return self._writer is not None and self._writer.ended

    def send_own(self, spool: Spool) -> None:
        """Sends what is new in the spool that this process writes."""
        start = spool.drained() if self._writer else 0
        self._writer = self._writer or self._connect()
        try:
            self._send(spool, self._writer, start)
        except BaseException:
            self._writer = None
            raise

    def send_others(self, own: Spool | None) -> None:
        """Sends the spools that no living process writes."""
        for path in sorted(spool_folder(self._home).glob("*.jsonl")):
            spool = Spool(path)
            if (own and path == own.path) or not spool.open(create=False):
                continue
            try:
                writer = self._connect()
                self._send(spool, writer, 0)
                if writer.ended:
                    spool.remove()
            except MalformedRecordError as error:
                LOGGER.warning("%s; not sent to MLflow, delete %s", error, path)
            except Exception as error:
                if isinstance(error, outages()):
                    raise
                LOGGER.warning("%s cannot be sent to MLflow: %s", path, error, exc_info=error)  # the next one may be
            finally:
                spool.close()

    def _connect(self) -> RunWriter:
        return RunWriter.connect(self._home, self._uri)

    def _send(self, spool: Spool, writer: RunWriter, start: int) -> None:
        """From a byte offset on: 0 for a new writer, which takes note of the lines that were sent before."""
        drained = spool.drained()
        for group in _grouped(spool.lines(start)):
            for line, offset in group:
                if offset <= drained:
                    writer.remember(line)
            fresh = [line for line, offset in group if offset > drained]
            if fresh:
                self._write(fresh, writer)
                spool.mark_drained(group[-1][1])

    def _write(self, lines: Sequence[SpoolLine], writer: RunWriter) -> None:
        """Lines together, and one by one where those are refused: by a server of before it took such, or for one. A
        line that cannot be sent, for whatever reason, costs that line alone.
        """
        try:
            writer.write(*lines)
        except Exception as error:
            line = lines[0]
            if not (line.trial or line.episode) or not refused(error):
                raise
            if len(lines) > 1:
                for one in lines:
                    self._write([one], writer)
                return
            bug = None if isinstance(error, outages()) else error
            LOGGER.warning("MLflow refuses %s: %s", _subject(line), error, exc_info=bug)
        self.progress += len(lines)


def _grouped(lines: Iterable[tuple[SpoolLine, int]]) -> Iterator[list[tuple[SpoolLine, int]]]:
    """In order: episodes that follow one another, a batch at a time; each other line alone."""
    group: list[tuple[SpoolLine, int]] = []
    for line, offset in lines:
        if group and (not line.episode or not group[0][0].episode or len(group) == BATCH):
            yield group
            group = []
        group.append((line, offset))
    if group:
        yield group


def _subject(line: SpoolLine) -> str:
    """What a line is about, in words."""
    if line.trial:
        return f"candidate {line.trial.candidate.digest}"
    return f"episode {line.episode.episode.id}" if line.episode else "the search"


class _Drain:
    """The thread that sends a search's spool, and in quiet moments those left by others."""

    def __init__(self, home: Path, uri: str, spool: Spool) -> None:
        self._sender = _Sender(home, uri)
        self._spool = spool
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._all_sent = False
        self._thread = threading.Thread(target=self._run, name="mlflow-drain", daemon=True)

    @property
    def parent_run_id(self) -> str | None:
        return self._sender.parent_run_id

    @property
    def search_ended(self) -> bool:
        return self._sender.search_ended

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._news.set()

    def stop(self, stall_s: float) -> bool:
        """Waits for the thread as long as something gets through every `stall_s`; whether all did."""
        self._stopping.set()
        self._news.set()
        seen = -1
        while self._thread.is_alive() and self._sender.progress != seen:
            seen = self._sender.progress
            self._thread.join(stall_s)
        return self._all_sent and not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        others_sent = False
        while True:
            last_round = self._stopping.is_set()
            self._news.clear()
            try:
                self._sender.send_own(self._spool)
                failures = 0
                if not others_sent and not last_round:
                    self._sender.send_others(self._spool)
                    others_sent = True
            except outages() as error:
                LOGGER.info("MLflow: %s", error)
                if last_round:
                    return
                self._stopping.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
                continue
            if last_round:
                self._all_sent = True
                return
            self._news.wait()
            self._stopping.wait(GATHER_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
