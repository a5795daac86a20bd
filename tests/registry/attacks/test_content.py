"""What the signed metadata leads to: content that is not what it should be, endless, or elsewhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tuf.api.metadata import MetaFile, TargetFile

from gristmill import limits, records, trust
from gristmill.errors import (
    GristmillError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreAddressError,
    StoreError,
    TrustError,
)
from gristmill.kernel_table import Artifact
from tests.registry.attacks.attacker import Attacker, Victim, attest, check_refusal, codes, stranger
from tests.registry.world import CANARY, make_artifact

Steal = Callable[..., Attacker]
ONLINE = ("timestamp", "snapshot", "canary")


@dataclasses.dataclass(frozen=True)
class Target:
    """One object of a promotion that the host has not fetched yet."""

    key: str
    kind: type[GristmillError]
    """What a host says of other bytes in it."""
    says: str


def news(victim: Victim, role: str) -> Target:
    """Publishes code 3 and returns the object of that role in it."""
    published = victim.world.publish("softmax", b"code 3")
    artifact, _ = make_artifact("softmax", b"code 3")
    manifest = records.digest(artifact)
    thief = Attacker(victim.world)
    held = "signed metadata does not hold"
    return {
        "timestamp": Target("tuf/timestamp.json", TrustError, held),
        "snapshot": Target(f"tuf/{thief.signed('snapshot').version}.snapshot.json", TrustError, held),
        "channel": Target(f"tuf/{thief.signed('canary').version}.canary.json", TrustError, held),
        "index": Target(trust.target_key(CANARY.index_path, published.index_sha256), TrustError, held),
        "attestation": Target(trust.attestation_key(manifest, "judge"), TrustError, "by judge"),
        "manifest": Target(trust.blob_key(manifest), TrustError, "manifest of softmax.float32 was tampered with"),
        "kernel": Target(trust.blob_key(records.sha256_hex(b"code 3")), TrustError, "kernel.so was tampered with"),
    }[role]


ROLES = ("timestamp", "snapshot", "channel", "index", "attestation", "manifest", "kernel")


class TestTampering:
    """Each object on the way from the timestamp to the code, in the store's hands."""

    @pytest.mark.parametrize("role", ROLES)
    @pytest.mark.parametrize("how", ["one bit", "shorter", "empty", "garbage", "deeply nested"])
    def test_changed(self, victim: Victim, role: str, how: str) -> None:
        target = news(victim, role)
        path = victim.world.path(target.key)
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(
            {
                "one bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "shorter": whole[:-1],
                "empty": b"",
                "garbage": os.urandom(len(whole)),
                "deeply nested": b"[" * len(whole),
            }[how]
        )
        victim.refuses(target.kind, target.says)
        path.write_bytes(whole)
        victim.follows(b"code 1", b"code 3")

    @pytest.mark.parametrize("role", ROLES)
    def test_missing(self, victim: Victim, role: str) -> None:
        target = news(victim, role)
        victim.world.path(target.key).unlink()
        if role == "attestation":
            victim.refuses(TrustError, "never attested by judge")
        else:
            victim.refuses(ObjectNotFoundError, victim.world.store.url, target.key)

    @pytest.mark.parametrize("role", ROLES)
    def test_exchanged_for_the_one_before(self, victim: Victim, role: str) -> None:
        """Another genuine object of the same kind under its name."""
        before = Attacker(victim.world)
        artifact, _ = make_artifact("softmax", b"code 2")
        old = {
            "timestamp": victim.old_timestamp,
            "snapshot": before.metadata["snapshot"].to_bytes(),
            "channel": before.metadata["canary"].to_bytes(),
            "index": records.canonical_json(before.index()),
            "attestation": victim.world.path(trust.attestation_key(records.digest(artifact), "judge")).read_bytes(),
            "manifest": records.canonical_json(artifact),
            "kernel": b"code 2",
        }[role]
        target = news(victim, role)
        victim.world.path(target.key).write_bytes(old)
        with pytest.raises(TrustError):
            victim.puller.poll()
        assert codes(victim.fresh().last_good()) == [b"code 1", b"code 2"]


