"""Attestations: an attestor's signed in-toto statement about one manifest, in the store beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gristmill import limits, records, trust
from gristmill.errors import ObjectExistsError, ObjectNotFoundError, TrustError
from gristmill.store import ObjectStore, StoredObject
from gristmill.trust import AttestationPolicy
from registry.errors import ApprovalError, KeyFileError
from registry.keys import Keyring


def require_counting(keyring: Keyring, policy: AttestationPolicy, attestor: str) -> None:
    """Refuses to sign with an attestor's key that was replaced; where the policy knows no such attestor, any will do.

    Raises:
        KeyFileError: hosts would not believe what it signs.
    """
    texts = {trust.key_text(public) for public in keyring.public[attestor]}
    if attestor in policy.keys and not texts & set(policy.keys[attestor]):
        raise KeyFileError(
            f"keys folder {keyring.folder}: its {attestor} key is not one that the registry's policy names now; bring "
            "the key that replaced it here"
        )


def attest(
    object_store: ObjectStore,
    keyring: Keyring,
    attestor: str,
    manifest_sha256: str,
    statement: bytes,
    anew: bool = False,
) -> None:
    """Signs a statement, unless the attestor's key has signed one about this manifest before.

    One by a key that was replaced since gives way: once that key was revoked, it is worth nothing.

    Args:
        anew: another statement about this manifest gives way as well.

    Raises:
        KeyFileError: the attestor's key is not here.
        RecordTooLargeError: hosts would not read it.
        PreconditionFailedError: somebody else attested at this moment; do it again.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(statement, trust.PAYLOAD_TYPE, {})
    for signer in keyring.signers(attestor):
        envelope.sign(signer)
    content = json.dumps(envelope.to_dict(), sort_keys=True).encode()
    limits.checked(
        content, limits.MAX_ATTESTATION_BYTES, f"attestation of {records.short(manifest_sha256)} by {attestor}"
    )
    key = trust.attestation_key(manifest_sha256, attestor)
    try:
        object_store.put_new(key, content)
    except ObjectExistsError:
        found = object_store.get(key, max_bytes=limits.MAX_ATTESTATION_BYTES)
        assert isinstance(found, StoredObject), "no etag was given"
        keys = [trust.key_text(public) for public in keyring.public[attestor]]
        try:
            trust.verify_attestation(found.content, manifest_sha256, attestor, keys)
            stale = anew and Envelope.from_dict(json.loads(found.content)).payload != statement
        except TrustError:
            stale = True
        if stale:
            object_store.replace_if(key, content, found.etag)


def is_attested(object_store: ObjectStore, policy: AttestationPolicy, attestor: str, manifest_sha256: str) -> bool:
    """Whether hosts with this policy find a valid attestation."""
    key = trust.attestation_key(manifest_sha256, attestor)
    try:
        found = object_store.get(key, max_bytes=limits.MAX_ATTESTATION_BYTES)
        assert isinstance(found, StoredObject), "no etag was given"
        trust.verify_attestation(found.content, manifest_sha256, attestor, policy.keys.get(attestor, ()))
    except (ObjectNotFoundError, TrustError):
        return False
    return True


def unattested(
    object_store: ObjectStore, policy: AttestationPolicy, channel_name: str, tables: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Which tables hosts of a channel would refuse: name to the attestors that are missing."""
    missing = {
        name: tuple(
            attestor
            for attestor in policy.required[channel_name]
            if not is_attested(object_store, policy, attestor, digest)
        )
        for name, digest in sorted(tables.items())
    }
    return {name: attestors for name, attestors in missing.items() if attestors}


def require_attested(
    object_store: ObjectStore, policy: AttestationPolicy, channel_name: str, tables: Mapping[str, str]
) -> None:
    """Refuses tables that hosts of a channel would refuse.

    Raises:
        ApprovalError: with the first of them and whose word is missing.
    """
    for name, attestors in unattested(object_store, policy, channel_name, tables).items():
        raise ApprovalError(
            f"{channel_name}: {name} has no valid attestation by {' and '.join(attestors)}, and hosts would refuse it; "
            f"approve it with ./mill approve {name}, or promote it again if the judge's is missing"
        )
