"""What became of each pattern so far: memory's records, as one looks at them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agents.memory import PatternRecord
from agents.patterns import catalogue
from tasks import object_store
from tasks.memory_shelves import MemoryShelves
from tasks.settings import Settings


@dataclass(frozen=True)
class Standing:
    """One pattern on one kind of hardware, all operators together."""

    pattern: str
    hardware: str
    """Hardware key."""
    tried: int
    won: int
    best: float
    """The highest traffic-weighted ratio; 0 if no candidate was correct."""
    best_operator: str
    """What reached it."""
    last_ms: int
    """When a candidate was judged last, since the epoch."""


def read(settings: Settings) -> tuple[PatternRecord, ...]:
    """All records in the store.

    Raises:
        StoreError: it does not answer.
    """
    with object_store.opened(settings) as opened:
        shelves = MemoryShelves(opened.store)
        return tuple(record for family in shelves.families() for record in shelves.read(family).contents.records)


def standings(records: Iterable[PatternRecord]) -> tuple[Standing, ...]:
    """By pattern, under the name that the catalogue has for it, and hardware; the highest gain first."""
    grouped: dict[tuple[str, str], list[PatternRecord]] = {}
    for record in records:
        grouped.setdefault((catalogue.canonical(record.pattern), record.hardware), []).append(record)
    found = [_standing(pattern, hardware, group) for (pattern, hardware), group in grouped.items()]
    return tuple(sorted(found, key=lambda s: (-s.best, s.pattern, s.hardware)))


def _standing(pattern: str, hardware: str, records: list[PatternRecord]) -> Standing:
    best = max(records, key=lambda record: record.best)
    return Standing(
        pattern=pattern,
        hardware=hardware,
        tried=sum(record.tried for record in records),
        won=sum(record.won for record in records),
        best=best.best,
        best_operator=best.operator if best.best else "",
        last_ms=max(record.as_of_ms for record in records),
    )
