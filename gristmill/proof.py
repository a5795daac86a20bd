"""Proofs: one state of a channel, verified from the root that a host was installed with down to the index.

Works on the cache's bytes alone, whoever put them there: after a poll, at a start without a network, and for engines
that follow a cache which another process fills. Loads TUF's libraries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from securesystemslib.exceptions import StorageError
from tuf.api import exceptions as tuf_errors
from tuf.api.metadata import Metadata, Root, Targets, Timestamp

from gristmill import durable_file, records, revocation, trust
from gristmill.cache import Cache, GenerationRecord
from gristmill.errors import GristmillError, MalformedRecordError, RollbackError, StaleRegistryError, TrustError
from gristmill.revocation import Revocations
from gristmill.trust import AttestationPolicy, Channel, Index


@dataclass(frozen=True)
class Proof:
    """One state of a channel, verified down to the digests of its manifests."""

    record: GenerationRecord
    index: Index
    policy: AttestationPolicy
    revoked: Revocations
    """What of it may not be loaded."""
    seen: dict[str, int]
    """What the cache's high-water mark is compared with: the root's version and the index's number."""


class Prover:
    """Verifies what a cache holds of one channel. Writes nothing."""

    def __init__(self, cache: Cache, channel: Channel, root_bytes: bytes) -> None:
        self._cache = cache
        self._channel = channel
        self._root = root_bytes

    def prove(self, record: GenerationRecord) -> Proof:
        """Verifies a record's chain.

        Raises:
            TrustError: something in it is missing, damaged, or not what was signed.
        """
        channel = self._channel
        with explained(str(self._cache.folder)):
            root = self.trusted_root()
            targets = Metadata[Targets].from_bytes(self._cached(record.targets_sha256, "targets metadata"))
            role = Metadata[Targets].from_bytes(self._cached(record.role_sha256, "channel metadata"))
            root.verify_delegate("targets", targets.signed_bytes, targets.signatures)
            targets.signed.verify_delegate(channel.name, role.signed_bytes, role.signatures)
            path = channel.index_path
            roles = targets.signed.delegations.roles if targets.signed.delegations else None
            if not roles or not roles[channel.name].is_delegated_path(path):
                raise TrustError(f"{channel}: its role may not sign {path}")
            index = self._listed(role.signed, path, record.index_sha256)
            policy = self._listed(targets.signed, trust.POLICY_PATH, record.policy_sha256)
        parsed_policy = _parse_policy(policy)
        parsed_index = trust.parse_index(index, channel)
        if parsed_index.number > role.signed.version:
            raise TrustError(f"{channel}: index {parsed_index.number} claims to be newer than its signature")
        revoked = self._cache.revoked()
        if record.revoked_sha256:
            listed = self._cached(record.revoked_sha256, "the list of revoked digests")
            revoked = revocation.joined(revoked, revocation.parse(listed))
        return Proof(record, parsed_index, parsed_policy, revoked, {"root": root.version, path: parsed_index.number})

    def prove_by_newest_policy(self, record: GenerationRecord) -> Proof:
        """As `prove`, but with the newest policy that was ever seen, so that a revoked attestor's word counts no more.

        It is the one in the newest targets metadata that the TUF client kept, or the record's own if that is no policy.
        """
        proof = self.prove(record)
        with contextlib.suppress(tuf_errors.RepositoryError, StorageError, ValueError, KeyError, TrustError, OSError):
            metadata = Metadata[Targets].from_bytes(durable_file.read(self._cache.tuf / "targets.json"))
            self.trusted_root().verify_delegate("targets", metadata.signed_bytes, metadata.signatures)
            newest = metadata.signed.targets[trust.POLICY_PATH].hashes["sha256"]
            content = self._cache.find(trust.checked_digest(newest))
            if content is not None:
                return replace(proof, policy=_parse_policy(content))
        return proof

    def trusted_root(self) -> Root:
        """The installed root, or the newest one that it leads to through roots signed by both old and new keys."""
        root = Metadata[Root].from_bytes(self._root).signed
        while (newer := self._next_root(root)) is not None:
            root = newer
        return root

    def expires(self) -> datetime:
        """Until when the newest timestamp that the TUF client kept says what is current.

        Raises:
            TrustError: it is missing, damaged, or signed by others than the root names.
        """
        with explained(str(self._cache.folder)):
            try:
                content = durable_file.read(self._cache.tuf / "timestamp.json")
            except OSError as error:
                raise TrustError(f"{self._cache.folder}: timestamp.json is missing ({error.strerror})") from None
            metadata = Metadata[Timestamp].from_bytes(content)
            self.trusted_root().verify_delegate("timestamp", metadata.signed_bytes, metadata.signatures)
        return metadata.signed.expires

    def _next_root(self, root: Root) -> Root | None:
        path = self._cache.tuf / "root_history" / f"{root.version + 1}.root.json"
        try:
            newer = Metadata[Root].from_bytes(durable_file.read(path))
            root.verify_delegate("root", newer.signed_bytes, newer.signatures)
            newer.signed.verify_delegate("root", newer.signed_bytes, newer.signatures)
        except (tuf_errors.RepositoryError, StorageError, ValueError, OSError):
            return None
        sound = newer.signed.version == root.version + 1 and role_with_one_key_twice(newer.signed) is None
        return newer.signed if sound else None

    def _listed(self, signed: Targets, path: str, sha256: str) -> bytes:
        content = self._cached(sha256, path)
        if path not in signed.targets:
            raise TrustError(f"{self._cache.folder}: {path} is not signed by its role")
        signed.targets[path].verify_length_and_hashes(content)
        return content

    def _cached(self, sha256: str, what: str) -> bytes:
        content = self._cache.find(sha256)
        if content is None:
            raise TrustError(f"{self._cache.folder}: {what} is missing or damaged; poll the registry to mend it")
        return content


def role_with_one_key_twice(signed: Root | Targets) -> str | None:
    """The first role that lists the same public key under two ids."""
    delegations = signed if isinstance(signed, Root) else signed.delegations
    if delegations is None or delegations.roles is None:
        return None
    for name, role in delegations.roles.items():
        keys = [str(delegations.keys[i].keyval.get("public")) for i in role.keyids if i in delegations.keys]
        if len({"".join(key.split()) for key in keys}) < len(keys):
            return name
    return None


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Turns the errors of the TUF libraries into ours."""
    try:
        yield
    except tuf_errors.ExpiredMetadataError as error:
        raise StaleRegistryError(
            f"{where}: {error}; publish or renew the registry, and check this host's clock"
        ) from error
    except tuf_errors.BadVersionNumberError as error:
        raise RollbackError(f"{where}: an older state than one already seen is offered ({error})") from error
    except (tuf_errors.RepositoryError, tuf_errors.DownloadError, StorageError, ValueError, KeyError) as error:
        if isinstance(error.__cause__, GristmillError):
            raise error.__cause__ from None
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        raise TrustError(f"{where}: the signed metadata does not hold: {error}{cause}") from error


def _parse_policy(content: bytes) -> AttestationPolicy:
    try:
        policy = records.parse(AttestationPolicy, content, "attestation policy")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    keys = ["".join(key.split()) for listed in policy.keys.values() for key in listed]
    if len(set(keys)) < len(keys):
        raise TrustError("attestation policy: it lists one key twice, so that one thief could speak for two attestors")
    return policy
