"""What a host tells the registry about itself: unsigned, and believed only as far as a host may be believed.

Counters are those of one process since it swapped in the generation that it serves, so that nobody has to remember
earlier reports to tell what that generation did. Each report replaces the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gristmill import limits, records, store
from gristmill.errors import MalformedRecordError, ObjectNotFoundError, ObjectTooLargeError
from gristmill.store import Listing, ObjectStore
from gristmill.trust import Channel

SCHEMA_VERSION = 2
READERS = 8
"""A thousand reports wait for the store, not for a processor; botocore keeps ten connections."""
SUFFIX = ".json"


@dataclass(frozen=True)
class TableCounts:
    """What became of the calls of one operator and dtype."""

    hits: int = 0
    """Calls that a promoted kernel served."""
    fallbacks: int = 0
    """Calls that a table covers by operator, and the engine's own kernel served."""
    failures: int = 0
    """Calls in which a kernel raised or refused, so that the engine's own served them."""
    shadow_checks: int = 0
    mismatches: int = 0
    """Shadow-checked calls whose results differed too much."""
    calls: int = 0
    """Calls that the sampler counted, whatever served them; 0 without one."""
    timed_calls: int = 0
    timed_ns: int = 0

    def __add__(self, other: TableCounts) -> TableCounts:
        return TableCounts(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __sub__(self, other: TableCounts) -> TableCounts:
        return TableCounts(*(a - b for a, b in zip(_values(self), _values(other), strict=True)))


@dataclass(frozen=True)
class Work:
    """Counters that only grow."""

    tables: dict[str, TableCounts] = field(default_factory=dict)
    """By `KernelTable.name`."""
    decode_tokens: int = 0
    decode_ns: int = 0
    """Time spent decoding them; prefill and waiting are not in it."""

    def __add__(self, other: Work) -> Work:
        tables = {name: self.of(name) + other.of(name) for name in {*self.tables, *other.tables}}
        return Work(tables, self.decode_tokens + other.decode_tokens, self.decode_ns + other.decode_ns)

    def __sub__(self, other: Work) -> Work:
        tables = {name: self.of(name) - other.of(name) for name in {*self.tables, *other.tables}}
        return Work(tables, self.decode_tokens - other.decode_tokens, self.decode_ns - other.decode_ns)

    def of(self, table: str) -> TableCounts:
        return self.tables.get(table, TableCounts())

    @property
    def has_negative(self) -> bool:
        return min(self.decode_tokens, self.decode_ns, *(n for t in self.tables.values() for n in _values(t))) < 0


@dataclass(frozen=True)
class Refused:
    """An entry of a generation that a host would not run."""

    generation: int
    operator: str
    candidate: str
    reason: str


@dataclass(frozen=True)
class StatusReport:
    """The state of one process of a host at one moment."""

    host: str
    """`Cache.host_id`."""
    worker: str
    """Which of the host's processes, by a name that survives restarts; empty if there is one."""
    process: str
    """Drawn when the process started: its counters start with it."""
    follows: str
    """Its setting: `canary`, `stable` or `auto`."""
    channel: str
    """Where the generation that serves came from; the setting while there is none yet."""
    generation: int
    work: Work
    """Since the generation was swapped in."""
    refusals: tuple[Refused, ...]
    """The latest, newest last."""
    problem: str
    """Why the last poll took nothing; empty if it could be done."""
    kill: str
    """What the local kill switch says; empty if it is off."""
    closing: bool
    """Whether the process ends in good order: its silence from now on means nothing."""
    swapped_utc: str
    """When the generation was swapped in, or the process started, by the host's clock; so is `created_utc`."""
    created_utc: str
    schema_version: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """What tells this process from others; its report's file name."""
        return f"{self.host}.{self.worker}" if self.worker else self.host


@dataclass(frozen=True)
class Received:
    """A report as it lies in the store."""

    name: str
    written_s: float
    """By the store's clock: seconds since 1970."""
    report: StatusReport | None
    flaw: str = ""
    """Why it can't be read as one."""


def report_key(channel: Channel, name: str) -> str:
    """Where the report of `StatusReport.name` is kept."""
    return f"{reports_prefix(channel)}{name}{SUFFIX}"


def reports_prefix(channel: Channel) -> str:
    """Where the reports of all hosts of a kind are, whichever channel each follows."""
    return f"reports/{channel.fleet}/{channel.model}/{channel.hardware}/"


def report(object_store: ObjectStore, channel: Channel, status: StatusReport) -> None:
    """Replaces the process's report.

    Raises:
        RecordTooLargeError: nobody would read it.
    """
    content = limits.checked(records.canonical_json(status), limits.MAX_REPORT_BYTES, "status report")
    object_store.put(report_key(channel, status.name), content)


def read_reports(object_store: ObjectStore, channel: Channel, since_s: float = 0.0) -> Iterator[Received]:
    """The latest report of every process of this kind that has written one since then, in order of name.

    One that can't be read is returned with its flaw: a host that lies must not keep the others from being heard. At
    most `READERS` are read at a time.
    """
    from concurrent.futures import ThreadPoolExecutor

    prefix = reports_prefix(channel)
    recent = [one for one in object_store.scan(prefix) if one.modified_s >= since_s and one.key.endswith(SUFFIX)]
    pool = ThreadPoolExecutor(READERS)
    try:
        for received in pool.map(lambda found: _received(object_store, prefix, found), recent):
            if received is not None:
                yield received
    finally:
        pool.shutdown(cancel_futures=True)


def _received(object_store: ObjectStore, prefix: str, found: Listing) -> Received | None:
    """One report as it was listed; None if it is gone by now."""
    name = found.key.removeprefix(prefix).removesuffix(SUFFIX)
    try:
        status = parse_report(store.read(object_store, found.key, limits.MAX_REPORT_BYTES))
    except ObjectNotFoundError:
        return None
    except (MalformedRecordError, ObjectTooLargeError) as error:
        return Received(name, found.modified_s, None, str(error))
    if status.name != name:
        return Received(name, found.modified_s, None, f"it claims to be of {status.name[:80]!r}")
    return Received(name, found.modified_s, status)


def parse_report(content: bytes) -> StatusReport:
    """Decodes a report.

    Raises:
        MalformedRecordError: another version, or not of its form.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise MalformedRecordError("status report: not JSON") from None
    version = value.get("schema_version") if isinstance(value, Mapping) else None
    if version != SCHEMA_VERSION:
        raise MalformedRecordError(
            f"status report: version {str(version)[:20]}, expected {SCHEMA_VERSION}; give hosts and pipeline the same "
            "release of gristmill"
        )
    return records.decode(StatusReport, value, "status report")


def _values(counts: TableCounts) -> tuple[int, ...]:
    return tuple(vars(counts).values())
