"""What a host tells the registry about itself: unsigned, and believed only as far as a host may be believed."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import records, store
from gristmill.store import ObjectStore
from gristmill.trust import Channel

MAX_REPORT_BYTES = 1 << 20


@dataclass(frozen=True)
class StatusReport:
    """The state of one host at one moment."""

    host: str
    """`Cache.host_id`."""
    channel: str
    generation: int
    hits: dict[str, int]
    """Calls served by a promoted kernel, by table name, since the process started."""
    fallbacks: dict[str, int]
    """Calls of the same operators that the engine's own kernel served."""
    mismatches: dict[str, int]
    """Shadow-checked calls whose results differed too much."""
    refusals: tuple[str, ...]
    """Why newer generations were not taken, newest last."""
    created_utc: str
    schema_version: int = 1


def report_key(channel: Channel, host: str) -> str:
    """Where a host's report is kept; the next one replaces it."""
    return f"{reports_prefix(channel)}{host}.json"


def reports_prefix(channel: Channel) -> str:
    """Where the reports of all hosts of a kind are, whichever channel each follows."""
    return f"reports/{channel.fleet}/{channel.model}/{channel.hardware}/"


def report(object_store: ObjectStore, channel: Channel, status: StatusReport) -> None:
    """Replaces the host's report."""
    object_store.put(report_key(channel, status.host), records.canonical_json(status))


def read_reports(object_store: ObjectStore, channel: Channel) -> list[StatusReport]:
    """The latest report of every host of this kind.

    Raises:
        MalformedRecordError: a report does not have the form of this version.
    """
    return [
        records.parse(StatusReport, store.read(object_store, key, MAX_REPORT_BYTES), key)
        for key in object_store.list(reports_prefix(channel))
    ]
