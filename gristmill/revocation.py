"""Revocation: kernels that no host loads any more, by digest and for ever, whatever a channel says.

The list is a TUF target of a role of its own, so that whoever is on call takes a kernel from every host at once without
the keys that move channels. That key adds no code to any host. What a host has read there it does not forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill import records, trust
from gristmill.errors import MalformedRecordError, TrustError
from gristmill.kernel_table import KernelTable, TableEntry

ROLE = "revocation"
PATH = "revoked/digests.json"
"""TUF target of the `Revocations`."""


@dataclass(frozen=True)
class Revocations:
    """What is revoked, and why."""

    reasons: dict[str, str]
    """SHA-256 to the reason. It is a manifest's: the whole table; or a shared object's or a candidate's: each range
    that it would serve, in whichever table."""
    schema_version: int = 1


NOTHING = Revocations({})


def parse(content: bytes) -> Revocations:
    """Decodes a list whose digest has been verified.

    Raises:
        TrustError: malformed.
    """
    try:
        revoked = records.parse(Revocations, content, "list of revoked digests")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    for digest in revoked.reasons:
        trust.checked_digest(digest)
    return revoked


def joined(known: Revocations, more: Revocations) -> Revocations:
    """Both lists as one; the first reason stands."""
    return Revocations({**more.reasons, **known.reasons})


def not_revoked(tables: Mapping[str, str], revoked: Revocations) -> dict[str, str]:
    """The tables, name to manifest digest, whose manifests may be used."""
    return {name: digest for name, digest in tables.items() if digest not in revoked.reasons}


def told(tables: Mapping[str, str], revoked: Revocations) -> dict[str, str]:
    """The other ones, name to the reason."""
    return {name: f"revoked: {why}" for name, digest in tables.items() if (why := revoked.reasons.get(digest))}


def why_table(manifest_sha256: str, table: KernelTable, revoked: Revocations) -> str | None:
    """The reason for which a table, or one of its kernels, is revoked; None if all of it may be used."""
    whys = [revoked.reasons.get(manifest_sha256), *(why_entry(entry, revoked) for entry in table.entries)]
    return next(filter(None, whys), None)


def remainder(table: KernelTable, revoked: Revocations) -> KernelTable:
    """A table without the ranges whose kernels are revoked."""
    if not revoked.reasons:
        return table
    return replace(table, entries=tuple(entry for entry in table.entries if why_entry(entry, revoked) is None))


def why_entry(entry: TableEntry, revoked: Revocations) -> str | None:
    """The reason for which a range's kernel is revoked; None if it is not."""
    return revoked.reasons.get(entry.object.sha256) or revoked.reasons.get(entry.candidate)
