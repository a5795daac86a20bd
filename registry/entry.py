"""Indexes as states of a channel: the one that is current, those before it, and what an edit makes the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gristmill import limits, records
from gristmill.errors import GristmillError
from gristmill.trust import CHANNELS, Channel, Index


@dataclass(frozen=True)
class Edit:
    """What an index shall say next."""

    tables: dict[str, str]
    reason: str
    restores: int | None = None


@dataclass(frozen=True)
class Entry:
    """An index that is, or was, current."""

    index: Index
    sha256: str


EditFunction = Callable[[Entry | None], Edit | None]
"""Says what to do with the current state; None: leave it. Called anew after each conflict, so it must be pure."""


def channel_of(index_path: str) -> Channel | None:
    """Whose index has this TUF target path; None if it is another target."""
    name, _, rest = index_path.partition("/")
    fleet, _, rest = rest.partition("/")
    model, _, file = rest.partition("/")
    hardware = file.removeprefix("index.").removesuffix(".json")
    try:
        channel = Channel(name, fleet, model, hardware)
    except GristmillError:
        return None
    return channel if name in CHANNELS and channel.index_path == index_path else None


def next_index(channel: Channel, number: int, current: Entry | None, change: Edit) -> Index:
    """The index that an edit makes of the current state. Its reason is cut short: it may tell what hosts have said."""
    return Index(
        channel=channel.name,
        fleet=channel.fleet,
        model=channel.model,
        hardware=channel.hardware,
        number=number,
        tables=change.tables,
        previous=current.sha256 if current else None,
        restores=change.restores,
        created_utc=datetime.now(UTC).isoformat(timespec="microseconds"),
        reason=limits.shortened(change.reason),
    )


def entry_of(index: Index) -> Entry:
    """An index with its digest."""
    return Entry(index, records.digest(index))
