"""From winners to a published generation: what is confirmed, and only that, with exactly the files that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flows import steps
from flows.promote import release_steps
from gristmill import records
from gristmill.directory_store import DirectoryStore
from gristmill.pull import Puller
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Verdict
from registry import failures
from registry.errors import ApprovalError, KeyFileError
from registry.promotion import ApprovalPolicy
from registry.repository import Repository
from registry.rollback import roll_back
from tasks import promotion, proving
from tasks.errors import NoWinnerError
from tasks.journal import JournalEntry
from tasks.promotion import HELD_OUT_LIMIT, Proof, form_artifact, prove, publish_artifacts, winners
from tests.registry.world import shared_keys
from tests.tasks.world import (
    HARDWARE,
    FormulaBench,
    candidate,
    profile,
    rms_norm,
    settings,
    silu_and_mul,
    timing,
    verdict,
)

ONE, FOUR, WIDE = rms_norm(1), rms_norm(4), rms_norm(1, hidden=96)
ENVIRONMENT = {"torch": "2.13.0", "compiler": "g++ 12", "abi": "1"}


def entry(number: int, *ratios: tuple[Workload, float], operator: str = "rms_norm") -> JournalEntry:
    one = candidate(number, operator)
    return JournalEntry("task", one, verdict(one, *(timing(w, ratio) for w, ratio in ratios)))


class RecordingBench(FormulaBench):
    """Remembers seeds and workloads of every judgement."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int | None = None) -> Verdict:
        self.calls = [*getattr(self, "calls", []), (seed, tuple(w.digest for w in workloads))]
        return super().judge(candidate, workloads, seed=seed)


class TestWinners:
    def test_each_workload_has_one_winner_by_lower_bound(self) -> None:
        found = winners(
            [entry(1, (ONE, 2.0), (FOUR, 1.1)), entry(2, (ONE, 1.5), (FOUR, 1.5)), entry(3, (ONE, 1.2), (FOUR, 1.2))]
        )
        assert found == {("rms_norm", "float32"): (candidate(1), candidate(2))}

    def test_one_candidate_may_win_everywhere_and_counts_once(self) -> None:
        assert winners([entry(1, (ONE, 2.0), (FOUR, 2.0))]) == {("rms_norm", "float32"): (candidate(1),)}

    def test_slower_and_broken_ones_never_win(self) -> None:
        assert winners([entry(1, (ONE, 0.9)), entry(2)]) == {}

    def test_the_next_best_takes_the_place_of_one_that_is_passed_over(self) -> None:
        found = winners([entry(1, (ONE, 2.0)), entry(2, (ONE, 1.5))], {candidate(1).digest: "failed"})
        assert found == {("rms_norm", "float32"): (candidate(2),)}

    def test_a_point_below_one_is_not_won_by_a_candidate_that_won_elsewhere(self) -> None:
        assert winners([entry(1, (ONE, 2.0), (FOUR, 0.7))])[("rms_norm", "float32")] == (candidate(1),)
        both = winners([entry(1, (ONE, 2.0), (FOUR, 0.7)), entry(2, (ONE, 1.1), (FOUR, 1.02))])
        assert both[("rms_norm", "float32")] == (candidate(1),), "1.02 minus its spread is no gain"

    def test_a_kernel_that_is_hardly_better_somewhere_is_not_worth_another_kernel(self) -> None:
        nearly = [entry(1, (ONE, 2.0), (FOUR, 3.0)), entry(2, (ONE, 2.1), (FOUR, 1.1))]
        assert winners(nearly) == {("rms_norm", "float32"): (candidate(1),)}
        clearly = [entry(1, (ONE, 2.0), (FOUR, 3.0)), entry(2, (ONE, 2.5), (FOUR, 1.1))]
        found = {c.digest for c in winners(clearly)[("rms_norm", "float32")]}
        assert found == {candidate(1).digest, candidate(2).digest}

    def test_operators_are_kept_apart(self) -> None:
        silu = silu_and_mul(1)
        found = winners([entry(1, (ONE, 2.0)), entry(2, (silu, 1.5), operator="silu_and_mul")])
        assert set(found) == {("rms_norm", "float32"), ("silu_and_mul", "float32")}


