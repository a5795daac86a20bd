"""The machine: whether a folder is still on the one that filled it. A copied disk or image makes two hosts of one.

What is kept tells nobody which machine it was: digests, salted with the host's own name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCES = {
    "product_uuid": Path("/sys/class/dmi/id/product_uuid"),
    "machine_id": Path("/etc/machine-id"),
}
"""The first is the hypervisor's or the board's, and for root alone; the second the system's, and often copied along."""
MAX_CHARS = 200
SHORTEST_CHARS = 16
"""Below it nothing tells machines apart: `uninitialized`, and nothing."""


@dataclass(frozen=True)
class Binding:
    """What a host's name goes with."""

    host: str
    marks: dict[str, str]
    """By source."""
    schema_version: int = 1


def marks(host: str) -> dict[str, str]:
    """Of this machine, salted with a host's name, as far as this process may know them."""
    found = {name: _value(path) for name, path in SOURCES.items()}
    return {
        name: hashlib.sha256(f"gristmill machine/{host}/{name}/{value}".encode()).hexdigest()
        for name, value in found.items()
        if len(value) >= SHORTEST_CHARS
    }


def differ(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two sets of marks are of two machines: some source says so. What only one of them knows says nothing."""
    return any(before[name] != now[name] for name in before.keys() & now.keys())


def _value(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read(MAX_CHARS).strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""
