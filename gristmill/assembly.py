"""Assembling a generation: from a proven index to verified tables and objects, fetched where the cache lacks them.

Every byte is hashed each time it is taken out of the cache. What is remembered from one assembly to the next is only
what was concluded from bytes of a known digest: that an envelope holds, and what a manifest says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gristmill import limits, records, trust
from gristmill.cache import Cache
from gristmill.errors import ObjectNotFoundError, TrustError
from gristmill.generation import Generation
from gristmill.kernel_table import FileRef, KernelTable
from gristmill.proof import Proof
from gristmill.revocation import not_revoked, remainder
from gristmill.store_reader import StoreReader
from gristmill.trust import AttestationPolicy, Channel

FETCHES_AT_ONCE = 8

T = TypeVar("T")
Manifest = tuple[str, str]
"""A table's name and its manifest's digest."""
Holding = tuple[str, str, str, tuple[str, ...]]
"""That an envelope of this digest attests this manifest, by this attestor, who has these keys."""


class Assembler:
    """Makes generations of one channel from one cache. One thread at a time may use it."""

    def __init__(self, cache: Cache, channel: Channel) -> None:
        self._cache = cache
        self._channel = channel
        self._tables: dict[Manifest, KernelTable] = {}
        self._holding: set[Holding] = set()

    def assemble(
        self,
        proof: Proof,
        names: Collection[str] | None,
        reader: StoreReader | None,
    ) -> Generation:
        """The generation of a proven state, without what is revoked.

        Args:
            names: of the tables that this host can use, and no others are looked at; None: all.
            reader: fetches what the cache lacks, which is then kept in it; None: nothing is fetched.

        Raises:
            TrustError: an attestation is missing or does not hold, or a file is not what was signed.
            StoreError, CacheError: as the store and the cache do.
        """
        index, policy, revoked = proof.index, proof.policy, proof.revoked
        usable = not_revoked(index.tables, revoked)
        manifests = sorted(item for item in usable.items() if names is None or item[0] in names)
        self._forget_all_but(manifests)
        required = policy.required.get(self._channel.name, ())
        if not required:
            raise TrustError(f"{self._channel}: the policy does not say whose attestation it needs")

        def table(manifest: Manifest) -> KernelTable:
            for attestor in required:
                self._check_attestation(policy, manifest[1], attestor, reader)
            return self._table(manifest, reader)

        if reader is not None:
            _at_once(table, [manifest for manifest in manifests if not self._is_kept(manifest[1], required)])
        tables = tuple(remainder(table(manifest), revoked) for manifest in manifests)
        files = dict.fromkeys(file for one in tables for file in trust.object_files(one))
        if reader is not None:
            _at_once(
                lambda file: self._object(file, reader),
                [file for file in files if not self._cache.blob_path(file.sha256).exists()],
            )
        objects = {file.sha256: self._object(file, reader) for file in files}
        return Generation(index.number, self._channel.name, self._channel.hardware, tables, objects)

    def _forget_all_but(self, manifests: Sequence[Manifest]) -> None:
        """What was concluded of other manifests, so that memory does not grow with every promotion."""
        digests = {digest for _, digest in manifests}
        self._tables = {manifest: table for manifest, table in self._tables.items() if manifest[1] in digests}
        self._holding = {held for held in self._holding if held[1] in digests}

    def _is_kept(self, manifest_sha256: str, attestors: Sequence[str]) -> bool:
        """Whether the cache has its files, sound or not."""
        envelopes = (self._cache.find_attestation(manifest_sha256, attestor) for attestor in attestors)
        return self._cache.blob_path(manifest_sha256).exists() and None not in envelopes

    def _table(self, manifest: Manifest, reader: StoreReader | None) -> KernelTable:
        name, digest = manifest
        content = self._blob(digest, limits.MAX_MANIFEST_BYTES, f"manifest of {name}", reader)
        if manifest not in self._tables:
            self._tables[manifest] = trust.parse_manifest(content, name, self._channel.hardware).table
        return self._tables[manifest]

    def _check_attestation(
        self, policy: AttestationPolicy, digest: str, attestor: str, reader: StoreReader | None
    ) -> None:
        keys = policy.keys.get(attestor, ())
        cached = self._cache.find_attestation(digest, attestor)
        if cached is not None:
            try:
                self._require(cached, digest, attestor, keys)
                return
            except TrustError:
                if reader is None:
                    raise
        if reader is None:
            raise TrustError(
                f"{self._cache.folder}: the attestation of {records.short(digest)} by {attestor} is missing"
            )
        try:
            envelope = reader.read(trust.attestation_key(digest, attestor), limits.MAX_ATTESTATION_BYTES)
        except ObjectNotFoundError:
            raise TrustError(
                f"manifest {records.short(digest)} was never attested by {attestor}; it is not used"
            ) from None
        self._require(envelope, digest, attestor, keys)
        self._cache.add_attestation(digest, attestor, envelope)

    def _require(self, envelope: bytes, digest: str, attestor: str, keys: tuple[str, ...]) -> None:
        held = (records.sha256_hex(envelope), digest, attestor, keys)
        if held not in self._holding:
            trust.verify_attestation(envelope, digest, attestor, keys)
            self._holding.add(held)

    def _object(self, file: FileRef, reader: StoreReader | None) -> Path:
        content = self._blob(file.sha256, file.size_bytes, file.path, reader)
        if len(content) != file.size_bytes:
            raise TrustError(f"{file.path}: {len(content)} bytes, but its manifest says {file.size_bytes}")
        return self._cache.blob_path(file.sha256)

    def _blob(self, sha256: str, max_bytes: int, what: str, reader: StoreReader | None) -> bytes:
        content = self._cache.find(sha256)
        if content is not None:
            return content
        if reader is None:
            raise TrustError(f"{self._cache.folder}: {what} is missing or damaged; poll the registry to mend it")
        content = reader.read(trust.blob_key(sha256), max_bytes)
        if records.sha256_hex(content) != sha256:
            raise TrustError(f"{reader.url}: {what} was tampered with: its content is not {records.short(sha256)}")
        self._cache.add(content)
        return content


def _at_once(work: Callable[[T], object], items: Sequence[T]) -> None:
    """Does it for several items at a time; raises what the first of them in order raises."""
    if len(items) < 2:
        return
    with ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="gristmill-fetch") as pool:
        for _ in pool.map(work, items):
            pass
