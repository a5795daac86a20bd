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

from gristmill import records
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
        with self._lock:
            _load_pyarrow()  # before anything is taken from the sampler
            span, window, requests = self._clock.next(), self._sampler.flush(), self._requests.take()
            calls = sum(sample.calls for sample in window.samples)
            rows, request_rows = self._operator_rows(window, span), self._request_rows(requests, span)
            files = {
                "operators": (rows, OPERATOR_COLUMNS, Contents(calls=calls + (rows[0][-1] if rows else 0))),
                "sequences": (self._edge_rows(window, span), SEQUENCE_COLUMNS, Contents()),
                "requests": (
                    request_rows,
                    REQUEST_COLUMNS,
                    Contents(requests=sum(weight + dropped for *_, weight, dropped in request_rows)),
                ),
            }
            for kind, (kind_rows, columns, contents) in files.items():
                if kind_rows:
                    self._backlog.add(self._key(kind, span), self._parquet(kind_rows, columns, contents, span))
            self._sequence += 1
            keys, problem = self._backlog.deliver()
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

    def _key(self, kind: str, span: Span) -> str:
        identity = self._identity
        name = f"{span.start_ns}-{self._host}-{os.getpid()}-{self._sequence}.parquet"
        return f"spool/{identity.fleet}/{identity.model}/{identity.hardware}/{kind}/{name}"

    def _operator_rows(self, window: Window, span: Span) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for sample in window.samples:
            axes, layouts = (records.canonical_json(value).decode() for value in (sample.axes, sample.layouts))
            where = (*self._where(span), os.getpid(), sample.operator, sample.dtype, axes, layouts)
            counted = (sample.calls, sample.timed_calls, sample.timed_ns, sample.one_in)
            rows.append((*where, *counted, 0 if rows else self._untold_calls()))
        return rows

    def _request_rows(self, requests: list[tuple[FinishedRequest, int]], span: Span) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for request, weight in requests:
            tokens = (request.prompt_tokens, request.generated_tokens, request.arrival_ns, request.cached_tokens)
            accepted = records.canonical_json(request.accepted).decode()
            dropped = 0 if rows else self._untold_requests()
            rows.append((*self._where(span), *tokens, request.drafts, accepted, weight, dropped))
        return rows

    def _untold_calls(self) -> int:
        """Calls that were lost since this was last asked."""
        lost = self._backlog.lost.calls
        untold, self._told = lost - self._told.calls, replace(self._told, calls=lost)
        return untold

    def _untold_requests(self) -> int:
        lost = self._backlog.lost.requests
        untold, self._told = lost - self._told.requests, replace(self._told, requests=lost)
        return untold

    def _where(self, span: Span) -> tuple[int, int, str]:
        return span.start_ns, span.end_ns, self._host

    def _edge_rows(self, window: Window, span: Span) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for edge in window.edges:
            made_with, read_with = (
                records.canonical_json(axes).decode() for axes in (edge.producer_axes, edge.consumer_axes)
            )
            ends = (edge.producer, made_with, edge.output, edge.consumer, read_with, edge.input)
            rows.append((*self._where(span), *ends, edge.dtype, edge.uses, edge.calls))
        return rows

    def _parquet(self, rows: list[tuple[Any, ...]], columns: dict[str, str], contents: Contents, span: Span) -> bytes:
        pyarrow = _load_pyarrow()
        schema = pyarrow.schema(
            [(name, getattr(pyarrow, kind)()) for name, kind in columns.items()],
            metadata=self._metadata(contents, span),
        )
        values = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(values, schema=schema), buffer, compression="zstd")
        return buffer.getvalue()

    def _metadata(self, contents: Contents, span: Span) -> dict[str, str]:
        identity = self._identity
        return {
            "gristmill.fleet": identity.fleet,
            "gristmill.model": identity.model,
            "gristmill.hardware": identity.hardware,
            "gristmill.versions": json.dumps(identity.versions, sort_keys=True),
            "gristmill.contents": records.canonical_json(contents).decode(),
            "gristmill.clock_off_ns": str(span.clock_off_ns),
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
