"""The share of a fleet that canaries are tried upon: signed by the offline targets role, followed by `auto` hosts.

It bounds what the holders of the online keys can do, so that raising it is a ceremony of its own.
"""

from __future__ import annotations

from dataclasses import replace

from gristmill import cohort, records
from gristmill.cohort import ALL_PERMILLE, CohortPolicy
from gristmill.errors import PreconditionFailedError
from gristmill.store import ObjectStore
from registry.errors import ConflictError, ShareError
from registry.keys import Keyring
from registry.metadata_reader import MetadataReader
from registry.metadata_writer import MetadataWriter
from registry.repository import Repository

MAX_ATTEMPTS = 20


def set_share(object_store: ObjectStore, keyring: Keyring, fleet: str, share_permille: int) -> CohortPolicy:
    """Lets canaries be tried on so many thousandths of a fleet's `auto` hosts. Hosts follow at their next poll.

    Raises:
        ShareError: it is no share.
        KeyFileError: the targets key, or one that makes changes current, is not here or was replaced.
        ConflictError: others were faster, many times.
    """
    if not 0 <= share_permille <= ALL_PERMILLE:
        raise ShareError(f"share of fleet {fleet}: {share_permille} thousandths, expected 0 to {ALL_PERMILLE}")
    repository = Repository(object_store, keyring)
    reader, writer = MetadataReader(object_store), MetadataWriter(object_store, keyring)
    for _ in range(MAX_ATTEMPTS):
        state = repository.read()
        writer.require_trusted(state, "targets")
        before = reader.shares(state)
        after = replace(before, permille={**before.permille, fleet: share_permille})
        if after == before:
            return before
        content = records.canonical_json(after)
        try:
            writer.publish_target(state, state.targets, "targets", cohort.POLICY_PATH, content)
        except PreconditionFailedError:
            continue
        return after
    raise ConflictError(f"{object_store.url}: others published {MAX_ATTEMPTS} times meanwhile; try again later")
