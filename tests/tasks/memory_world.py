"""Segments for tests of memory, and stores that fail where they are told to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agents import shelf as shelves
from agents.memory import SCHEMA, Contents, Segment, family_of
from gristmill.errors import StoreUnreachableError
from gristmill.store import Listing, NotModified, ObjectStore, StoredObject
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from tests.tasks import world

NOW_MS = 1_790_000_000_000


def judged(number: int, ratio: float | None = 2.0, operator: str = "rms_norm") -> tuple[Candidate, Verdict]:
    """A candidate and its verdict; a failed build where there is no ratio."""
    one = world.candidate(number, operator)
    workload = world.rms_norm(1 + number % 5) if operator == "rms_norm" else world.silu_and_mul(1 + number % 5)
    return one, world.verdict(one, *([] if ratio is None else [world.timing(workload, ratio)]))


def segment(
    number: int, *trials: tuple[Candidate, Verdict], writer: str = "w", written_ms: int = NOW_MS
) -> tuple[Segment, list[Candidate]]:
    """What a search would write of these trials, all of one family, and the sources with it."""
    contents = Contents()
    for candidate, verdict in trials:
        contents = shelves.merged(contents, shelves.learned(candidate, verdict, world.HARDWARE, written_ms))
    contents = shelves.bounded(contents)
    named = {entry.candidate for entry in contents.candidates}
    family = family_of(trials[0][0].operator)
    made = Segment(SCHEMA, family, writer, number, written_ms, contents)
    return made, [candidate for candidate, _ in trials if candidate.digest in named]


def tried(contents: Contents) -> int:
    return sum(record.tried for record in contents.records)


def rounded(contents: Contents) -> Contents:
    """Without the last digits of sums, which depend on the order of adding."""
    return dataclasses.replace(
        contents,
        records=tuple(
            dataclasses.replace(
                record,
                evidence=type(record.evidence)(*(round(v, 9) for v in dataclasses.astuple(record.evidence))),
            )
            for record in contents.records
        ),
    )


@dataclass
class FailingStore:
    """Passes everything on, until the write of a given number: that one, and all after it, fail."""

    inner: ObjectStore
    dies_at: int
    landed: bool = False
    """Whether the fatal write itself takes effect."""
    writes: int = 0
    seen: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, etag: str | None = None, max_bytes: int = 1 << 28) -> StoredObject | NotModified:
        return self.inner.get(key, etag, max_bytes)

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)

    def scan(self, prefix: str) -> Iterator[Listing]:
        return self.inner.scan(prefix)

    def put_new(self, key: str, content: bytes) -> str:
        return str(self._write(lambda: self.inner.put_new(key, content), f"put_new {key}"))

    def replace_if(self, key: str, content: bytes, etag: str) -> str:
        return str(self._write(lambda: self.inner.replace_if(key, content, etag), f"replace_if {key}"))

    def put(self, key: str, content: bytes) -> str:
        return str(self._write(lambda: self.inner.put(key, content), f"put {key}"))

    def delete(self, key: str) -> None:
        self._write(lambda: self.inner.delete(key), f"delete {key}")

    def _write(self, write: Callable[[], Any], what: str) -> Any:
        number, self.writes = self.writes, self.writes + 1
        self.seen.append(what)
        if number < self.dies_at:
            return write()
        if number == self.dies_at and self.landed:
            write()
        raise StoreUnreachableError("the store is gone")
