"""Whose signature counts: thresholds, lists of keys, revoked and stolen ones, and chains of roots."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from securesystemslib.signer import CryptoSigner, Signer, SSlibKey
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Root, TargetFile

from gristmill import limits, records, trust
from gristmill.errors import RollbackError, TrustError
from gristmill.pull import Puller
from gristmill.trust import AttestationPolicy
from tests.registry.attacks.attacker import (
    Attacker,
    Victim,
    attest,
    check_refusal,
    codes,
    replace_keys,
    signed_by,
    stranger,
)
from tests.registry.world import CANARY, STABLE, make_artifact

Steal = Callable[..., Attacker]
ONLINE = ("timestamp", "snapshot", "targets", "canary")


def signers(*names: str) -> Sequence[CryptoSigner]:
    return [stranger(name) for name in names]


class TestRoleKeys:
    """Signatures that are not those of enough keys of the role."""

    @pytest.mark.parametrize("role", ONLINE)
    def test_signed_by_a_stranger(self, victim: Victim, steal: Steal, role: str) -> None:
        thief = steal(*(name for name in ONLINE if name != role))
        thief.publish(*({role} - {"timestamp", "snapshot"}))
        victim.refuses(TrustError, victim.world.store.url, f"{role} was signed by 0/1 keys")

    @pytest.mark.parametrize("role", ONLINE)
    def test_signed_with_the_key_of_another_role(self, victim: Victim, steal: Steal, role: str) -> None:
        thief = steal(*ONLINE)
        thief.keys[role] = thief.keys["canary" if role != "canary" else "snapshot"]
        thief.publish(*({role} - {"timestamp", "snapshot"}))
        victim.refuses(TrustError, victim.world.store.url, f"{role} was signed by 0/1 keys")

    @pytest.mark.parametrize("role", ONLINE)
    def test_not_signed(self, victim: Victim, steal: Steal, role: str) -> None:
        thief = steal(*ONLINE)
        thief.keys[role] = ()
        thief.publish(*({role} - {"timestamp", "snapshot"}))
        victim.refuses(TrustError, victim.world.store.url, f"{role} was signed by 0/1 keys")

    @pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
    def test_fewer_than_the_threshold(self, victim: Victim, steal: Steal, role: str) -> None:
        thief = steal(*ONLINE)
        three = signers("a", "b", "c")
        thief.rotate(lambda root: replace_keys(root, role, *three, threshold=2), victim.world.keyring.signers("root"))
        thief.keys[role] = three[:1]
        thief.publish(*({role} - {"timestamp", "snapshot"}))
        victim.refuses(TrustError, victim.world.store.url, f"{role} was signed by 1/2 keys", keeps=role != "targets")
        thief.keys[role] = three[1:]
        thief.publish(*({role} - {"timestamp", "snapshot"}))
        assert victim.puller.poll() is None

    def test_more_required_than_there_are(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)
        two = signers("a", "b")
        thief.rotate(
            lambda root: replace_keys(root, "snapshot", *two, threshold=3), victim.world.keyring.signers("root")
        )
        thief.keys["snapshot"] = two
        thief.publish_snapshot()
        victim.refuses(TrustError, victim.world.store.url, "snapshot was signed by 2/3 keys")

    def test_key_id_without_a_key(self, victim: Victim, steal: Steal) -> None:
        """An id that the role lists, but that belongs to no key, counts for nothing."""
        thief = steal(*ONLINE)

        def change(root: Root) -> None:
            replace_keys(root, "snapshot", *signers("a"), threshold=2)
            root.roles["snapshot"].keyids.append(stranger("b").public_key.keyid)

        thief.rotate(change, victim.world.keyring.signers("root"))
        thief.keys["snapshot"] = signers("a", "b")
        thief.publish_snapshot()
        victim.refuses(TrustError, victim.world.store.url, "snapshot was signed by 1/2 keys")

    def test_one_signature_twice(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)
        thief.rotate(
            lambda root: replace_keys(root, "snapshot", *signers("a", "b"), threshold=2),
            victim.world.keyring.signers("root"),
        )
        thief.keys["snapshot"] = signers("a")
        thief.publish_snapshot()
        key = f"tuf/{thief.signed('snapshot').version}.snapshot.json"
        content = json.loads(victim.world.path(key).read_bytes())
        content["signatures"] *= 2
        doubled = json.dumps(content).encode()
        thief.put(key, doubled)
        thief.signed("timestamp").snapshot_meta.length = thief.signed("timestamp").snapshot_meta.hashes = None
        thief.sign("timestamp")
        victim.refuses(TrustError, victim.world.store.url, "Multiple signatures")

    def test_one_key_id_twice(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)

        def change(root: Root) -> None:
            replace_keys(root, "snapshot", *signers("a"), threshold=2)
            root.roles["snapshot"].keyids *= 2

        thief.rotate(change, victim.world.keyring.signers("root"))
        thief.keys["snapshot"] = signers("a")
        thief.publish_snapshot()
        victim.refuses(TrustError, victim.world.store.url, "Nonunique keyids")

    @pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets", "canary"])
    def test_one_key_under_two_ids(self, victim: Victim, steal: Steal, role: str) -> None:
        """Its owner alone would reach a threshold of two."""
        thief = steal(*ONLINE)
        alone, again = stranger("a"), _again(stranger("a"))
        if role == "canary":
            delegations = thief.signed("targets").delegations
            for keyid in delegations.roles["canary"].keyids:
                thief.signed("targets").revoke_key(keyid, "canary")
            for signer in (alone, again):
                thief.signed("targets").add_key(signer.public_key, "canary")
            delegations.roles["canary"].threshold = 2
            thief.keys["canary"] = (alone, again)
            thief.publish("canary", "targets")
        else:
            thief.rotate(
                lambda root: replace_keys(root, role, alone, again, threshold=2),
                (*victim.world.keyring.signers("root"), alone, again),
            )
            if role != "root":
                thief.keys[role] = (alone, again)
            thief.publish("targets")
        victim.refuses(TrustError, victim.world.store.url, f"role {role} lists one key twice")

    def test_threshold_of_none(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*ONLINE)
        content = json.loads(victim.world.store.get("tuf/1.root.json").content)  # type: ignore[union-attr]
        content["signed"]["version"] = 2
        content["signed"]["roles"]["snapshot"]["threshold"] = 0
        thief.put("tuf/2.root.json", json.dumps(content).encode())
        thief.keys["snapshot"] = ()
        thief.publish_snapshot()
        victim.refuses(TrustError, victim.world.store.url, "threshold should be at least 1")


class TestRevokedKeys:
    """What a key signed counts until it is revoked, and not a poll longer."""

    @pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
    def test_of_a_top_level_role(self, victim: Victim, steal: Steal, role: str) -> None:
        thief, owner = steal(*ONLINE), steal(*ONLINE)
        owner.rotate(lambda root: replace_keys(root, role, stranger("new")), victim.world.keyring.signers("root"))
        thief.publish("targets")
        victim.refuses(TrustError, victim.world.store.url, f"{role} was signed by 0/1 keys", keeps=role != "targets")

    def test_of_a_channel(self, victim: Victim, steal: Steal) -> None:
        owner = steal(*ONLINE)
        thief = steal(*ONLINE)
        targets = owner.signed("targets")
        targets.revoke_key(targets.delegations.roles["canary"].keyids[0], "canary")
        targets.add_key(stranger("new").public_key, "canary")
        owner.publish("targets")
        victim.refuses(TrustError, victim.world.store.url, "canary was signed by 0/1 keys")
        thief = steal("timestamp", "snapshot", "canary")
        thief.promote(thief.index().tables)
        victim.refuses(TrustError, victim.world.store.url, "canary was signed by 0/1 keys")

    def test_rotation_without_a_promotion_can_be_proven_offline(self, victim: Victim, steal: Steal) -> None:
        """What is served stays, and so does the proof of it, though every key behind it is another by now."""
        owner = steal(*ONLINE)
        owner.rotate(lambda root: replace_keys(root, "targets", stranger("t")), victim.world.keyring.signers("root"))
        targets = owner.signed("targets")
        targets.revoke_key(targets.delegations.roles["canary"].keyids[0], "canary")
        targets.add_key(stranger("c").public_key, "canary")
        owner.keys.update(targets=(stranger("t"),), canary=(stranger("c"),))
        owner.publish("targets", "canary")
        assert victim.puller.poll() is None
        assert codes(victim.fresh().last_good()) == [b"code 1", b"code 2"]

    def test_of_the_judge(self, victim: Victim, steal: Steal) -> None:
        """All that it attested is refused, by hosts that start offline too."""
        owner = steal(*ONLINE)
        _set_policy(owner, keys={"judge": (_public(stranger("judge")),)})
        for _ in range(2):
            with pytest.raises(TrustError, match="by judge: not signed by a key that the policy names"):
                victim.puller.poll()
        with pytest.raises(TrustError, match="by judge: not signed by a key that the policy names"):
            victim.fresh().last_good()


def _again(signer: CryptoSigner) -> CryptoSigner:
    """The same key under another id."""
    public = signer.public_key
    other = SSlibKey("0" * 64, public.keytype, public.scheme, dict(public.keyval))
    return CryptoSigner(signer._private_key, other)


def _public(signer: Signer) -> str:
    return str(signer.public_key.keyval["public"])


def _policy(attacker: Attacker) -> AttestationPolicy:
    sha256 = attacker.signed("targets").targets[trust.POLICY_PATH].hashes["sha256"]
    return records.parse(
        AttestationPolicy, attacker.world.path(trust.target_key(trust.POLICY_PATH, sha256)).read_bytes()
    )


def _set_policy(attacker: Attacker, **changes: object) -> None:
    """Publishes a policy signed with the targets key."""
    content = records.canonical_json({**records.encode(_policy(attacker)), **changes})
    attacker.put(trust.target_key(trust.POLICY_PATH, records.sha256_hex(content)), content)
    attacker.signed("targets").targets[trust.POLICY_PATH] = TargetFile.from_data(trust.POLICY_PATH, content, ["sha256"])
    attacker.publish("targets")


CHAINS = {
    "one key replaced": [("abc", 2, "ab"), ("abd", 2, "abd")],
    "one replaced, then another": [("abc", 2, "ab"), ("abd", 2, "abd"), ("aed", 2, "aed")],
    "all replaced at once": [("abc", 2, "ab"), ("def", 2, "abde"), ("def", 2, "ef")],
    "signatures of strangers beside": [("abc", 2, "xaby"), ("abd", 2, "xabdy")],
    "threshold raised": [("abc", 1, "a"), ("abc", 2, "ab"), ("abc", 3, "abc")],
    "threshold lowered": [("abc", 2, "ab"), ("abc", 1, "ab"), ("abc", 1, "c")],
    "another pair each time": [("abc", 2, "ab"), ("abc", 2, "bc"), ("abc", 2, "ac")],
    "one key added": [("a", 1, "a"), ("ab", 2, "ab")],
    "not by the old keys": [("abc", 2, "ab"), ("def", 2, "de"), None],
    "not by the new keys": [("abc", 2, "ab"), ("def", 2, "ab"), None],
    "by too few old ones": [("abc", 2, "ab"), ("ade", 2, "ade"), None],
    "by too few new ones": [("abc", 2, "ab"), ("ade", 2, "abc"), None],
    "raised threshold not reached": [("abc", 1, "a"), ("abc", 2, "b"), None],
    "lowered threshold used too early": [("abc", 2, "ab"), ("abc", 1, "a"), None],
    "by none": [("abc", 2, "ab"), ("abc", 2, ""), None],
    "broken at the second link": [("abc", 2, "ab"), ("abd", 2, "ab"), ("xyz", 2, "xyz"), None],
}
"""Versions of the root: its keys, their threshold, who signed it. None at the end: the last one is not followed."""


class TestRootChain:
    """From the installed root to the newest, each link signed by the old and the new keys."""

    @pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
    def test_chain(self, victim: Victim, steal: Steal, chain: list[tuple[str, int, str] | None]) -> None:
        """The last root moves the timestamp to a key of its own, so that it shows which root a host follows."""
        sound = chain[-1] is not None
        links = [link for link in chain if link is not None]
        attacker = steal(*ONLINE)
        root = attacker.root()
        contents = []
        for version, (keys, threshold, by) in enumerate(links, 1):
            root.signed.version = version
            replace_keys(root.signed, "root", *signers(*keys), threshold=threshold)
            if version == len(links):
                replace_keys(root.signed, "timestamp", stranger("timestamp"))
            contents.append(signed_by(root, signers(*by)))
            victim.world.store.put(f"tuf/{version}.root.json", contents[-1])
        puller = Puller(
            victim.world.store, contents[0], "chat", "llama", CANARY.hardware, "canary", victim.world.folder / "new"
        )
        attacker.keys["timestamp"] = (stranger("timestamp"),)
        attacker.publish()
        if sound:
            assert codes(puller.poll()) == [b"code 1", b"code 2"]
            assert codes(victim_again(puller).last_good()) == [b"code 1", b"code 2"]
            return
        victim.puller = puller
        for _ in range(2):
            with pytest.raises(TrustError, match=r"root was signed by \d/\d keys") as raised:
                puller.poll()
            assert victim.world.store.url in str(raised.value)
        assert victim_again(puller).last_good() is None

    @pytest.mark.parametrize("by", [1, 2, 3])
    def test_two_of_three_rotate(self, victim: Victim, steal: Steal, by: int) -> None:
        """One stolen root key changes nothing; two of the three do what they are there for."""
        root = steal()
        root.rotate(
            lambda signed: replace_keys(signed, "timestamp", stranger("t")), victim.world.keyring.signers("root")[:by]
        )
        root.keys["timestamp"] = (stranger("t"),)
        root.sign("timestamp")
        if by == 1:
            victim.refuses(TrustError, victim.world.store.url, "root was signed by 1/2 keys")
        else:
            assert victim.puller.poll() is None
            assert codes(victim.fresh().last_good()) == [b"code 1", b"code 2"]

    def test_a_damaged_chain_never_makes_an_older_root_acceptable(self, victim: Victim, steal: Steal) -> None:
        owner = steal(*ONLINE)
        owner.rotate(lambda signed: None, victim.world.keyring.signers("root"))
        owner.publish()
        assert victim.puller.poll() is None
        (victim.puller.cache.tuf / "root_history" / "2.root.json").write_bytes(b"{")
        check_refusal(victim.fresh().last_good, RollbackError, "root")
        assert codes(victim.fresh().poll()) == [b"code 1", b"code 2"]
        assert codes(victim.fresh().last_good()) == [b"code 1", b"code 2"]

    def test_skipped_version(self, victim: Victim, steal: Steal) -> None:
        """Version 3 without version 2 is not looked at: its keys do not count."""
        thief = steal(*ONLINE)
        root = victim.world.keyring.signers("root")
        thief.rotate(lambda signed: replace_keys(signed, "timestamp", stranger("t")), root, version=3)
        thief.keys["timestamp"] = (stranger("t"),)
        thief.publish()
        victim.refuses(TrustError, victim.world.store.url, "timestamp was signed by 0/1 keys")

    @pytest.mark.parametrize("inside", [1, 3])
    def test_another_version_inside(self, victim: Victim, steal: Steal, inside: int) -> None:
        thief = steal(*ONLINE)
        root = thief.root()
        root.signed.version = inside
        thief.put("tuf/2.root.json", signed_by(root, victim.world.keyring.signers("root")))
        thief.publish()
        victim.refuses(RollbackError, victim.world.store.url, "root version 2")

    def test_more_rotations_than_are_followed(
        self, victim: Victim, steal: Steal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind the last one that is followed a key may be revoked long since."""
        monkeypatch.setattr(limits, "MAX_ROOT_ROTATIONS", 3)
        owner = steal(*ONLINE)
        root = owner.root()
        for _ in range(2):
            owner.rotate(lambda signed: None, victim.world.keyring.signers("root"), root)
        assert victim.puller.poll() is None
        for _ in range(3):
            owner.rotate(lambda signed: None, victim.world.keyring.signers("root"), root)
        owner.publish()
        victim.refuses(TrustError, victim.world.store.url, "install a newer root")
        newer = victim.fresh()
        newer._root = victim.world.path("tuf/5.root.json").read_bytes()
        assert codes(newer.poll()) == [b"code 1", b"code 2"]

    def test_installed_root_damaged(self, victim: Victim) -> None:
        root = json.loads(victim.puller._root)
        del root["signed"]["version"]
        victim.puller._root = json.dumps(root).encode()
        with pytest.raises(TrustError, match="signed metadata does not hold"):
            victim.puller.poll()
        with pytest.raises(TrustError, match="signed metadata does not hold"):
            victim.puller.last_good()

    def test_installed_root_not_signed(self, victim: Victim) -> None:
        root = Metadata[Root].from_bytes(victim.puller._root)
        victim.puller._root = signed_by(root, signers("x", "y"))
        with pytest.raises(TrustError, match=r"root was signed by 0/2 keys"):
            victim.puller.poll()

    def test_unknown_fields_are_signed_too(self, victim: Victim, steal: Steal) -> None:
        owner = steal(*ONLINE)

        def change(root: Root) -> None:
            root.unrecognized_fields["note"] = {"of": ["a", 1]}

        owner.rotate(change, victim.world.keyring.signers("root"))
        owner.publish()
        assert victim.puller.poll() is None
        assert victim.puller.cache.high_water()["root"] == 2