class TestEndlessData:
    """Every download has a limit of its own, known before the first byte comes."""

    LIMITED = ("timestamp", "snapshot", "channel", "index", "attestation", "manifest", "kernel")

    @pytest.mark.parametrize("role", LIMITED)
    def test_longer_than_allowed(self, victim: Victim, role: str) -> None:
        target = news(victim, role)
        os.truncate(victim.world.path(target.key), 300 << 20)
        victim.refuses(ObjectTooLargeError, victim.world.store.url, target.key, "longer than")

    @pytest.mark.parametrize("role", LIMITED)
    def test_without_end(self, victim: Victim, role: str) -> None:
        """A device or a pipe in a folder that serves as the store."""
        target = news(victim, role)
        path = victim.world.path(target.key)
        path.unlink()
        path.symlink_to("/dev/zero")
        victim.refuses(StoreError, victim.world.store.url, target.key)
        path.unlink()
        os.mkfifo(path)
        victim.refuses(StoreError, victim.world.store.url, target.key)

    @pytest.mark.parametrize("role", ["root", "snapshot", "canary"])
    def test_signed_but_endless(self, victim: Victim, steal: Steal, role: str) -> None:
        """Roots have no length signed beforehand; others may name one that is beyond all reason."""
        thief = steal(*ONLINE)
        if role == "root":
            key = "tuf/2.root.json"
        elif role == "snapshot":
            key = f"tuf/{thief.signed('snapshot').version + 1}.snapshot.json"
            thief.signed("timestamp").snapshot_meta = MetaFile(thief.signed("snapshot").version + 1, 1 << 40)
            thief.sign("timestamp")
        else:
            key = f"tuf/{thief.signed('canary').version + 1}.canary.json"
            thief.signed("snapshot").meta["canary.json"] = MetaFile(thief.signed("canary").version + 1, 1 << 40)
            thief.publish_snapshot()
        thief.put(key, b"{")
        os.truncate(victim.world.path(key), 300 << 20)
        victim.refuses(ObjectTooLargeError, victim.world.store.url, key, "longer than")

    def test_an_index_of_a_signed_but_absurd_length(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)
        index = thief.index()
        thief.list_index(dataclasses.replace(index, number=thief.signed("canary").version + 1))
        target = thief.signed("canary").targets[CANARY.index_path]
        target.length = 1 << 40
        thief.publish("canary")
        key = trust.target_key(CANARY.index_path, target.hashes["sha256"])
        os.truncate(victim.world.path(key), 300 << 20)
        victim.refuses(ObjectTooLargeError, victim.world.store.url, key, "longer than")

    @pytest.mark.parametrize("size_bytes", [-1, limits.MAX_BLOB_BYTES + 1])
    def test_a_kernel_of_an_absurd_length(self, victim: Victim, steal: Steal, size_bytes: int) -> None:
        victim_of_judge(victim, steal, lambda encoded: _entry(encoded)["object"].update(size_bytes=size_bytes))
        victim.refuses(TrustError, "kernel.so claims")

    def test_a_kernel_shorter_than_its_manifest_says(self, victim: Victim, steal: Steal) -> None:
        victim_of_judge(victim, steal, lambda encoded: _entry(encoded)["object"].update(size_bytes=7))
        victim.refuses(TrustError, "kernel.so: 6 bytes, but its manifest says 7")


