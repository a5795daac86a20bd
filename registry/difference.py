"""What two states of a channel serve differently, range by range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gristmill.domain import Domain, Layout
from gristmill.kernel_table import KernelTable, TableEntry


class Change(StrEnum):
    """What became of a range."""

    CAME = "came"
    WENT = "went"
    MOVED = "changed range"
    GAIN = "changed gain"
    KERNEL = "another kernel"


@dataclass(frozen=True)
class Difference:
    """One range that is not what it was."""

    table: str
    change: Change
    old: TableEntry | None
    new: TableEntry | None


def compare(old: Mapping[str, KernelTable], new: Mapping[str, KernelTable]) -> tuple[Difference, ...]:
    """All differences, in order of table, then as the tables list their ranges."""
    return tuple(
        difference
        for name in sorted({*old, *new})
        for difference in _compare_tables(name, _entries(old.get(name)), _entries(new.get(name)))
    )


def range_text(domain: Domain) -> str:
    """A domain's predicates in words: `hidden 1024, tokens 1 to 8`."""
    parts = [
        f"{r.name} {r.low}"
        + (f" to {r.high}" if r.high != r.low else "")
        + (f" by {r.multiple}" if r.multiple > 1 else "")
        for r in domain.ranges
    ]
    if domain.layout is not Layout.CONTIGUOUS:
        parts.append(f"{domain.layout.value} strides")
    return ", ".join(parts) or "all"


def _entries(table: KernelTable | None) -> list[TableEntry]:
    return list(table.entries) if table else []


def _compare_tables(name: str, old: list[TableEntry], new: list[TableEntry]) -> list[Difference]:
    """Pairs what has the same domain, then what is the same kernel; the rest came or went."""
    found: list[Difference] = []
    for entry in list(new):
        before = next((one for one in old if one.domain == entry.domain), None)
        if before is None:
            continue
        old.remove(before)
        new.remove(entry)
        if before.object.sha256 != entry.object.sha256:
            found.append(Difference(name, Change.KERNEL, before, entry))
        elif (before.ratio, before.ratio_low) != (entry.ratio, entry.ratio_low):
            found.append(Difference(name, Change.GAIN, before, entry))
    for entry in list(new):
        before = next((one for one in old if one.object.sha256 == entry.object.sha256), None)
        if before is not None:
            old.remove(before)
            new.remove(entry)
            found.append(Difference(name, Change.MOVED, before, entry))
    found += [Difference(name, Change.WENT, entry, None) for entry in old]
    found += [Difference(name, Change.CAME, None, entry) for entry in new]
    return found
