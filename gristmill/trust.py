"""What a host demands before it believes the registry: the index of a channel, the policy, and attestations.

TUF metadata (`tuf.api`) says which index is current. The index names one manifest per table by digest. The policy,
signed by the offline targets role, says whose attestation a channel's manifests must carry: so that the keys which move
channels can't introduce code that no judge has seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from gristmill import limits, records
from gristmill.errors import MalformedRecordError, TrustError
from gristmill.kernel_table import Artifact, FileRef, KernelTable
from gristmill.store import checked_key

if TYPE_CHECKING:
    from securesystemslib.signer import Key

CHANNELS = ("canary", "stable")
"""A table comes to some hosts of a fleet first, and then to all."""
POLICY_PATH = "policy/attestation.json"
"""TUF target of the `AttestationPolicy`."""
JUDGE, APPROVER = "judge", "approver"
ATTESTORS = (JUDGE, APPROVER)
"""The judge says that a manifest was measured; the approver, a person or a policy, that stable may serve it."""
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
APPROVAL_TYPE = "https://slsa.dev/verification_summary/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_SHA256 = re.compile("[0-9a-f]{64}")
_ATTESTOR = re.compile(r"[a-z][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Channel:
    """A named pointer in the registry: which artifacts the hosts of one kind use."""

    name: str
    """`canary` or `stable`: the TUF role that signs it."""
    fleet: str
    model: str
    hardware: str

    def __post_init__(self) -> None:
        for part in (self.name, self.fleet, self.model, self.hardware):
            if "/" in checked_key(part):
                raise TrustError(f"channel {self}: {part!r} holds a slash; use one word per part")

    def __str__(self) -> str:
        return f"{self.name}/{self.fleet}/{self.model} on {self.hardware}"

    @property
    def index_path(self) -> str:
        """TUF target path of the channel's `Index`."""
        return f"{self.name}/{self.fleet}/{self.model}/index.{self.hardware}.json"


@dataclass(frozen=True)
class Index:
    """The state of one channel: everything a host may load, by digest."""

    channel: str
    fleet: str
    model: str
    hardware: str
    number: int
    """Version of the channel's role that introduced it: grows with every promotion and rollback."""
    tables: dict[str, str]
    """`KernelTable.name` to the SHA-256 of the manifest."""
    previous: str | None
    """SHA-256 of the index before."""
    restores: int | None
    """After a rollback, the number of the index whose tables these are (0: before the first)."""
    created_utc: str
    reason: str
    schema_version: int = 1


@dataclass(frozen=True)
class AttestationPolicy:
    """Whose word counts, and for what."""

    keys: dict[str, tuple[str, ...]]
    """Attestor to its public keys, as `key_text` writes them. More than one while old attestations still count."""
    required: dict[str, tuple[str, ...]]
    """Channel name to the attestors that must have signed every manifest in it."""
    schema_version: int = 1


def blob_key(sha256: str) -> str:
    """Where the store keeps a content-addressed object."""
    return f"blobs/sha256/{checked_digest(sha256)[:2]}/{sha256}"


def attestation_key(manifest_sha256: str, attestor: str) -> str:
    """Where the store keeps an attestor's envelope for a manifest.

    Raises:
        TrustError: the digest or the attestor's name could be taken for a path.
    """
    if not _ATTESTOR.fullmatch(attestor):
        raise TrustError(f"attestor {attestor[:80]!r}: expected a name of lower-case letters, digits and hyphens")
    return f"attestations/sha256/{checked_digest(manifest_sha256)}.{attestor}.dsse"


def target_key(path: str, sha256: str) -> str:
    """Where the store keeps a TUF target: its digest prefixes the file name (consistent snapshots)."""
    folder, _, name = path.rpartition("/")
    return f"targets/{folder}/{checked_digest(sha256)}.{name}"


def checked_digest(sha256: str) -> str:
    """Returns a digest that is one, so that it can't be a path.

    Raises:
        TrustError: not 64 lower-case hexadecimal digits.
    """
    if not _SHA256.fullmatch(sha256):
        raise TrustError(f"found {sha256[:80]!r}, expected a SHA-256 digest in lower-case hexadecimal")
    return sha256


def parse_index(content: bytes, channel: Channel) -> Index:
    """Decodes a channel's index whose digest has been verified.

    Raises:
        TrustError: malformed, or signed for another channel, fleet, model or hardware.
    """
    try:
        index = records.parse(Index, content, f"index of {channel}")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    if Channel(index.channel, index.fleet, index.model, index.hardware) != channel:
        raise TrustError(f"index of {channel}: it was made for {index.channel}/{index.fleet}/{index.model}")
    for digest in index.tables.values():
        checked_digest(digest)
    return index


def parse_manifest(content: bytes, name: str, hardware: str) -> Artifact:
    """Decodes a manifest whose digest has been verified, and checks that it is safe to use as what it claims.

    Raises:
        TrustError: malformed, another table's, another hardware's, or a file path that leaves the artifact.
    """
    try:
        artifact = records.parse(Artifact, content, f"manifest of {name}")
    except MalformedRecordError as error:
        raise TrustError(str(error)) from None
    check_artifact(artifact, name, hardware)
    return artifact