class TestPathEscape:
    """Nothing in the registry names a place outside the store or the cache, even if judge and channel are stolen."""

    PATHS = ("../x", "/etc/passwd", "a/../../x", "a\\b", "", "..", "a\0b")

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("file", ["object", "source", "evidence"])
    def test_in_a_manifest(self, victim: Victim, steal: Steal, file: str, path: str) -> None:
        def change(encoded: dict[str, object]) -> None:
            entry = _entry(encoded)
            {"object": entry["object"], "source": entry["sources"][0], "evidence": encoded["evidence"]}[file][
                "path"
            ] = path

        victim_of_judge(victim, steal, change)
        victim.refuses(TrustError, "manifest of rms_norm.float32", "leaves the artifact")

    @pytest.mark.parametrize("digest", ["../../../etc/passwd", "", "A" * 64, "g" * 64, "a" * 63, "/" * 64])
    def test_in_a_digest(self, victim: Victim, steal: Steal, digest: str) -> None:
        victim_of_judge(victim, steal, lambda encoded: _entry(encoded)["object"].update(sha256=digest))
        victim.refuses(TrustError, "expected a SHA-256 digest")

    @pytest.mark.parametrize("digest", ["../../../etc/passwd", "", "A" * 64])
    def test_in_an_index(self, victim: Victim, steal: Steal, digest: str) -> None:
        thief = steal(*ONLINE)
        thief.promote({"rms_norm.float32": digest})
        victim.refuses(TrustError, "expected a SHA-256 digest")

    @pytest.mark.parametrize("digest", ["../../../etc/passwd", "A" * 64])
    def test_in_a_target(self, victim: Victim, steal: Steal, digest: str) -> None:
        thief = steal(*ONLINE)
        thief.signed("canary").targets[CANARY.index_path] = TargetFile(10, {"sha256": digest}, CANARY.index_path)
        thief.publish("canary")
        victim.refuses(TrustError, "expected a SHA-256 digest")

    def test_a_target_without_a_known_digest(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)
        thief.signed("canary").targets[CANARY.index_path] = TargetFile(10, {"md5": "0" * 32}, CANARY.index_path)
        thief.publish("canary")
        victim.refuses(TrustError, "expected a SHA-256 digest")

    @pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a/b", ".."])
    def test_in_the_name_of_a_role(self, victim: Victim, steal: Steal, name: str) -> None:
        from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Targets

        thief = steal(*ONLINE)
        key = thief.keys["canary"][0].public_key
        role = DelegatedRole(name, [key.keyid], 1, True, paths=["canary/*/*/*"])
        thief.signed("canary").delegations = Delegations({key.keyid: key}, {name: role})
        thief.signed("canary").targets.clear()
        thief.metadata["evil"] = Metadata(Targets())
        thief.signed("snapshot").meta[f"{name}.json"] = MetaFile(1)
        thief.publish("canary")
        before = {path for path in victim.world.folder.rglob("*") if "cache" not in path.parts}
        if name == "..":
            victim.refuses(ObjectNotFoundError, victim.world.store.url, "tuf/1....json")
        else:
            victim.refuses(StoreAddressError, "object key", "expected a relative path")
        assert {path for path in victim.world.folder.rglob("*") if "cache" not in path.parts} == before

    @pytest.mark.parametrize("attestor", ["../../../../x", "/x", "a/b"])
    def test_in_the_name_of_an_attestor(self, victim: Victim, steal: Steal, attestor: str) -> None:
        """Even the targets key can't make a host read or write beside its cache."""
        thief = steal(*ONLINE, "targets")
        sha256 = thief.signed("targets").targets[trust.POLICY_PATH].hashes["sha256"]
        old = records.parse(
            trust.AttestationPolicy, victim.world.path(trust.target_key(trust.POLICY_PATH, sha256)).read_bytes()
        )
        policy = {**records.encode(old), "required": {"canary": [attestor]}, "keys": {attestor: old.keys["judge"]}}
        content = records.canonical_json(policy)
        thief.put(trust.target_key(trust.POLICY_PATH, records.sha256_hex(content)), content)
        thief.signed("targets").targets[trust.POLICY_PATH] = TargetFile.from_data(
            trust.POLICY_PATH, content, ["sha256"]
        )
        thief.publish("targets")
        check_refusal(victim.puller.poll, TrustError, "attestor", attestor)

    @pytest.mark.parametrize("role", ["index", "manifest", "kernel"])
    def test_a_link_in_the_store(self, victim: Victim, role: str) -> None:
        """A store in a folder that leads to a file of the host: its content is not what was signed."""
        target = news(victim, role)
        path = victim.world.path(target.key)
        path.unlink()
        path.symlink_to(Path(__file__))
        with pytest.raises(GristmillError) as raised:
            victim.puller.poll()
        assert type(raised.value) in (TrustError, ObjectTooLargeError)
        assert codes(victim.fresh().last_good()) == [b"code 1", b"code 2"]


