"""Approval: stable takes nothing without the approver's word, whoever else has signed; when a policy gives it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope

from gristmill import records, trust
from gristmill.errors import TrustError
from gristmill.kernel_table import Artifact, KernelTable
from registry import attestation
from registry.approval import approve, approve_by_policy
from registry.entry import Edit
from registry.errors import ApprovalError, KeyFileError
from registry.metadata_reader import TIMESTAMP_KEY
from registry.promotion import ApprovalPolicy, Decision, decide_approval
from registry.publication import Published, move, publish
from registry.repository import Repository
from registry.rollback import roll_back
from tests.registry.world import CANARY, STABLE, DelegatingStore, World, make_artifact, take

POLICY = ApprovalPolicy()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def offer(world: World, operator: str = "rms_norm", code: bytes = b"code", channel: trust.Channel = CANARY) -> Artifact:
    """Publishes what nobody has approved."""
    artifact, files = make_artifact(operator, code)
    publish(world.store, world.keyring, channel, [artifact], files, take)
    return artifact


def put_on_stable(world: World, artifact: Artifact) -> None:
    """What a thief of every pipeline key does: the index is signed as it should be."""
    tables = {artifact.table.name: records.digest(artifact)}
    Repository(world.store, world.keyring).commit(STABLE, lambda current: Edit(tables, "stolen"))


def table(ratio_low: str = "1.5", ratio: str = "2.0") -> KernelTable:
    made = make_artifact("rms_norm", b"code", ratio_low)[0].table
    return dataclasses.replace(made, entries=(dataclasses.replace(made.entries[0], ratio=ratio),))


class TestHosts:
    def test_canary_needs_the_judge_alone(self, world: World) -> None:
        offer(world)
        assert world.puller().poll() is not None

    def test_stable_refuses_what_the_pipeline_keys_alone_introduce(self, world: World) -> None:
        put_on_stable(world, offer(world))
        with pytest.raises(TrustError, match="never attested by approver"):
            world.puller("stable-cache", STABLE).poll()

    @pytest.mark.parametrize("attestor", ["judge", "canary", "stable"])
    def test_stable_refuses_an_approval_by_another_key(self, world: World, attestor: str) -> None:
        artifact = offer(world)
        digest = records.digest(artifact)
        envelope = Envelope(trust.approval(digest, artifact.table.name, "person"), trust.PAYLOAD_TYPE, {})
        envelope.sign(world.keyring.signers(attestor)[0])
        world.store.put_new(trust.attestation_key(digest, "approver"), json.dumps(envelope.to_dict()).encode())
        put_on_stable(world, artifact)
        with pytest.raises(TrustError, match="not signed by a key"):
            world.puller("stable-cache", STABLE).poll()

    def test_the_approvers_word_is_not_the_judges(self, world: World) -> None:
        """Each attestor's statement is of its own kind: measured is not approved, approved is not measured."""
        artifact = offer(world)
        digest = records.digest(artifact)
        attestation.attest(world.store, world.keyring, "approver", digest, trust.statement(digest, artifact))
        put_on_stable(world, artifact)
        with pytest.raises(TrustError, match="something else"):
            world.puller("stable-cache", STABLE).poll()

    def test_stable_refuses_what_was_approved_but_never_judged(self, world: World) -> None:
        artifact = offer(world)
        approve(world.store, world.keyring, CANARY)
        world.path(trust.attestation_key(records.digest(artifact), "judge")).unlink()
        put_on_stable(world, artifact)
        with pytest.raises(TrustError, match="never attested by judge"):
            world.puller("stable-cache", STABLE).poll()

    def test_stable_takes_what_both_have_signed(self, world: World) -> None:
        artifact = offer(world)
        approve(world.store, world.keyring, CANARY)
        move(world.store, world.keyring, CANARY)
        generation = world.puller("stable-cache", STABLE).poll()
        assert generation is not None and generation.tables == (artifact.table,)


class TestPerson:
    def test_nothing_moves_before(self, world: World) -> None:
        offer(world)
        with pytest.raises(ApprovalError, match=r"\./mill approve rms_norm\.float32"):
            move(world.store, world.keyring, CANARY)
        assert world.repository.current(STABLE) is None

    def test_one_table_is_not_all(self, world: World) -> None:
        offer(world)
        offer(world, "softmax", b"other")
        (approval,) = approve(world.store, world.keyring, CANARY, "softmax.float32")
        assert approval.table == "softmax.float32" and approval.approved
        with pytest.raises(ApprovalError, match="rms_norm"):
            move(world.store, world.keyring, CANARY)
        assert len(approve(world.store, world.keyring, CANARY)) == 2
        assert set(move(world.store, world.keyring, CANARY).manifests) == {"rms_norm.float32", "softmax.float32"}

    def test_twice_changes_nothing(self, world: World) -> None:
        offer(world)
        first = approve(world.store, world.keyring, CANARY)
        kept = {key: world.path(key).read_bytes() for key in world.store.list("")}
        assert approve(world.store, world.keyring, CANARY) == first
        assert {key: world.path(key).read_bytes() for key in world.store.list("")} == kept

    def test_a_table_that_is_not_served(self, world: World) -> None:
        offer(world)
        with pytest.raises(ApprovalError, match=r"serves rms_norm\.float32"):
            approve(world.store, world.keyring, CANARY, "softmax.float32")

    def test_without_the_key(self, world: World) -> None:
        offer(world)
        (world.keyring.folder / "approver.pem").unlink()
        with pytest.raises(KeyFileError, match=r"approver\.pem is missing"):
            approve(world.store, world.keyring, CANARY)

    def test_an_invalid_approval_gives_way(self, world: World) -> None:
        artifact = offer(world)
        world.store.put_new(trust.attestation_key(records.digest(artifact), "approver"), b"garbage")
        approve(world.store, world.keyring, CANARY)
        assert move(world.store, world.keyring, CANARY).number > 0

    def test_a_rollback_restores_only_what_hosts_take(self, world: World) -> None:
        artifact = offer(world)
        approve(world.store, world.keyring, CANARY)
        moved = move(world.store, world.keyring, CANARY)
        roll_back(world.store, world.keyring, STABLE, 0)
        path = world.path(trust.attestation_key(records.digest(artifact), "approver"))
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(ApprovalError):
            roll_back(world.store, world.keyring, STABLE, moved.number)
        path.write_bytes(kept)
        assert roll_back(world.store, world.keyring, STABLE, moved.number).manifests == moved.manifests