def victim_again(puller: Puller) -> Puller:
    """The same host after a restart."""
    at = puller.channel
    return Puller(puller._store, puller._root, at.fleet, at.model, at.hardware, at.name, puller.cache.folder)


class TestStolenPipelineKeys:
    """The keys that move channels move what is attested, and nothing else."""

    ALL = ("timestamp", "snapshot", "canary", "stable")

    @pytest.mark.parametrize("channel", [CANARY, STABLE], ids=["canary", "stable"])
    def test_new_code(self, victim: Victim, steal: Steal, channel: trust.Channel) -> None:
        thief = steal(*self.ALL)
        artifact, files = make_artifact("rms_norm", b"evil")
        for content in (*files.values(), records.canonical_json(artifact)):
            thief.put(trust.blob_key(records.sha256_hex(content)), content)
        thief.promote({"rms_norm.float32": records.digest(artifact)}, channel)
        puller = victim.fresh(channel, victim.puller.cache.folder)
        victim.refuses(TrustError, records.digest(artifact)[:12], "never attested by", puller=puller)

    def test_new_code_attested_by_himself(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*self.ALL)
        artifact, files = make_artifact("rms_norm", b"evil")
        digest = records.digest(artifact)
        for content in (*files.values(), records.canonical_json(artifact)):
            thief.put(trust.blob_key(records.sha256_hex(content)), content)
        thief.put(trust.attestation_key(digest, "judge"), attest(trust.statement(digest, artifact), stranger("evil")))
        thief.promote({"rms_norm.float32": digest})
        victim.refuses(TrustError, digest[:12], "not signed by a key that the policy names")

    @pytest.mark.parametrize("approval", ["none", "the judge's", "signed by the judge", "of something else"])
    def test_new_code_on_stable_with_the_judge_stolen_too(self, victim: Victim, steal: Steal, approval: str) -> None:
        """Whoever holds all that is online, the judge's machine included, still lacks the approver's word."""
        thief = steal(*self.ALL, "judge")
        artifact, files = make_artifact("rms_norm", b"evil")
        digest = records.digest(artifact)
        for content in (*files.values(), records.canonical_json(artifact)):
            thief.put(trust.blob_key(records.sha256_hex(content)), content)
        judged = attest(trust.statement(digest, artifact), thief.keys["judge"][0])
        thief.put(trust.attestation_key(digest, "judge"), judged)
        forged = {
            "the judge's": judged,
            "signed by the judge": attest(trust.statement(digest, artifact), thief.keys["judge"][0]),
            "of something else": attest(b"{}", stranger("evil")),
        }
        if approval in forged:
            thief.put(trust.attestation_key(digest, "approver"), forged[approval])
        thief.promote({"rms_norm.float32": digest}, STABLE)
        says = "by approver" if approval in forged else "never attested by approver"
        victim.refuses(TrustError, digest[:12], says, puller=victim.fresh(STABLE))

    def test_one_key_for_two_attestors(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*self.ALL, "targets")
        (key,) = _policy(thief).keys["judge"]
        _set_policy(thief, keys={"judge": (key,), "approver": (key,)})
        victim.refuses(TrustError, "attestation policy", "one key twice")

    def test_a_policy_of_his_own(self, victim: Victim, steal: Steal) -> None:
        thief = steal(*self.ALL)
        _set_policy(thief, keys={"judge": (_public(stranger("evil")),)})
        victim.refuses(TrustError, victim.world.store.url, "targets was signed by 0/1 keys")

    def test_a_policy_in_his_own_role(self, victim: Victim, steal: Steal) -> None:
        """The path of the policy is not delegated, so what a channel's role says of it is not heard."""
        thief = steal(*self.ALL)
        content = records.canonical_json({**records.encode(_policy(thief)), "required": {"canary": [], "stable": []}})
        thief.put(trust.target_key(trust.POLICY_PATH, records.sha256_hex(content)), content)
        thief.signed("canary").targets[trust.POLICY_PATH] = TargetFile.from_data(trust.POLICY_PATH, content, ["sha256"])
        artifact, files = make_artifact("rms_norm", b"evil")
        for blob in (*files.values(), records.canonical_json(artifact)):
            thief.put(trust.blob_key(records.sha256_hex(blob)), blob)
        thief.promote({"rms_norm.float32": records.digest(artifact)})
        victim.refuses(TrustError, records.digest(artifact)[:12], "never attested by judge")

    @pytest.mark.parametrize("required", [{}, {"canary": []}, {"stable": ["judge"]}])
    def test_a_policy_that_asks_for_nothing(self, victim: Victim, steal: Steal, required: dict[str, list[str]]) -> None:
        """Even one that the targets key signed."""
        thief = steal(*self.ALL, "targets")
        _set_policy(thief, required=required)
        with pytest.raises(TrustError, match="does not say whose attestation it needs"):
            victim.puller.poll()

    def test_the_canary_key_signs_stable(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        thief.keys["stable"] = thief.keys["canary"]
        thief.promote(thief.index().tables, STABLE)
        victim.refuses(TrustError, victim.world.store.url, "stable was signed by 0/1 keys", puller=victim.fresh(STABLE))

    def test_the_canary_role_lists_a_stable_index(self, victim: Victim, steal: Steal) -> None:
        """Its role is not asked about that path: for hosts on stable nothing has happened."""
        thief = steal("timestamp", "snapshot", "canary")
        index = thief.index()
        thief.list_index(trust.Index(**{**vars(index), "channel": "stable"}), STABLE, role="canary")
        thief.publish("canary")
        stable = victim.fresh(STABLE, victim.world.folder / "stable")
        assert stable.poll() is None
        assert stable.last_good() is None

    def test_the_canary_role_delegates(self, victim: Victim, steal: Steal) -> None:
        """Who signs the index must be the channel's role itself."""
        thief = steal("timestamp", "snapshot", "canary")
        index = trust.Index(**{**vars(thief.index()), "number": thief.signed("canary").version + 1})
        evil = stranger("evil")
        role = DelegatedRole("evil", [evil.public_key.keyid], 1, True, paths=["canary/*/*/*"])
        thief.signed("canary").delegations = Delegations({evil.public_key.keyid: evil.public_key}, {"evil": role})
        thief.metadata["evil"] = Metadata(type(thief.signed("canary"))())
        thief.signed("evil").expires = thief.signed("canary").expires
        thief.keys["evil"] = (evil,)
        thief.list_index(index, role="evil")
        thief.signed("canary").targets.clear()
        thief.publish("evil", "canary")
        victim.refuses(TrustError, CANARY.index_path, "not signed by its role")

    def test_a_loop_of_delegations(self, victim: Victim, steal: Steal) -> None:
        thief = steal("timestamp", "snapshot", "canary")
        key = thief.keys["canary"][0].public_key
        role = DelegatedRole("canary", [key.keyid], 1, False, paths=["canary/*/*/*"])
        thief.signed("canary").delegations = Delegations({key.keyid: key}, {"canary": role})
        thief.signed("canary").targets.clear()
        thief.publish("canary")
        victim.refuses(RollbackError, str(CANARY), "gone")
