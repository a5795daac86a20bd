"""The spool: samples as Parquet in the object store, read by the capture flow.

One file per flush and kind, under a key of its own, so writers never meet. While the store is down, files wait in a
bounded local folder, oldest out first; what is lost is counted and reported with the next flush.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from gristmill import durable_file, records
from gristmill.errors import SpoolError, StoreError

if TYPE_CHECKING:
    from gristmill.sampler import Sampler, Window
    from gristmill.store import ObjectStore

MAX_PENDING_REQUESTS = 100_000
WAITING_SUFFIX = ".waiting"

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
    "dropped": "int64",
}
"""`axes` and `layouts` are canonical JSON; `dropped` is of the whole window and stands in its first row only."""
REQUEST_COLUMNS = {
    "window_start_ns": "int64",
    "window_end_ns": "int64",
    "host": "string",
    "prompt_tokens": "int64",
    "generated_tokens": "int64",
    "arrival_ns": "int64",
}
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
    """Files in the local folder because the store did not take them."""
    lost: int
    """Files given up since the process started, because the folder was full."""
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
    ) -> None:
        self._store = store
        self._identity = identity
        self._sampler = sampler
        self._waiting_dir = waiting_dir
        self._max_waiting_bytes = max_waiting_bytes
        self._host = host_hash()
        self._requests: deque[tuple[int, int, int]] = deque(maxlen=MAX_PENDING_REQUESTS)
        self._window_start_ns = time.time_ns()
        self._sequence = 0
        self._lost = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add_request(self, prompt_tokens: int, generated_tokens: int, arrival_ns: int) -> None:
        """Notes one finished request; the oldest are let go if nothing is flushed for long."""
        self._requests.append((prompt_tokens, generated_tokens, arrival_ns))

    def flush(self) -> Flushed:
        """Writes everything since the last flush; an empty window writes nothing.

        Raises:
            SpoolError: pyarrow is missing, or neither store nor local folder can be written.
        """
        with self._lock:
            _load_pyarrow()  # before anything is taken from the sampler
            start_ns, end_ns = self._window_start_ns, max(time.time_ns(), self._window_start_ns + 1)
            window = self._sampler.flush()
            requests = [self._requests.popleft() for _ in range(len(self._requests))]
            self._window_start_ns = end_ns
            files: list[tuple[str, bytes]] = []
            rows = self._operator_rows(window, start_ns, end_ns)
            if rows:
                files.append((self._key("operators", start_ns), self._parquet(rows, OPERATOR_COLUMNS)))
            edge_rows = self._edge_rows(window, start_ns, end_ns)
            if edge_rows:
                files.append((self._key("sequences", start_ns), self._parquet(edge_rows, SEQUENCE_COLUMNS)))
            if requests:
                request_rows = [(start_ns, end_ns, self._host, *request) for request in requests]
                files.append((self._key("requests", start_ns), self._parquet(request_rows, REQUEST_COLUMNS)))
            self._sequence += bool(files)
            keys, problem = self._deliver(files)
            calls = sum(sample.calls for sample in window.samples)
            return Flushed(tuple(keys), calls, len(requests), len(self._waiting()), self._lost, problem)

    def start(self, interval_s: float) -> None:
        """Flushes every `interval_s` from a daemon thread."""

        def loop() -> None:
            while not self._stopped.wait(interval_s):
                try:
                    self.flush()
                except SpoolError:
                    self._lost += 1

        self._thread = threading.Thread(target=loop, name="gristmill-spool", daemon=True)
        self._thread.start()

    def stop(self) -> Flushed:
        """Ends the thread and flushes once more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        return self.flush()

    def _key(self, kind: str, start_ns: int) -> str:
        identity = self._identity
        name = f"{start_ns}-{self._host}-{os.getpid()}-{self._sequence}.parquet"
        return f"spool/{identity.fleet}/{identity.model}/{identity.hardware}/{kind}/{name}"

    def _operator_rows(self, window: Window, start_ns: int, end_ns: int) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for sample in window.samples:
            axes, layouts = (records.canonical_json(value).decode() for value in (sample.axes, sample.layouts))
            where = (start_ns, end_ns, self._host, os.getpid(), sample.operator, sample.dtype, axes, layouts)
            counted = (sample.calls, sample.timed_calls, sample.timed_ns, 0 if rows else window.dropped)
            rows.append((*where, *counted))
        return rows

    def _edge_rows(self, window: Window, start_ns: int, end_ns: int) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for edge in window.edges:
            made_with, read_with = (
                records.canonical_json(axes).decode() for axes in (edge.producer_axes, edge.consumer_axes)
            )
            ends = (edge.producer, made_with, edge.output, edge.consumer, read_with, edge.input)
            rows.append((start_ns, end_ns, self._host, *ends, edge.dtype, edge.uses, edge.calls))
        return rows

    def _parquet(self, rows: list[tuple[Any, ...]], columns: dict[str, str]) -> bytes:
        pyarrow = _load_pyarrow()
        schema = pyarrow.schema(
            [(name, getattr(pyarrow, kind)()) for name, kind in columns.items()], metadata=self._metadata()
        )
        values = dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(values, schema=schema), buffer, compression="zstd")
        return buffer.getvalue()

    def _metadata(self) -> dict[str, str]:
        identity = self._identity
        return {
            "gristmill.fleet": identity.fleet,
            "gristmill.model": identity.model,
            "gristmill.hardware": identity.hardware,
            "gristmill.versions": json.dumps(identity.versions, sort_keys=True),
        }

    def _deliver(self, files: list[tuple[str, bytes]]) -> tuple[list[str], str]:
        """Puts what waited and what is new; on the first refusal the rest waits."""
        keys: list[str] = []
        problem = ""
        try:
            for path in self._waiting():
                key = unquote(path.name.removesuffix(WAITING_SUFFIX))
                with contextlib.suppress(FileNotFoundError):  # another process of this host was faster
                    self._store.put(key, path.read_bytes())
                    path.unlink()
                    keys.append(key)
            while files:
                self._store.put(*files[0])
                keys.append(files.pop(0)[0])
        except StoreError as error:
            problem = str(error)
        self._keep_waiting(files)
        return keys, problem

    def _waiting(self) -> list[Path]:
        return sorted(self._waiting_dir.glob("*" + WAITING_SUFFIX), key=_window_of)

    def _keep_waiting(self, files: list[tuple[str, bytes]]) -> None:
        try:
            self._waiting_dir.mkdir(parents=True, exist_ok=True)
            for key, content in files:
                durable_file.write(self._waiting_dir / (quote(key, safe="") + WAITING_SUFFIX), content, mode=0o600)
            sizes = {path: path.stat().st_size for path in self._waiting() if path.exists()}
            excess = sum(sizes.values()) - self._max_waiting_bytes
            for path, size_bytes in sizes.items():
                if excess <= 0:
                    break
                excess -= size_bytes
                path.unlink(missing_ok=True)
                self._lost += 1
        except OSError as error:
            raise SpoolError(
                f"spool: store and folder {self._waiting_dir} both refuse samples ({error}); free space or mend either"
            ) from None


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


def _window_of(waiting: Path) -> tuple[int, str]:
    """Orders waiting files by the start of their window, which their key's last part begins with."""
    start = unquote(waiting.name).rsplit("/", 1)[-1].split("-", 1)[0]
    return (int(start) if start.isdecimal() else 0, waiting.name)


def host_hash() -> str:
    """A short name of this machine that does not reveal it."""
    return hashlib.sha256(b"gristmill host " + platform.node().encode()).hexdigest()[:12]
