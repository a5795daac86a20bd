"""A recollection on this host's disk: what a search begins with, kept for its second life and for outages."""

from __future__ import annotations

from pathlib import Path

from agents import shelf
from agents.memory import Contents, Recollection
from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError


def write(path: Path, recalled: Recollection) -> None:
    """Its folder is made if need be.

    Raises:
        OSError: the disk does not take it; what was there before stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    durable_file.write(path, records.canonical_json(recalled))


def read(path: Path) -> Recollection:
    """
    Raises:
        OSError: there is none.
        MalformedRecordError: it is damaged, or cannot be counted with.
    """
    recalled = records.parse(Recollection, durable_file.read(path), path.name)
    entries = tuple(one.entry for one in recalled.candidates)
    complaint = shelf.complaint(Contents(recalled.records, recalled.lessons, entries))
    if complaint:
        raise MalformedRecordError(f"{path.name}: {complaint}")
    return recalled