class TestPolicy:
    def test_signs_what_may_pass_alone(self, world: World) -> None:
        offer(world)
        (approval,) = approve_by_policy(world.store, world.keyring, CANARY, POLICY)
        assert approval.approved and "gains from" in approval.reason
        assert move(world.store, world.keyring, CANARY).manifests == {"rms_norm.float32": approval.manifest_sha256}
        (again,) = approve_by_policy(world.store, world.keyring, CANARY, ApprovalPolicy(max_ratio=1.0))
        assert again.approved and "before" in again.reason

    def test_leaves_the_rest_to_a_person(self, world: World) -> None:
        offer(world)
        (approval,) = approve_by_policy(world.store, world.keyring, CANARY, ApprovalPolicy(max_ratio=1.9))
        assert not approval.approved and "person" in approval.reason
        with pytest.raises(ApprovalError):
            move(world.store, world.keyring, CANARY)

    def test_is_asked_where_stable_is_published_to_directly(self, world: World) -> None:
        artifact, files = make_artifact("rms_norm", b"code")

        def put(answer: Decision | None) -> Published:
            ask = None if answer is None else lambda new, current: answer
            return publish(world.store, world.keyring, STABLE, [artifact], files, take, approve=ask)

        assert "nobody" in put(None).declined["rms_norm.float32"]
        assert "too good" in put(Decision(False, "too good")).declined["rms_norm.float32"]
        assert world.puller("stable-cache", STABLE).poll() is None
        assert put(Decision(True, "fine")).manifests == {"rms_norm.float32": records.digest(artifact)}
        assert world.puller("stable-cache", STABLE).poll() is not None

    def test_its_word_is_there_although_a_collection_took_it_for_old(self, world: World) -> None:
        """Deleted between the signature and the moment at which hosts see what it is about."""
        artifact, files = make_artifact("rms_norm", b"code")
        key = trust.attestation_key(records.digest(artifact), trust.APPROVER)

        class Collected(DelegatingStore):
            def replace_if(self, key_: str, content: bytes, etag: str) -> str:
                if key_ == TIMESTAMP_KEY:
                    self.inner.delete(key)
                return self.inner.replace_if(key_, content, etag)

        fine = Decision(True, "fine")
        store = Collected(world.store)
        publish(store, world.keyring, STABLE, [artifact], files, take, approve=lambda new, current: fine)
        assert key in set(world.store.list("attestations/"))
        assert world.puller("stable-cache", STABLE).poll() is not None

    @given(low=st.floats(1, 60), gap=st.floats(0, 20), known=st.booleans(), new=st.booleans())
    def test_passes_what_lies_within_its_bounds(self, low: float, gap: float, known: bool, new: bool) -> None:
        policy = ApprovalPolicy(max_ratio=25.0, new_operators=new)
        decision = decide_approval(table(repr(low), repr(low + gap)), table() if known else None, policy)
        assert decision.promote == (policy.min_ratio_low < low and low + gap <= policy.max_ratio and (known or new))
        assert decision.promote or "person" in decision.reason

    @pytest.mark.parametrize("numbers", [("nan", "2.0"), ("1.5", "nan"), ("1.5", "inf")])
    def test_numbers_that_are_none_do_not_pass(self, numbers: tuple[str, str]) -> None:
        assert not decide_approval(table(*numbers), None, POLICY).promote

    def test_an_empty_table_does_not_pass(self) -> None:
        assert not decide_approval(dataclasses.replace(table(), entries=()), None, POLICY).promote


class TestOldKeySets:
    """A folder and a registry from before there was an approver go on as they were."""

    def test_stable_follows_without_an_approver(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        for path in world.keyring.folder.glob("approver.*"):
            path.unlink()
        object.__setattr__(world.keyring, "public", {**world.keyring.public, "approver": ()})
        offer(world)
        move(world.store, world.keyring, CANARY)
        again = World(tmp_path)
        assert again.keyring.public["approver"], "the missing key is made"
        assert again.repository.policy().required["stable"] == ("judge",)
        assert move(again.store, again.keyring, CANARY).number > 0
        assert again.puller("stable-cache", STABLE).poll() is not None
        assert approve_by_policy(again.store, again.keyring, CANARY, POLICY) == []