class TestAttestations:
    """Envelopes that the judge did not sign, or not for this."""

    def test_of_another_manifest(self, victim: Victim) -> None:
        target = news(victim, "attestation")
        other, _ = make_artifact("rms_norm", b"code 1")
        content = victim.world.path(trust.attestation_key(records.digest(other), "judge")).read_bytes()
        victim.world.path(target.key).write_bytes(content)
        victim.refuses(TrustError, "by judge", "something else")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b"PASSED", b"FAILED"),
            (trust.STATEMENT_TYPE.encode(), b"https://in-toto.io/Statement/v0"),
            (b'"subject"', b'"object"'),
        ],
    )
    def test_of_something_else_by_the_judge(self, victim: Victim, steal: Steal, old: bytes, new: bytes) -> None:
        target = news(victim, "attestation")
        artifact, _ = make_artifact("softmax", b"code 3")
        payload = trust.statement(records.digest(artifact), artifact)
        assert old in payload
        victim.world.path(target.key).write_bytes(attest(payload.replace(old, new), judge(steal)))
        victim.refuses(TrustError, "by judge", "something else")

    def test_of_another_payload_type(self, victim: Victim, steal: Steal) -> None:
        """What the judge signed for another purpose does not attest."""
        target = news(victim, "attestation")
        artifact, _ = make_artifact("softmax", b"code 3")
        payload = trust.statement(records.digest(artifact), artifact)
        victim.world.path(target.key).write_bytes(attest(payload, judge(steal), "text/plain"))
        victim.refuses(TrustError, "by judge", "not an in-toto statement")

    def test_by_the_keys_of_a_channel(self, victim: Victim, steal: Steal) -> None:
        target = news(victim, "attestation")
        artifact, _ = make_artifact("softmax", b"code 3")
        payload = trust.statement(records.digest(artifact), artifact)
        for signer in (stranger("evil"), *(key for keys in steal(*ONLINE).keys.values() for key in keys)):
            victim.world.path(target.key).write_bytes(attest(payload, signer))
            victim.refuses(TrustError, "by judge", "not signed by a key that the policy names")


def judge(steal: Steal):  # type: ignore[no-untyped-def]
    (signer,) = steal("judge").keys["judge"]
    return signer


def victim_of_judge(victim: Victim, steal: Steal, change: Callable[[dict[str, object]], object]) -> None:
    """Promotes a manifest that is signed by everybody who must, after a change to it."""
    thief = steal(*ONLINE)
    artifact, files = make_artifact("rms_norm", b"code 3")
    encoded = records.encode(artifact)
    change(encoded)
    content = records.canonical_json(encoded)
    digest = records.sha256_hex(content)
    for blob in (*files.values(), content):
        thief.put(trust.blob_key(records.sha256_hex(blob)), blob)
    assert records.parse(Artifact, content)
    thief.put(trust.attestation_key(digest, "judge"), attest(trust.statement(digest, artifact), judge(steal)))
    thief.promote({"rms_norm.float32": digest})


def _entry(encoded: dict[str, object]):  # type: ignore[no-untyped-def]
    return encoded["table"]["entries"][0]  # type: ignore[index]
