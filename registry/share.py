"""The share of a fleet that canaries are tried upon: signed by the offline targets role, followed by `auto` hosts.

It bounds what the holders of the online keys can do, so that raising it is a ceremony of its own.
"""

from __future__ import annotations

from dataclasses import replace

from tuf.api.metadata import Targets

from gristmill import cohort, records, store, trust
from gristmill.cohort import ALL_PERMILLE, CohortPolicy
from gristmill.errors import PreconditionFailedError
from gristmill.store import ObjectStore
from registry import genesis
from registry.errors import ConflictError, KeyFileError, ShareError
from registry.keys import Keyring
from registry.metadata_reader import MetadataReader, State
from registry.metadata_writer import MetadataWriter, refer
from registry.root_chain import read_chain

MAX_ATTEMPTS = 20


def read_shares(object_store: ObjectStore, keyring: Keyring) -> CohortPolicy:
    """The shares that hosts see now; none of any fleet before the first was set."""
    return _shares(object_store, _read(object_store, keyring).targets.signed)


def set_share(object_store: ObjectStore, keyring: Keyring, fleet: str, share_permille: int) -> CohortPolicy:
    """Lets canaries be tried on so many thousandths of a fleet's `auto` hosts. Hosts follow at their next poll.

    Raises:
        ShareError: it is no share.
        KeyFileError: the targets key is not here, or was replaced.
        ConflictError: others were faster, many times.
    """
    if not 0 <= share_permille <= ALL_PERMILLE:
        raise ShareError(f"share of fleet {fleet}: {share_permille} thousandths, expected 0 to {ALL_PERMILLE}")
    writer = MetadataWriter(object_store, keyring)
    for _ in range(MAX_ATTEMPTS):
        state = _read(object_store, keyring)
        _require_trusted(object_store, keyring, state)
        before = _shares(object_store, state.targets.signed)
        after = replace(before, permille={**before.permille, fleet: share_permille})
        if after == before:
            return before
        writer.put_target(state.targets, cohort.POLICY_PATH, records.canonical_json(after))
        state.targets.signed.version += 1
        writer.put_bumping(state.targets, "targets")
        refer(state.snapshot, state.targets, "targets")
        try:
            writer.publish_snapshot(state)
        except PreconditionFailedError:
            continue
        return after
    raise ConflictError(f"{object_store.url}: others published {MAX_ATTEMPTS} times meanwhile; try again later")


def _read(object_store: ObjectStore, keyring: Keyring) -> State:
    first = genesis.own_root(keyring, MetadataWriter(object_store, keyring))
    return MetadataReader(object_store).read(read_chain(object_store, first)[-1])


def _require_trusted(object_store: ObjectStore, keyring: Keyring, state: State) -> None:
    trusted = state.root.get_delegated_role("targets").keyids
    if not all(key.keyid in trusted for key in keyring.public["targets"]):
        raise KeyFileError(
            f"keys folder {keyring.folder}: its targets key is not the one that {object_store.url} trusts now; bring "
            "the key that replaced it here"
        )


def _shares(object_store: ObjectStore, targets: Targets) -> CohortPolicy:
    target = targets.targets.get(cohort.POLICY_PATH)
    if target is None:
        return CohortPolicy({})
    key = trust.target_key(target.path, target.hashes["sha256"])
    content = store.read(object_store, key, cohort.MAX_POLICY_BYTES)
    target.verify_length_and_hashes(content)
    return cohort.parse_policy(content)
