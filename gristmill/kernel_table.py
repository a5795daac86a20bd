"""The kernel table: for one operator, dtype and hardware, which proven kernel serves which measured range.

Outside every entry the engine's own kernel runs. Entries of one table never overlap, so that lookup has one answer.
Numbers that describe the gain are decimal strings: a table is signed, and floats have no canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.domain import Domain

SCHEMA_VERSION = 1
WIDEST_GAP = 2
"""Two measured extents with the same winner are one range if the larger is at most this multiple of the smaller."""


@dataclass(frozen=True)
class FileRef:
    """One content-addressed file of an artifact."""

    path: str
    """Name inside the artifact: relative, forward slashes, no `..`."""
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class TableEntry:
    """One range of calls and the kernel proven for it."""

    domain: Domain
    candidate: str
    """Digest of the candidate that this is; the MLflow run carries the same tag."""
    object: FileRef
    """Shared object, built for exactly the table's hardware, that exports the C ABI of `abi/gristmill_kernel.h`."""
    needs_setup: bool
    """Whether `gm_setup` must pack the weights before the first call."""
    sources: tuple[FileRef, ...]
    """What it was built from."""
    ratio: str
    """Median speed-up over the engine's own kernel on the measured workloads of this range, e.g. `2.31`."""
    ratio_low: str
    """Lower end of its 95 % interval: the smallest over the range's workloads."""


@dataclass(frozen=True)
class KernelTable:
    """All entries of one operator and dtype on one hardware."""

    operator: str
    dtype: str
    hardware: str
    """`Hardware.key` of the machines that may load it; nothing carries over to another key."""
    entries: tuple[TableEntry, ...]

    @property
    def name(self) -> str:
        """Key in a channel's index."""
        return f"{self.operator}.{self.dtype}"


@dataclass(frozen=True)
class Artifact:
    """The manifest that is content-addressed and reachable from a channel: a table with what it was proven on."""

    table: KernelTable
    environment: dict[str, str]
    """What the proof depends on: `torch`, `compiler`, `abi`. It expires when these are gone."""
    evidence: FileRef
    """Verdicts of the re-judgement (JSON): seeds, workloads, timings, isolation; anyone can repeat it."""
    created_utc: str
    schema_version: int = SCHEMA_VERSION
