"""Publication: kernel tables become what a channel's hosts run.

Order of writes: files, manifests, attestations, index, metadata, timestamp. Nothing refers to what has not been
written yet, and hosts see nothing before the last one. Then it is seen to that all of it still is there: a collection
(`registry.garbage`) may have removed an old object that nothing referred to until that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gristmill import limits, records, revocation, store, trust
from gristmill.errors import ObjectNotFoundError, TrustError
from gristmill.kernel_table import Artifact
from gristmill.store import ObjectStore
from gristmill.trust import Channel
from registry import attestation, doctor
from registry.entry import Edit, Entry
from registry.errors import ApprovalError, PublicationError, SupersededError
from registry.keys import Keyring
from registry.promotion import Decision
from registry.repository import Repository

Decide = Callable[[Artifact, Artifact | None], Decision]
"""Judges the gate: the new artifact against the one that is current. Called anew after a conflict."""
Approve = Callable[[Artifact, Artifact | None], Decision]
"""Decides alike whether a table may be approved without a person. If so, it is signed at once."""


@dataclass(frozen=True)
class Published:
    """What is current after a change."""

    channel: Channel
    number: int
    """`Generation.number` of the hosts that follow; 0 while nothing was ever published."""
    index_sha256: str
    manifests: dict[str, str]
    """All tables of the channel: name to manifest digest."""
    declined: dict[str, str] = field(default_factory=dict)
    """Tables that were offered and not taken, with the gate's reason."""


def publish(
    object_store: ObjectStore,
    keyring: Keyring,
    channel: Channel,
    artifacts: Sequence[Artifact],
    files: Mapping[str, bytes],
    decide: Decide,
    reason: str = "promotion",
    approve: Approve | None = None,
) -> Published:
    """Puts the artifacts that pass `decide` into a channel, beside the tables that are already there.

    May be repeated after any failure; a second time changes nothing.

    Args:
        files: content by SHA-256 of every file that the artifacts name.
        reason: why, for the log.
        approve: says which tables may go where the approver's word is needed; None: only those that have it already.

    Raises:
        PublicationError: a file is missing or is not what the artifact says.
        RecordTooLargeError: hosts would refuse the length of something; nothing was published.
        UnconditionalStoreError: the store would lose concurrent promotions.
        ConflictError: others were faster, many times.
    """
    manifests = _checked(channel, artifacts, files)
    doctor.require_conditional_puts(object_store)
    repository = Repository(object_store, keyring)
    repository.initialise()
    policy, revoked = repository.policy(), repository.revoked()
    attestation.require_counting(keyring, policy, trust.JUDGE)
    contents = {trust.blob_key(records.sha256_hex(content)): content for content in files.values()}
    tags = {key: object_store.put_new(key, content) for key, content in contents.items()}
    for artifact in artifacts:
        _put_manifest(object_store, keyring, artifact)
    declined: dict[str, str] = {}
    approvals: dict[str, bytes] = {}

    def allowed(artifact: Artifact, digest: str, current: Artifact | None) -> Decision:
        why = revocation.why_table(digest, artifact.table, revoked)
        if why is not None:
            return Decision(False, f"revoked: {why}")
        decision = decide(artifact, current)
        if not decision.promote or trust.APPROVER not in policy.required[channel.name]:
            return decision
        if attestation.is_attested(object_store, policy, trust.APPROVER, digest):
            return decision
        approval = approve(artifact, current) if approve else Decision(False, "nobody has approved it")
        if approval.promote:
            attestation.require_counting(keyring, policy, trust.APPROVER)
            approvals[digest] = trust.approval(digest, artifact.table.name, approval.reason)
            attestation.attest(object_store, keyring, trust.APPROVER, digest, approvals[digest])
            return decision
        return Decision(False, f"{approval.reason}; promote to canary, approve it there, then release")

    def edit(current: Entry | None) -> Edit | None:
        declined.clear()
        tables = dict(current.index.tables) if current else {}
        taken: dict[str, str] = {}
        for artifact, digest in zip(artifacts, manifests, strict=True):
            name = artifact.table.name
            if tables.get(name) == digest:
                continue
            old = read_manifest(object_store, tables[name]) if name in tables else None
            if old is not None:
                old = replace(old, table=revocation.remainder(old.table, revoked))
            decision = allowed(artifact, digest, old)
            if decision.promote:
                taken[name] = digest
            else:
                declined[name] = decision.reason
        return Edit({**tables, **taken}, reason) if taken else None

    entry = repository.commit(channel, edit)
    for key, tag in tags.items():
        if not _is_there(object_store, key, tag):
            object_store.put_new(key, contents[key])
    for artifact, digest in zip(artifacts, manifests, strict=True):
        if not all(_is_there(object_store, key) for key in _manifest_keys(digest)):
            _put_manifest(object_store, keyring, artifact)
    for digest, statement in approvals.items():
        attestation.attest(object_store, keyring, trust.APPROVER, digest, statement)
    return published(channel, entry, declined)


