"""What a sidecar says of itself in the cache that it fills: for engines that follow it, and for whoever probes it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError
from gristmill.trust import Channel

BEAT_S = 5.0
"""How often a sidecar touches its status while it runs."""
SILENT_S = 60.0
"""A status that was not touched for so long is of a sidecar that has died or hangs."""
MAX_BYTES = 65_536


@dataclass(frozen=True)
class SidecarStatus:
    """The state of one sidecar after its last poll."""

    channel: str
    generation: int
    """That the cache holds; 0 while there is none."""
    polls: int
    """That succeeded since it started."""
    problem: str
    """Why the last poll failed; empty if it did not."""
    running: bool
    """False once it has ended in good order."""
    started_utc: str
    polled_utc: str
    """Of the last poll that succeeded; empty before the first."""
    schema_version: int = 1


def status_path(cache_dir: Path, channel: Channel) -> Path:
    """The status of the sidecar that follows this channel."""
    return cache_dir / "sidecars" / channel.index_path


def write(path: Path, status: SidecarStatus) -> None:
    """Replaces the status; raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durable_file.write(path, records.canonical_json(status))


def read(path: Path) -> SidecarStatus | None:
    """None if no sidecar has ever filled this cache for this channel, or what it wrote is damaged."""
    try:
        return records.parse(SidecarStatus, durable_file.read(path, MAX_BYTES), str(path))
    except (OSError, MalformedRecordError):
        return None


def is_starting(status: SidecarStatus | None, touched_s: float) -> bool:
    """Whether a sidecar that was here before has not polled since it was started again; `touched_s` as `trouble`."""
    if status is None:
        return False
    gone = not status.running or time.time() - touched_s > SILENT_S
    return gone or not (status.polls or status.problem)


def trouble(status: SidecarStatus | None, touched_s: float) -> str:
    """What is wrong with a sidecar; empty if nothing is.

    Args:
        touched_s: when its status was last touched, in seconds since 1970.
    """
    silent_s = time.time() - touched_s
    if status is None:
        return "no sidecar has filled this cache yet; start gristmill-sidecar"
    if not status.running:
        return "the sidecar was ended; start it again"
    if silent_s > SILENT_S:
        return f"the sidecar has been silent for {silent_s:.0f} s; look whether it runs"
    return status.problem
