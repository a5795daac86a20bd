"""A generation: one verified state of a channel, ready to be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gristmill.kernel_table import KernelTable


@dataclass(frozen=True)
class Generation:
    """What a host may run. Every file named here has been verified against signed metadata."""

    number: int
    """Version of the channel's signed role: it grows with every promotion and every rollback. 0 is the empty one."""
    channel: str
    hardware: str
    tables: tuple[KernelTable, ...]
    objects: dict[str, Path]
    """Shared objects by SHA-256, in the host's content-addressed cache."""


def empty(channel: str, hardware: str) -> Generation:
    """The generation before anything was published: every call goes to the engine's own kernel."""
    return Generation(number=0, channel=channel, hardware=hardware, tables=(), objects={})