class TestProve:
    def test_all_candidates_meet_one_fresh_seed_and_the_same_unseen_shapes(self) -> None:
        bench = RecordingBench(lambda c, w: 2.0)
        traffic = profile(ONE, FOUR, silu_and_mul(1))
        prove(bench, traffic, [candidate(1), candidate(2)])
        (seed, shapes), second = bench.calls
        assert second == (seed, shapes)
        assert {ONE.digest, FOUR.digest} < set(shapes) and len(shapes) <= 2 + HELD_OUT_LIMIT
        prove(bench, traffic, [candidate(1)])
        assert bench.calls[-1][0] != seed, "another promotion draws anew"

    def test_every_file_is_there_once_under_its_digest(self) -> None:
        proof = prove(FormulaBench(lambda c, w: 2.0), profile(ONE), [candidate(1), candidate(2)])
        assert len(proof.files) == 7, "two objects, two main.cpp, two candidates, one header that both share"
        assert all(records.sha256_hex(content) == digest for digest, content in proof.files.items())


class TestFormArtifact:
    def proof(self, ratio_of) -> Proof:
        return prove(FormulaBench(ratio_of), profile(ONE, WIDE), [candidate(1), candidate(2)])

    def test_it_names_exactly_the_files_it_brings(self, tmp_path: Path) -> None:
        proof = self.proof(lambda c, w: {"1": 2.0, "2": 1.5}[c.origin.parameters["number"]])
        artifact, files = form_artifact(proof, settings(tmp_path), ENVIRONMENT)
        named = [artifact.evidence, *(f for e in artifact.table.entries for f in (e.object, *e.sources))]
        assert set(files) == {f.sha256 for f in named}
        assert all(len(files[f.sha256]) == f.size_bytes for f in named)
        assert {e.candidate for e in artifact.table.entries} == {candidate(1).digest}, "the loser stays at home"
        assert artifact.environment == ENVIRONMENT and artifact.table.hardware == HARDWARE

    def test_the_evidence_holds_every_verdict_losers_included(self, tmp_path: Path) -> None:
        proof = self.proof(lambda c, w: {"1": 2.0, "2": 0.5}[c.origin.parameters["number"]])
        artifact, files = form_artifact(proof, settings(tmp_path), ENVIRONMENT)
        verdicts = records.json.loads(files[artifact.evidence.sha256])
        assert [v["candidate"] for v in verdicts] == [candidate(1).digest, candidate(2).digest]
        assert [records.decode(Verdict, v).candidate for v in verdicts] == [
            one.candidate.digest for one in proof.judged
        ]

    def test_a_gain_that_did_not_survive_is_told_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(NoWinnerError, match=r"rms_norm float32: no gain survived .*measured"):
            form_artifact(self.proof(lambda c, w: 0.97), settings(tmp_path), ENVIRONMENT)

    def test_operators_that_survive_are_published_without_those_that_do_not(self, tmp_path: Path) -> None:
        good, bad = self.proof(lambda c, w: 2.0), self.proof(lambda c, w: 0.9)
        told: list[str] = []
        artifacts, _ = proving.artifacts_of([(bad, {}), (good, {})], settings(tmp_path), told.append)
        assert len(artifacts) == 1 and len(told) == 1
        with pytest.raises(NoWinnerError, match="no gain survived"):
            proving.artifacts_of([(bad, {})], settings(tmp_path), told.append)


