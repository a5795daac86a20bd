"""`./mill registry log|show|diff`: what the channels serve and served, who changed it, when and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from cli.table import compact_table
from gristmill.kernel_table import KernelTable, TableEntry
from gristmill.limits import one_line
from gristmill.records import short
from gristmill.store import ObjectStore
from gristmill.trust import ATTESTORS, CHANNELS, Channel
from tasks.settings import Settings

if TYPE_CHECKING:
    from registry.difference import Difference
    from registry.entry import Entry
    from registry.keys import Keyring
    from registry.repository import Repository


@dataclass(frozen=True)
class Reader:
    """The registry, as one who only looks at it."""

    store: ObjectStore
    keyring: Keyring
    repository: Repository
    settings: Settings

    def channel(self, name: str) -> Channel:
        from tasks import promotion

        return promotion.channel_of(self.settings, name)

    def facts(self, channel: Channel, entry: Entry, before: Entry | None) -> dict[str, Any]:
        """A state for JSON."""
        from registry.states import signature_of

        index, signature = entry.index, signature_of(self.store, self.keyring, channel, entry)
        kept = before is not None or index.previous is None
        old, new = before.index.tables if before else {} if kept else index.tables, index.tables
        return {
            "state": entry.sha256,
            "channel": channel.name,
            "number": index.number,
            "created": index.created_utc,
            "signed_by": signature.key_id if signature else None,
            "key_is_trusted": signature.trusted if signature else False,
            "reason": index.reason,
            "restores": index.restores,
            "previous": index.previous,
            "previous_is_kept": kept,
            "tables": dict(sorted(new.items())),
            "came": sorted(new.keys() - old.keys()),
            "went": sorted(old.keys() - new.keys()),
            "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
        }

    def tables(self, entry: Entry | None) -> dict[str, KernelTable]:
        from registry.publication import read_manifest

        manifests = entry.index.tables if entry else {}
        return {name: read_manifest(self.store, digest).table for name, digest in sorted(manifests.items())}

    def found(self, name: str) -> tuple[Channel, Entry, Entry | None]:
        """A state by name, with the one before."""
        from registry.states import find_state

        histories = {one: list(self.repository.history(self.channel(one))) for one in CHANNELS}
        at = find_state(name, histories)
        states = histories[at.channel_name]
        return self.channel(at.channel_name), states[at.index], next(iter(states[at.index + 1 :]), None)


def log(reader: Reader, channel_name: str, limit: int, as_json: bool) -> Any:
    """Prints, or returns what is to be printed as JSON; so do the others."""
    channel = reader.channel(channel_name)
    states = list(islice(reader.repository.history(channel), limit + 1))
    rows = [reader.facts(channel, one, before) for one, before in pairwise([*states, None]) if one]
    more, rows = len(rows) > limit, rows[:limit]
    if as_json:
        return rows
    if not rows:
        print(f"{channel}: nothing was published yet")
        return None
    table = [
        [
            f"{channel_name}~{back}" if back else channel_name,
            short(row["state"]),
            row["number"],
            _when(row),
            _who(row),
            row["reason"],
            _changes(row),
        ]
        for back, row in enumerate(rows)
    ]
    print(compact_table(table, ["name", "state", "number", "when (UTC)", "signed by", "why", "tables"]))
    if more:
        print(f"the newest {limit}; --limit shows more")
    return None


def show(reader: Reader, name: str, as_json: bool) -> Any:
    from registry.difference import compare

    channel, entry, before = reader.found(name)
    facts, tables = reader.facts(channel, entry, before), reader.tables(entry)
    attested = _attested(reader, entry)
    changes = compare(reader.tables(before), tables) if before or entry.index.previous is None else ()
    if as_json:
        ranges = [row for one, table in tables.items() for row in _range_facts(one, table)]
        more = {"attested_by": attested, "ranges": ranges, "changes": _rows(changes)}
        return {**facts, **more}
    print(f"state {entry.sha256}")
    print(f"channel {channel}, number {entry.index.number}")
    print(f"signed by {_who(facts)} at {_when(facts)} UTC")
    print(f"why: {one_line(entry.index.reason)}")
    print(f"before: {short(entry.index.previous) if entry.index.previous else 'nothing'}")
    rows = [
        [
            row["table"],
            row["range"],
            short(row["kernel"]),
            short(row["candidate"]),
            f"{row['ratio']}x",
            f"{row['ratio_low']}x",
            by,
        ]
        for one, table in tables.items()
        for by in [", ".join(attested[one]) or "nobody"]
        for row in _range_facts(one, table)
    ]
    if rows:
        print()
        print(compact_table(rows, ["table", "range", "kernel", "candidate", "gain", "at least", "attested by"]))
    else:
        print("serves no kernels: the engine's own everywhere")
    if changes:
        print()
        _print_changes(changes)
    return None


def diff(reader: Reader, old_name: str, new_name: str, as_json: bool) -> Any:
    from registry.difference import compare

    _, old, _ = reader.found(old_name)
    _, new, _ = reader.found(new_name)
    changes = compare(reader.tables(old), reader.tables(new))
    if as_json:
        return {"old": old.sha256, "new": new.sha256, "changes": _rows(changes)}
    if changes:
        _print_changes(changes)
    else:
        print(f"{short(old.sha256)} and {short(new.sha256)} serve the same")
    return None


def _attested(reader: Reader, entry: Entry) -> dict[str, list[str]]:
    """Table to the attestors whose signature hosts would accept today."""
    from registry.attestation import is_attested

    policy = reader.repository.policy()
    return {
        name: [one for one in ATTESTORS if is_attested(reader.store, policy, one, digest)]
        for name, digest in sorted(entry.index.tables.items())
    }


def _range_facts(name: str, table: KernelTable) -> list[dict[str, str]]:
    return [{"table": name, **_entry_facts(entry)} for entry in table.entries]


def _entry_facts(entry: TableEntry) -> dict[str, str]:
    from registry.difference import range_text

    return {
        "range": range_text(entry.domain),
        "kernel": entry.object.sha256,
        "candidate": entry.candidate,
        "ratio": entry.ratio,
        "ratio_low": entry.ratio_low,
    }


def _rows(changes: Iterable[Difference]) -> list[dict[str, Any]]:
    return [
        {
            "table": one.table,
            "change": one.change.value,
            "old": _entry_facts(one.old) if one.old else None,
            "new": _entry_facts(one.new) if one.new else None,
        }
        for one in changes
    ]


def _print_changes(changes: Sequence[Difference]) -> None:
    rows = []
    for row in _rows(changes):
        old, new = row["old"] or {}, row["new"] or {}
        gains = [f"{one['ratio']}x" for one in (old, new) if one]
        kernels = [short(one["kernel"]) for one in (old, new) if one]
        ranges = [one["range"] for one in (old, new) if one]
        rows.append([row["table"], row["change"], *map(_arrow, (ranges, kernels, gains))])
    print(compact_table(rows, ["table", "change", "range", "kernel", "gain"]))


def _arrow(values: list[str]) -> str:
    return " -> ".join(dict.fromkeys(values))


def _changes(row: dict[str, Any]) -> str:
    if not row["previous_is_kept"]:
        return "the state before was removed"
    marks = [("+", "came"), ("-", "went"), ("~", "changed")]
    return " ".join(f"{mark}{name}" for mark, key in marks for name in row[key]) or "as before"


def _who(row: dict[str, Any]) -> str:
    if row["signed_by"] is None:
        return "-"
    key = f"{row['channel']} key {short(row['signed_by'])}"
    return key if row["key_is_trusted"] else f"{key}, since replaced"


def _when(row: dict[str, Any]) -> str:
    return str(row["created"])[:19].replace("T", " ")
