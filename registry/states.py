"""States of channels as people name them, the way that git names commits, and whose key signed each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securesystemslib.exceptions import StorageError, UnverifiedSignatureError
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Targets

from gristmill import limits, records, store
from gristmill.errors import ObjectNotFoundError
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry.entry import Entry
from registry.errors import StateNameError
from registry.keys import Keyring
from registry.metadata_reader import metadata_key

SHORTEST = 4
"""Digits of a state that are understood, if only one begins so."""
FORMS = (
    "a channel (canary), a number in it (canary:12), some digits of a state (3f2a91), each with ~N for N states earlier"
)
_NAME = re.compile(r"(?P<base>[^:~]+)(?::(?P<number>\d{1,18}))?(?P<back>~(?P<steps>\d{0,9}))?")


@dataclass(frozen=True)
class Signature:
    """Whose key made a state current."""

    key_id: str
    trusted: bool
    """Whether it is in this key set. If not, it was replaced since, and its signature was not checked."""


@dataclass(frozen=True)
class Position:
    """A state in the history of a channel."""

    channel_name: str
    index: int
    """0 is the newest."""


def find_state(name: str, histories: Mapping[str, Sequence[Entry]]) -> Position:
    """What a name means, given the states of each channel, newest first.

    Raises:
        StateNameError: nothing, or more than one state; or it lies before the oldest that is kept.
    """
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        raise StateNameError(f"state {name!r}: expected {FORMS}")
    start = _start(name, match["base"], match["number"], histories)
    steps = int(match["steps"] or 1) if match["back"] else 0
    states = histories[start.channel_name]
    if start.index + steps >= len(states):
        removed = "; older ones were removed (./mill registry gc)" if states[-1].index.previous else ""
        raise StateNameError(f"state {name!r}: {start.channel_name} has {len(states)} states{removed}")
    return Position(start.channel_name, start.index + steps)


def signature_of(object_store: ObjectStore, keyring: Keyring, channel: Channel, entry: Entry) -> Signature | None:
    """Whose key signed the metadata that made a state current; None if that is gone, or is about something else."""
    try:
        content = store.read(object_store, metadata_key(channel.name, entry.index.number), limits.MAX_METADATA_BYTES)
        metadata = Metadata[Targets].from_bytes(content)
    except (ObjectNotFoundError, RepositoryError, StorageError, ValueError):
        return None
    if not isinstance(metadata.signed, Targets) or not metadata.signatures:
        return None
    target = metadata.signed.targets.get(channel.index_path)
    if target is None or target.hashes.get("sha256") != entry.sha256:
        return None
    ours = {key.keyid: key for key in keyring.public[channel.name]}
    for key_id, signature in metadata.signatures.items():
        if key_id not in ours:
            continue
        try:
            ours[key_id].verify_signature(signature, metadata.signed_bytes)
        except UnverifiedSignatureError:
            return None
        return Signature(key_id, True)
    return Signature(next(iter(metadata.signatures)), False)


def _start(name: str, base: str, number: str | None, histories: Mapping[str, Sequence[Entry]]) -> Position:
    if base in histories:
        states = histories[base]
        if not states:
            raise StateNameError(f"state {name!r}: nothing was published to {base} yet")
        if number is None:
            return Position(base, 0)
        for index, state in enumerate(states):
            if state.index.number == int(number):
                return Position(base, index)
        raise StateNameError(f"state {name!r}: {base} has no state {number}; ./mill registry log {base} lists them")
    if number is not None or len(base) < SHORTEST or set(base) - set("0123456789abcdef"):
        raise StateNameError(f"state {name!r}: expected {FORMS}")
    found = [
        (Position(channel, index), state.sha256)
        for channel, states in histories.items()
        for index, state in enumerate(states)
        if state.sha256.startswith(base)
    ]
    if len(found) > 1:
        several = ", ".join(sha256[: max(records.SHOWN_DIGITS, len(base) + 4)] for _, sha256 in found)
        raise StateNameError(f"state {name!r}: {len(found)} states begin like this ({several}); give more digits")
    if not found:
        raise StateNameError(
            f"state {name!r}: no state begins like this; ./mill registry log lists them, and show their kernels"
        )
    return found[0][0]
