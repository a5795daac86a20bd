"""The spool: samples as Parquet in the object store, read by the capture flow.

One file per flush and kind, under a key of its own, so writers never meet. While the store is down, files wait in a
`Backlog`; what it had to give up is counted, and reported in the next file. What a process has not flushed dies with
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import forked_child, records, spool_rows
from gristmill.backlog import Backlog, Contents
from gristmill.errors import SpoolError
from gristmill.request_log import FinishedRequest, RequestLog
from gristmill.window_clock import WindowClock

if TYPE_CHECKING:
    from gristmill.sampler import Sampler, Window
    from gristmill.store import ObjectStore
    from gristmill.window_clock import Span

MAX_MEMORY_BYTES = 8 << 20
"""Of files that neither the store nor the disk takes."""

OPERATOR_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "process": "int64",
    "operator": "string",
    "dtype": "string",
    "axes": "string",
    "layouts": "string",
    "calls": "int64",
    "timed_calls": "int64",
    "timed_ns": "int64",
    "one_in": "int64",
    "dropped": "int64",
}
"""`axes` and `layouts` are canonical JSON; `one_in`: how many calls each timed one stands for; `dropped`, in the first
row: calls in files that were given up since the last one.
"""
REQUEST_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "prompt_tokens": "int64",
    "generated_tokens": "int64",
    "arrival_ns": "int64",
    "cached_tokens": "int64",
    "drafts": "int64",
    "accepted": "string",
    "weight": "int64",
    "dropped": "int64",
}
"""Fields of `gristmill.request_log.FinishedRequest`, `accepted` as JSON; `weight`: how many requests of the window this
one stands for, all together their count; `dropped`, in the first row: those in files given up since the last one.
"""
SEQUENCE_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "producer": "string",
    "producer_axes": "string",
    "output": "int64",
    "consumer": "string",
    "consumer_axes": "string",
    "input": "int64",
    "dtype": "string",
    "uses": "int64",
    "calls": "int64",
}
"""Fields of `gristmill.sequence.Edge`; axes are canonical JSON."""
STEP_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "steps": "int64",
    "calls": "int64",
    "step_ns": "int64",
    "operator_ns": "int64",
}
"""Fields of `gristmill.sequence.StepTimes`: one row."""
VALUE_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "process": "int64",
    "operator": "string",
    "dtype": "string",
    "axes": "string",
    "call": "int64",
    "position": "int64",
    "shape": "string",
    "content": "binary",
}
"""Fields of `gristmill.value_capture.CapturedInput`; axes and shape are canonical JSON. Not in the spool's folder."""
VALUES = "values"
"""Lie apart from the spool: see `gristmill.value_capture`."""
COLUMNS = {
    "operators": OPERATOR_COLUMNS,
    "sequences": SEQUENCE_COLUMNS,
    "requests": REQUEST_COLUMNS,
    "steps": STEP_COLUMNS,
    VALUES: VALUE_COLUMNS,
}


@dataclass(frozen=True)
class Identity:
    """Whose samples these are."""

    fleet: str
    model: str
    hardware: str
    versions: dict[str, str] = field(default_factory=dict)
    """Of what the times depend on: `torch`, `transformers`, `gristmill`."""


@dataclass(frozen=True)
class Flushed:
    """What one flush did."""

    keys: tuple[str, ...]
    """Objects written, earlier ones that had waited included."""
    calls: int
    requests: int
    waiting: int
    """Files that the store did not take: in the local folder, or in memory."""
    lost: int
    """Files given up since the process started, because there was no room for them to wait."""
    problem: str = ""
    """Why the store did not take them."""


