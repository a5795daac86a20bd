"""Rollback: a higher version that says what an earlier one said, so that no host ever goes back in versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gristmill import revocation
from gristmill.cohort import STABLE
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry import attestation
from registry.entry import Edit, Entry
from registry.errors import RollbackTargetError, SupersededError
from registry.keys import Keyring
from registry.publication import Published, published
from registry.repository import Repository


def history(object_store: ObjectStore, keyring: Keyring, channel: Channel) -> list[Entry]:
    """The channel's states, newest first."""
    return list(Repository(object_store, keyring).history(channel))


def roll_back(
    object_store: ObjectStore,
    keyring: Keyring,
    channel: Channel,
    to: int | None = None,
    judged: str = "",
    reason: str = "",
) -> Published:
    """Publishes the tables of an earlier state again, but for those that are revoked.

    Args:
        to: number of that state, 0 for none at all. By default the one before what is served now: a second
            rollback goes one state further back, not forth again. What others publish meanwhile is undone too.
        judged: SHA-256 of the state that is to be undone; empty: whichever is current.
        reason: why, for the log.

    Raises:
        RollbackTargetError: there is no such state.
        ApprovalError: that state holds a table that hosts no longer take.
        SupersededError: what was judged is no longer current.
    """
    repository = Repository(object_store, keyring)
    if repository.current(channel) is None:
        raise RollbackTargetError(f"{channel}: nothing was published there, so nothing can be rolled back")
    target = _target(repository.history(channel), channel, to)
    revoked = repository.revoked()
    earlier = target.index.tables if target else {}
    tables = revocation.not_revoked(earlier, revoked)
    number = target.index.number if target else 0
    attestation.require_attested(object_store, repository.policy(), channel.name, tables)

    def edit(current: Entry | None) -> Edit | None:
        if current is not None and judged not in ("", current.sha256):
            raise SupersededError(f"{channel}: state {current.index.number} has taken the place of what was judged")
        if current is not None and tables == current.index.tables:
            return None
        return Edit(tables, f"rollback to {number}" + (f": {reason}" if reason else ""), restores=number)

    return published(channel, repository.commit(channel, edit), revocation.told(earlier, revoked))


def take_out(
    object_store: ObjectStore, keyring: Keyring, channel: Channel, manifests: Collection[str], reason: str
) -> Published:
    """Canary without some manifests, whichever state it serves now: in their place what stable serves, or nothing.

    Others that were promoted meanwhile stay. Safe to repeat.

    Args:
        reason: why, for the log.

    Raises:
        RollbackTargetError: nothing was ever published there.
    """
    repository = Repository(object_store, keyring)

    def edit(current: Entry | None) -> Edit | None:
        if current is None:
            raise RollbackTargetError(f"{channel}: nothing was published there, so nothing can be taken out")
        gone = [name for name, digest in current.index.tables.items() if digest in manifests]
        if not gone:
            return None
        stable, revoked = repository.current(replace(channel, name=STABLE)), repository.revoked()
        instead = {name: stable.index.tables[name] for name in gone if stable and name in stable.index.tables}
        tables = {name: digest for name, digest in current.index.tables.items() if name not in gone} | {
            name: digest for name, digest in instead.items() if digest not in manifests
        }
        tables = revocation.not_revoked(tables, revoked)
        attestation.require_attested(object_store, repository.policy(), channel.name, tables)
        return Edit(tables, reason)

    return published(channel, repository.commit(channel, edit))


def _target(states: Iterator[Entry], channel: Channel, to: int | None) -> Entry | None:
    """The state to restore; None is the one before the first."""
    wanted: int | None = None
    """Number of the state that is served in effect, once it is known."""
    for state in states:
        number = state.index.number
        if to is not None:
            if number == to:
                return state
            continue
        if wanted == 0:
            break
        if wanted is None or number == wanted:
            wanted = number if state.index.restores is None else state.index.restores
            if wanted == number:
                before = next(states, None)
                if before is None and state.index.previous is not None:
                    break
                return before
    if to is None and wanted == 0:
        raise RollbackTargetError(f"{channel}: already rolled back to before the first publication")
    if to:
        raise RollbackTargetError(f"{channel}: there is no state {to}; `./mill registry log` lists them")
    if to is None:
        raise RollbackTargetError(
            f"{channel}: the state to go back to was removed, being old (./mill registry gc); name one of those that "
            "`./mill registry log` lists with --to, or 0 for no kernels at all"
        )
    return None