def move(
    object_store: ObjectStore,
    keyring: Keyring,
    source: Channel,
    target_name: str = "stable",
    judged: str = "",
    may_remove: bool = True,
) -> Published:
    """Makes another channel of the same hosts serve what `source` serves: all tables at once.

    What `source` serves is read anew at each attempt, so what is rolled back meanwhile does not move.

    Args:
        judged: SHA-256 of the state that may move; empty: whichever `source` serves.
        may_remove: whether the target may lose tables that are not revoked. A person may want that.

    Raises:
        PublicationError: nothing was ever published to `source`.
        ApprovalError: hosts of the target channel would refuse a table, which the approver has not signed; or it would
            lose one that it may not.
        SupersededError: `source` no longer serves what was judged.
    """
    doctor.require_conditional_puts(object_store)
    repository = Repository(object_store, keyring)
    target = Channel(target_name, source.fleet, source.model, source.hardware)
    told: dict[str, str] = {}

    def edit(current: Entry | None) -> Edit | None:
        told.clear()
        entry = repository.current(source)
        if entry is None:
            raise PublicationError(f"{source}: nothing was published there yet, so nothing can move to {target_name}")
        if judged not in ("", entry.sha256):
            raise SupersededError(f"{source}: state {entry.index.number} has taken the place of what was judged")
        revoked = repository.revoked()
        tables = revocation.not_revoked(entry.index.tables, revoked)
        attestation.require_attested(object_store, repository.policy(), target_name, tables)
        told.update(revocation.told(entry.index.tables, revoked))
        served = current.index.tables if current else {}
        if served == tables:
            return None
        lost = sorted(served.keys() - tables.keys())
        if lost and not may_remove:
            raise ApprovalError(
                f"{target} would lose {', '.join(lost)}; a person may want that: ./mill promote --release"
            )
        return Edit(tables, f"moved from {source.name} {entry.index.number}")

    return published(target, repository.commit(target, edit), told)


def published(channel: Channel, entry: Entry | None, declined: Mapping[str, str] | None = None) -> Published:
    """The answer for an index that is current."""
    if entry is None:
        return Published(channel, 0, "", {}, dict(declined or {}))
    return Published(channel, entry.index.number, entry.sha256, dict(entry.index.tables), dict(declined or {}))


def read_manifest(object_store: ObjectStore, sha256: str) -> Artifact:
    """A manifest by digest.

    Raises:
        TrustError: the store holds something else under it.
    """
    content = store.read(object_store, trust.blob_key(sha256), limits.MAX_MANIFEST_BYTES)
    if records.sha256_hex(content) != sha256:
        raise TrustError(f"{object_store.url}: manifest {records.short(sha256)} was tampered with; restore the object")
    return records.parse(Artifact, content, f"manifest {records.short(sha256)}")


def _checked(channel: Channel, artifacts: Sequence[Artifact], files: Mapping[str, bytes]) -> list[str]:
    """Refuses before anything is written; returns the manifests' digests."""
    names = [artifact.table.name for artifact in artifacts]
    if len(set(names)) != len(names) or not names:
        raise PublicationError(f"{channel}: expected at least one artifact and one per table, found {names}")
    for digest, content in files.items():
        if records.sha256_hex(content) != digest:
            raise PublicationError(f"{channel}: content given for {records.short(digest)} has another digest")
    for artifact in artifacts:
        trust.check_artifact(artifact, artifact.table.name, channel.hardware)
        what = f"manifest of {artifact.table.name} with {len(artifact.table.entries)} ranges"
        limits.checked(records.canonical_json(artifact), limits.MAX_MANIFEST_BYTES, what)
        for file in trust.all_files(artifact):
            if file.sha256 not in files or len(files[file.sha256]) != file.size_bytes:
                raise PublicationError(
                    f"{artifact.table.name}: no content of {file.size_bytes} bytes was given for {file.path}"
                )
    return [records.digest(artifact) for artifact in artifacts]


def _manifest_keys(sha256: str) -> tuple[str, str]:
    return trust.blob_key(sha256), trust.attestation_key(sha256, trust.JUDGE)


def _is_there(object_store: ObjectStore, key: str, tag: str | None = None) -> bool:
    try:
        object_store.get(key, tag)
    except ObjectNotFoundError:
        return False
    return True


def _put_manifest(object_store: ObjectStore, keyring: Keyring, artifact: Artifact) -> None:
    content = records.canonical_json(artifact)
    digest = records.sha256_hex(content)
    object_store.put_new(trust.blob_key(digest), content)
    attestation.attest(object_store, keyring, trust.JUDGE, digest, trust.statement(digest, artifact))