def check_artifact(artifact: Artifact, name: str, hardware: str) -> None:
    """The rules that hold for every artifact, on both sides; errors as `parse_manifest`."""
    table = artifact.table
    if table.name != name or table.hardware != hardware:
        raise TrustError(f"manifest of {name} for {hardware}: found {table.name} for {table.hardware}")
    for entry in table.entries:
        if (entry.domain.operator, entry.domain.dtype) != (table.operator, table.dtype):
            raise TrustError(f"manifest of {name}: an entry's domain is for another operator or dtype")
    for file in all_files(artifact):
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in file.path or "\0" in file.path:
            raise TrustError(f"manifest of {name}: path {file.path!r} leaves the artifact")
        checked_digest(file.sha256)
        if not 0 <= file.size_bytes <= limits.MAX_BLOB_BYTES:
            raise TrustError(f"manifest of {name}: {file.path} claims {file.size_bytes} bytes")


def object_files(table: KernelTable) -> tuple[FileRef, ...]:
    """What a host must have to run a table."""
    return tuple(entry.object for entry in table.entries)


def all_files(artifact: Artifact) -> tuple[FileRef, ...]:
    """Objects, sources and evidence."""
    sources = [source for entry in artifact.table.entries for source in entry.sources]
    return (*object_files(artifact.table), *sources, artifact.evidence)


def statement(manifest_sha256: str, artifact: Artifact) -> bytes:
    """The in-toto statement that an attestor signs: this manifest passed, and here is the evidence.

    Deterministic, so that attesting twice writes the same bytes.
    """
    return records.canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": artifact.table.name, "digest": {"sha256": checked_digest(manifest_sha256)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "result": "PASSED",
                "configuration": [{"name": artifact.evidence.path, "digest": {"sha256": artifact.evidence.sha256}}],
                "passedTests": [entry.candidate for entry in artifact.table.entries],
            },
        }
    )


def approval(manifest_sha256: str, name: str, by: str) -> bytes:
    """The in-toto statement that the approver signs: stable may serve this manifest.

    Args:
        name: of the table.
        by: who or what decided: `person`, or a policy in words. Never a person's name.
    """
    return records.canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": checked_digest(manifest_sha256)}}],
            "predicateType": APPROVAL_TYPE,
            "predicate": {"verifier": {"id": APPROVER}, "policy": {"uri": by}, "verificationResult": "PASSED"},
        }
    )


def verify_attestation(envelope: bytes, manifest_sha256: str, attestor: str, keys: Iterable[str]) -> None:
    """Checks that one of an attestor's keys signed a passing statement of its kind about exactly this manifest.

    Args:
        envelope: DSSE, JSON.
        keys: the attestor's public keys in the policy.

    Raises:
        TrustError: malformed, another subject, another result, or not signed by any of these keys.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error, VerificationError

    where = f"attestation of {records.short(manifest_sha256)} by {attestor}"
    try:
        parsed = Envelope.from_dict(json.loads(envelope))
        trusted = [public_key(key) for key in keys]
        if parsed.payload_type != PAYLOAD_TYPE or not trusted:
            raise TrustError(f"{where}: not an in-toto statement, or the policy names no key for {attestor}")
        parsed.verify(trusted, 1)
        content = json.loads(parsed.payload)
    except VerificationError:
        raise TrustError(f"{where}: not signed by a key that the policy names") from None
    except (Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrustError(f"{where}: malformed ({type(error).__name__})") from None
    if not _attests(content, manifest_sha256, attestor):
        raise TrustError(f"{where}: it speaks of something else, or of a failure")


def public_key(text: str) -> Key:
    """The key object that `key_text` has written.

    Raises:
        ValueError, KeyError, TypeError: malformed.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from securesystemslib.signer import Key, SSlibKey

    if text.startswith("{"):
        fields = json.loads(text)
        return Key.from_dict(fields.pop("keyid"), fields)
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(text)))


def key_text(key: Key) -> str:
    """A public key for a policy: hexadecimal if it is ed25519, else `securesystemslib`'s JSON with its key id."""
    if key.keytype == "ed25519" and key == public_key(str(key.keyval["public"])):
        return str(key.keyval["public"])
    return records.canonical_json({"keyid": key.keyid, **key.to_dict()}).decode()


def _attests(content: Any, manifest_sha256: str, attestor: str) -> bool:
    kind, result = (APPROVAL_TYPE, "verificationResult") if attestor == APPROVER else (PREDICATE_TYPE, "result")
    if not isinstance(content, dict):
        return False
    subjects, predicate = content.get("subject"), content.get("predicate")
    return (
        content.get("_type") == STATEMENT_TYPE
        and content.get("predicateType") == kind
        and isinstance(predicate, dict)
        and predicate.get(result) == "PASSED"
        and isinstance(subjects, list)
        and any(isinstance(s, dict) and s.get("digest") == {"sha256": manifest_sha256} for s in subjects)
    )