class Spool:
    """Writes what a sampler counted. `flush` is thread-safe; `start` flushes in the background until `stop`."""

    def __init__(
        self,
        store: ObjectStore,
        identity: Identity,
        sampler: Sampler,
        waiting_dir: Path,
        max_waiting_bytes: int = 64 << 20,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._identity = identity
        self._sampler = sampler
        self._backlog = Backlog(store, waiting_dir, max_waiting_bytes, max_memory_bytes)
        self._told = Contents()
        """Of the losses, what a file has reported."""
        self._host = host_hash()
        self._requests = RequestLog()
        self._clock = WindowClock()
        self._sequence = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._inherited = False
        forked_child.tell(self)

    def forked(self) -> None:
        """In a forked child: what was sampled before is its parent's to write, and nothing is written from here."""
        self._inherited, self._thread = True, None
        self._lock, self._requests = threading.Lock(), RequestLog()

    def add_request(
        self,
        prompt_tokens: int,
        generated_tokens: int,
        arrival_ns: int,
        cached_tokens: int = 0,
        drafts: int = 0,
        accepted: tuple[int, ...] = (),
    ) -> None:
        """Notes one finished request, as `FinishedRequest` says."""
        self._requests.add(
            FinishedRequest(prompt_tokens, generated_tokens, arrival_ns, cached_tokens, drafts, accepted)
        )

    def flush(self) -> Flushed:
        """Writes everything since the last flush; an empty window writes nothing.

        Raises:
            SpoolError: pyarrow is missing, and nothing was taken; or neither store nor local folder can be written,
                and the samples wait in memory.
        """
        if self._inherited:
            return Flushed((), 0, 0, 0, 0, "")
        with self._lock:
            _load_pyarrow()  # before anything is taken from the sampler
            span, window, requests = self._clock.next(), self._sampler.flush(), self._requests.take()
            for kind, rows in self._rows(window, requests, (span.start_ns, span.end_ns, self._host)).items():
                if rows:
                    self._backlog.add(self._key(kind, span), self._parquet(kind, rows, span, window.overflowed))
            self._sequence += 1
            keys, problem = self._backlog.deliver()
            calls = sum(sample.calls for sample in window.samples)
            seen = sum(weight for _, weight in requests)
            return Flushed(tuple(keys), calls, seen, len(self._backlog), self._backlog.lost.files, problem)

    def start(self, interval_s: float) -> None:
        """Flushes every `interval_s` from a daemon thread."""

        def loop() -> None:
            while not self._stopped.wait(interval_s):
                with contextlib.suppress(SpoolError):  # the samples wait; the last flush tells
                    self.flush()

        self._thread = threading.Thread(target=loop, name="gristmill-spool", daemon=True)
        self._thread.start()

    def stop(self) -> Flushed:
        """Ends the thread and flushes once more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        return self.flush()

    def _rows(
        self, window: Window, requests: list[tuple[FinishedRequest, int]], where: spool_rows.Where
    ) -> dict[str, list[spool_rows.Row]]:
        """By kind. What was lost is told where there is a row to tell it in."""
        told, lost = self._told, self._backlog.lost
        if window.samples:
            self._told = replace(self._told, calls=lost.calls)
        if requests:
            self._told = replace(self._told, requests=lost.requests)
        process = os.getpid()
        return {
            "operators": spool_rows.operators(window.samples, where, process, lost.calls - told.calls),
            "sequences": spool_rows.edges(window.edges, where),
            "requests": spool_rows.requests(requests, where, lost.requests - told.requests),
            "steps": spool_rows.steps(window.steps, where),
            VALUES: spool_rows.values(window.values, where, process),
        }

    def _key(self, kind: str, span: Span) -> str:
        identity = self._identity
        source = f"{identity.fleet}/{identity.model}/{identity.hardware}"
        folder = f"{VALUES}/{source}" if kind == VALUES else f"spool/{source}/{kind}"
        return f"{folder}/{span.start_ns}-{self._host}-{os.getpid()}-{self._sequence}.parquet"

    def _parquet(self, kind: str, rows: list[spool_rows.Row], span: Span, overflowed: int) -> bytes:
        pyarrow = _load_pyarrow()
        columns = COLUMNS[kind]
        values = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
        contents = Contents(
            calls=sum(values["calls"] + values["dropped"]) if kind == "operators" else 0,
            requests=sum(values["weight"] + values["dropped"]) if kind == "requests" else 0,
        )
        schema = pyarrow.schema(
            [(name, getattr(pyarrow, one)()) for name, one in columns.items()],
            metadata=self._metadata(contents, span, overflowed),
        )
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(values, schema=schema), buffer, compression="zstd")
        return buffer.getvalue()

    def _metadata(self, contents: Contents, span: Span, overflowed: int) -> dict[str, str]:
        """`overflowed`: calls of the window that a sample stands for."""
        identity = self._identity
        return {
            "gristmill.fleet": identity.fleet,
            "gristmill.model": identity.model,
            "gristmill.hardware": identity.hardware,
            "gristmill.versions": json.dumps(identity.versions, sort_keys=True),
            "gristmill.contents": records.canonical_json(contents).decode(),
            "gristmill.clock_off_ns": str(span.clock_off_ns),
            "gristmill.overflowed": str(overflowed),
        }


def _load_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SpoolError(
            "spool: pyarrow is not installed, so samples cannot be written; install gristmill[capture] or turn "
            "sampling off"
        ) from None
    return pyarrow


def host_hash() -> str:
    """A short name of this machine that does not reveal it."""
    return hashlib.sha256(b"gristmill host " + platform.node().encode()).hexdigest()[:12]
