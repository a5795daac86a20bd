"""The chain of roots: from the one that hosts were given to the one that says today whose signatures count.

Each root is signed by a threshold of the keys of the root before and of its own; that is what lets hosts follow.
"""

from __future__ import annotations

from securesystemslib.exceptions import StorageError
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root

from gristmill import limits, store
from gristmill.errors import ObjectNotFoundError
from gristmill.store import ObjectStore
from registry.errors import RegistryStateError


def read_chain(object_store: ObjectStore, first: bytes) -> tuple[Root, ...]:
    """All roots, oldest first; `first` is trusted as it is.

    Raises:
        RegistryStateError: the store holds a next root that the one before has not signed.
    """
    chain = [Metadata[Root].from_bytes(first).signed]
    while (root := _next(object_store, chain[-1])) is not None:
        chain.append(root)
    return tuple(chain)


def root_key(version: int) -> str:
    """Where the store keeps a root."""
    return f"tuf/{version}.root.json"


def check_succession(old: Root, new: Metadata[Root]) -> None:
    """Whether hosts that trust `old` will follow to `new`.

    Raises:
        RepositoryError: too few of the old keys, or of the new ones, have signed it.
    """
    for root in (old, new.signed):
        root.verify_delegate("root", new.signed_bytes, new.signatures)


def _next(object_store: ObjectStore, old: Root) -> Root | None:
    key = root_key(old.version + 1)
    try:
        content = store.read(object_store, key, limits.MAX_ROOT_BYTES)
    except ObjectNotFoundError:
        return None
    try:
        new = Metadata[Root].from_bytes(content)
        check_succession(old, new)
    except (RepositoryError, StorageError, ValueError) as error:
        raise RegistryStateError(f"{object_store.url}: {key} is not what our root keys signed ({error})") from error
    if new.signed.version != old.version + 1:
        raise RegistryStateError(f"{object_store.url}: {key} claims to be version {new.signed.version}")
    return new.signed