class TestPublish:
    @pytest.fixture
    def world(self, tmp_path: Path):
        import shutil

        chosen = settings(tmp_path / "home", tmp_path / "store")
        shutil.copytree(shared_keys(), chosen.keys_dir)
        return chosen, DirectoryStore(tmp_path / "store")

    def publish(self, world, ratio: float, workload: Workload = ONE):
        chosen, store = world
        proof = prove(FormulaBench(lambda c, w: ratio), profile(workload), [candidate(int(ratio * 10))])
        artifact, files = form_artifact(proof, chosen, ENVIRONMENT)
        return artifact, publish_artifacts(store, chosen, "canary", [artifact], files, profile(workload), "search abc")

    def puller(self, world, tmp_path: Path) -> Puller:
        chosen, store = world
        root = Repository(store, promotion.keyring_of(chosen)).initialise()
        return Puller(store, root, chosen.fleet, chosen.model, HARDWARE, "canary", tmp_path / "cache")

    def test_a_host_pulls_what_was_published(self, world, tmp_path: Path) -> None:
        artifact, published = self.publish(world, 2.0)
        generation = self.puller(world, tmp_path).poll()
        assert generation is not None and generation.number == published.number
        assert generation.tables == (artifact.table,)
        for one in artifact.table.entries:
            assert generation.objects[one.object.sha256].read_bytes() == b"\x7fELF " + one.candidate.encode()

    def test_publishing_again_or_worse_changes_nothing_and_better_does(self, world) -> None:
        _, first = self.publish(world, 2.0)
        _, worse = self.publish(world, 1.5)
        assert worse.number == first.number and worse.manifests == first.manifests
        assert "rms_norm.float32" in worse.declined
        _, better = self.publish(world, 2.5)
        assert better.number > first.number and not better.declined

    def test_what_failed_in_canary_comes_back_only_if_a_person_says_so(self, world) -> None:
        """Under another manifest too: a second proof of the same kernel has another seed and another date."""
        chosen, store = world
        proof = prove(FormulaBench(lambda c, w: 2.0), profile(ONE), [candidate(20)])
        artifact, files = form_artifact(proof, chosen, ENVIRONMENT)

        def offered(created_utc: str, again: bool = False):
            anew = replace(artifact, created_utc=created_utc)
            return publish_artifacts(store, chosen, "canary", [anew], files, profile(ONE), "search abc", again)

        first = offered("2026-12-01T00:00:00+00:00")
        channel = promotion.channel_of(chosen, "canary")
        roll_back(store, promotion.keyring_of(chosen), channel, reason=failures.told("3 mismatches"))
        for refused in map(offered, ("2026-12-01T00:00:00+00:00", "2026-12-02T00:00:00+00:00")):
            assert refused.manifests == {} and refused.declined["rms_norm.float32"] == (
                f"generation {first.number} failed in canary: 3 mismatches; ./mill promote --again tries it once more"
            )
        again = offered("2026-12-02T00:00:00+00:00", again=True)
        assert again.manifests and not again.declined
        assert promotion.failed_in_canary(store, chosen) == {}, "whoever brought it back knew"

    def test_after_a_drift_the_gain_on_todays_traffic_counts(self, world) -> None:
        """The current table gains more, but where nobody calls any more."""
        _, first = self.publish(world, 2.5)
        _, moved = self.publish(world, 1.5, rms_norm(512))
        assert moved.number > first.number and not moved.declined

    def test_todays_traffic_is_no_excuse_for_a_slower_kernel(self, world, tmp_path: Path) -> None:
        artifact, _ = self.publish(world, 2.5)
        slower, published = self.publish(world, 1.5)
        assert published.declined
        today = profile(ONE)
        assert not promotion.decide_for(today, slower.table, artifact.table).promote
        assert promotion.decide_for(today, artifact.table, slower.table).promote
        assert not promotion.decide_for(today, artifact.table, artifact.table).promote
        assert not promotion.decide_for(today, replace(slower.table, entries=()), artifact.table).promote

    def test_whoever_needs_keys_makes_none(self, tmp_path: Path) -> None:
        chosen = replace(settings(tmp_path), home=tmp_path)
        with pytest.raises(KeyFileError, match=r"\./mill keys init"):
            promotion.keyring_of(chosen)
        assert not chosen.keys_dir.exists()

    @pytest.mark.parametrize("approval", ["policy", "person"])
    def test_stable_is_approved_by_policy_or_waits_for_a_person(self, world, approval: str) -> None:
        chosen, store = world
        chosen = replace(chosen, approval=approval)
        self.publish((chosen, store), 2.0)
        approved = promotion.approve_gains(store, chosen)
        assert [one.approved for one in approved] == ([True] if approval == "policy" else [])
        artifact, files = form_artifact(
            prove(FormulaBench(lambda c, w: 2.0), profile(ONE), [candidate(20)]), chosen, ENVIRONMENT
        )
        published = publish_artifacts(store, chosen, "stable", [artifact], files, profile(ONE), "search abc")
        assert bool(published.declined) == (approval == "person")

    def test_without_the_approvers_key_only_a_person_approves(self, world) -> None:
        chosen, store = world
        self.publish(world, 2.0)
        (chosen.keys_dir / "approver.pem").unlink()
        assert promotion.approve_gains(store, chosen) == []

    def test_a_release_says_what_waits_for_a_person_and_why(self, world, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen, _ = world
        self.publish(world, 2.0)
        monkeypatch.setattr(promotion, "DEFAULT_APPROVAL", ApprovalPolicy(max_ratio=1.5))
        with pytest.raises(ApprovalError, match=r"a gain of 2.* \./mill approve canary:2 --table rms_norm\.float32"):
            release_steps(chosen, steps.plain)
        monkeypatch.undo()
        assert release_steps(chosen, steps.plain).manifests
