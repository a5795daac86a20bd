"""Revoking kernels: a digest, or its first digits, is taken from every host at its next poll, and never comes back."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill import limits, records, trust
from gristmill.errors import ObjectNotFoundError
from gristmill.revocation import Revocations
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry.errors import RevocationError
from registry.keys import Keyring
from registry.publication import read_manifest
from registry.repository import Repository

DIGITS = 64
STATE = "state"


@dataclass(frozen=True)
class Revoked:
    """What was revoked, and what it served."""

    digest: str
    reason: str
    kind: str
    """`manifest`, `object` or `candidate`; `unknown` if no state that is kept refers to it."""
    tables: dict[str, tuple[str, ...]]
    """Channel to the tables that it was in, where it is current."""


def revoke(object_store: ObjectStore, keyring: Keyring, digest: str, reason: str) -> Revoked:
    """Revokes a manifest, a shared object or a candidate; safe to repeat.

    On return hosts that poll drop it; one that cannot poll keeps what it has, and drops it once it can.

    Args:
        digest: SHA-256, or at least `records.SHOWN_DIGITS` of its first digits if a state that is kept refers to it.

    Raises:
        RevocationError: it is no digest, or that of a state; no state refers to anything that begins so, or several
            things do; or the reason is empty, or too long.
        RecordTooLargeError: the list of what is revoked is full.
        KeyFileError: the revocation key, or one that makes changes current, is not here or was replaced.
        ConflictError, RegistryStateError: as `Repository.revoke`.
    """
    digest, reason = digest.strip().lower(), " ".join(limits.one_line(reason).split())
    if len(digest) < records.SHOWN_DIGITS or set(digest) - set("0123456789abcdef"):
        raise RevocationError(
            f"{digest[:80]!r} is no digest: expected {records.SHOWN_DIGITS} or more of its hexadecimal digits, as "
            "./mill registry show tells them"
        )
    if not reason:
        raise RevocationError(f"revoking {records.short(digest)}: expected a reason, which hosts and logs will show")
    if len(reason) > limits.MAX_REASON_CHARS:
        raise RevocationError(
            f"revoking {records.short(digest)}: the reason has {len(reason)} characters, expected "
            f"{limits.MAX_REASON_CHARS} at most, since every host reads all reasons; say the rest where you "
            "keep your incidents"
        )
    repository = Repository(object_store, keyring)
    known = _known(object_store, repository)
    full = digest if len(digest) == DIGITS else _completed(digest, known)
    trust.checked_digest(full)
    kind, used = known.get(full, ("unknown", ()))
    if kind == STATE:
        state = f"{used[0][0].name}:{used[0][1]}"
        raise RevocationError(
            f"{records.short(full)} is a state of a channel, {state}, and no kernel: ./mill registry show {state} "
            f"tells the digests of its kernels; ./mill rollback --channel {used[0][0].name} takes back all of them"
        )
    repository.revoke(Revocations({full: reason}))
    tables: dict[str, tuple[str, ...]] = {}
    for channel, table in sorted(used, key=str):
        tables[str(channel)] = (*tables.get(str(channel), ()), table)
    return Revoked(full, reason, kind, tables)


Use = tuple[Channel, str]
"""A channel that is current, and a table in it; of a state, its channel and number."""


def _known(object_store: ObjectStore, repository: Repository) -> dict[str, tuple[str, tuple[Use, ...]]]:
    """Every digest that a state which is kept refers to: what it is, and where it is current."""
    uses: dict[str, list[Use]] = {}
    known: dict[str, tuple[str, tuple[Use, ...]]] = {}
    for channel, entry in repository.live().states.items():
        for state in repository.history_from(entry, channel):
            _add(known, state.sha256, STATE, [(channel, str(state.index.number))])
            for name, manifest in state.index.tables.items():
                found = uses.setdefault(manifest, [])
                if state is entry:
                    found.append((channel, name))
    for manifest, found in uses.items():
        _add(known, manifest, "manifest", found)
        try:
            table = read_manifest(object_store, manifest).table
        except ObjectNotFoundError:
            continue
        for range_ in table.entries:
            _add(known, range_.object.sha256, "object", found)
            _add(known, range_.candidate, "candidate", found)
    return known


def _add(known: dict[str, tuple[str, tuple[Use, ...]]], digest: str, kind: str, uses: list[Use]) -> None:
    before = known.get(digest, (kind, ()))[1]
    known[digest] = (kind, tuple(dict.fromkeys([*before, *uses])))


def _completed(prefix: str, known: dict[str, tuple[str, tuple[Use, ...]]]) -> str:
    found = [digest for digest in known if digest.startswith(prefix)]
    if len(found) != 1:
        raise RevocationError(
            f"{prefix}: {len(found)} digests that the registry refers to begin so; expected one: give more digits, or "
            "all 64 for one that it no longer refers to"
        )
    return found[0]
