"""What is served and fails goes, for the right reason; a night that was killed goes on and repeats nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.revalidate import Revalidated, revalidate_steps
from gristmill.directory_store import DirectoryStore
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.verdict import Status, Verdict
from registry.repository import Repository
from tasks import bench, promotion, proving, revalidation, traffic
from tasks.revalidation import Standing, due, failing, record, rejudge, serving, standing_of, why_expired
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

ONE, SILU = rms_norm(1), silu_and_mul(1)
NOW = datetime.now(UTC)
TODAY = NOW.isoformat()


@dataclass
class Night:
    """A registry whose canary serves two operators, and a judge that says what it is told to."""

    folder: Path
    ratio: float = 2.0
    status: Status | None = None
    judged: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    dies_before: str = ""

    def __post_init__(self) -> None:
        self.settings = settings(self.folder / "home", self.folder / "store")
        shutil.copytree(shared_keys(), self.settings.keys_dir)
        self.store = DirectoryStore(self.folder / "store")
        proofs = [
            (promotion.prove(FormulaBench(lambda c, w: 2.0), profile(ONE, SILU), [kernel]), {"torch": "2.12.0+cpu"})
            for kernel in (candidate(1), candidate(2, "silu_and_mul"))
        ]
        artifacts, files = proving.artifacts_of(proofs, self.settings, self.told.append, {"transformers": "5.24.0"})
        promotion.publish_artifacts(
            self.store, self.settings, "canary", artifacts, files, profile(ONE, SILU), "search abc"
        )

    def traffic(self, end: str = TODAY, **versions: str) -> None:
        kept = replace(profile(ONE, end=end), versions=versions)
        traffic.keep_profile(self.store, self.settings, kept)

    def judge(self, one: Candidate, workloads: Sequence[Workload]) -> Verdict:
        self.judged.append(one.digest)
        made = verdict(one, *(timing(w, self.ratio, spread=0.004) for w in workloads))
        return replace(made, status=self.status) if self.status else made

    def run(self, sample: int = 9, **options: Any) -> Revalidated:
        def step(function: Callable[..., Any]) -> Callable[..., Any]:
            if function.__name__ == self.dies_before:
                raise KeyboardInterrupt
            if function is revalidation.judge_again:
                return lambda chosen, store, kernels, proof_s, tell: tuple(rejudge(self, chosen, store, kernels, tell))
            return function

        return revalidate_steps(self.settings, step, sample=sample, tell=self.told.append, **options)

    @property
    def serves(self) -> set[str]:
        """Operators of which hosts have any kernel."""
        return {one.artifact.table.operator for one in serving(self.store, self.settings)}

    @property
    def revoked(self) -> dict[str, str]:
        return Repository(self.store, promotion.keyring_of(self.settings)).revoked().reasons


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_what_holds_stays_and_is_not_judged_twice_in_a_night(night: Night) -> None:
    done = night.run(sample=1)
    assert (done.served, len(done.rejudged), done.demotions) == (2, 1, ())
    assert done.rejudged[0].standing is Standing.HOLDS
    night.run(sample=1)
    assert len(night.judged) == len(set(night.judged)) == 2, "the other one"
    assert night.run(sample=9).rejudged == () and night.serves == {"rms_norm", "silu_and_mul"}
    later = night.run(sample=1, now=lambda: NOW + timedelta(days=1))
    assert later.rejudged[0].candidate == night.judged[0], "the one that was judged longest ago"


def test_an_artifact_holds_all_that_a_new_judgement_needs(night: Night) -> None:
    """Workloads within what its entries claim, the candidate from its own files: nothing of the home that made it."""
    assert {one.candidate for one in night.run().rejudged} == {candidate(1).digest, candidate(2, "silu_and_mul").digest}
    assert not night.settings.searches_dir.exists()


@pytest.mark.parametrize(
    ("ratio", "status", "standing", "judgements"),
    [
        (1.0, None, Standing.GONE, 2),
        (2.0, Status.INCORRECT, Standing.WRONG, 1),
        (2.0, Status.CHEATED, Standing.WRONG, 1),
        (2.0, Status.CRASHED, Standing.GONE, 2),
    ],
)
def test_what_fails_is_revoked_and_only_that(
    night: Night, ratio: float, status: Status | None, standing: Standing, judgements: int
) -> None:
    night.ratio, night.status = ratio, status
    done = night.run(sample=1)
    (one,) = done.rejudged
    assert one.standing is standing and len(night.judged) == judgements
    (demotion,) = done.demotions
    assert demotion.digest == (one.candidate if standing is Standing.WRONG else one.object)
    assert night.revoked == {demotion.digest: demotion.reason} and len(night.serves) == 1
    assert night.run(sample=0).demotions == ()


def test_a_wide_interval_takes_nothing_from_anybody() -> None:
    of = candidate(1)
    assert standing_of(verdict(of, timing(ONE, 1.0, spread=0.1)))[0] is Standing.UNSURE
    assert standing_of(verdict(of, timing(ONE, 1.0, spread=0.01)))[0] is Standing.GONE
    assert standing_of(verdict(of, timing(ONE, 1.3, spread=0.1)))[0] is Standing.HOLDS
    assert standing_of(verdict(of))[0] is Standing.GONE, "it does not build any more"


@pytest.mark.parametrize("step", ["serving", "expired", "due", "judge_again", "failing", "revoke"])
def test_killed_before_any_step_the_next_run_does_the_rest(night: Night, step: str) -> None:
    night.ratio = 1.0
    night.dies_before = step
    with pytest.raises(KeyboardInterrupt):
        night.run()
    judged = len(night.judged)
    assert night.revoked == {}
    night.dies_before = ""
    night.run()
    assert night.serves == set() and len(night.revoked) == 2
    assert len(night.judged) == 4 and judged in (0, 4), "each twice, in whichever life"


def test_killed_between_two_judgements_the_first_is_kept(night: Night) -> None:
    served = serving(night.store, night.settings)
    kernels = due(night.settings, served, 9, NOW)
    judgements = rejudge(night, night.settings, night.store, kernels, night.told.append)
    first = next(judgements)
    judgements.close()
    night.run()
    assert night.judged == [first.candidate, next(one.candidate for one in kernels if one.candidate != first.candidate)]
    assert [one.candidate for one in record(night.settings)] == night.judged


def test_expiry(night: Night) -> None:
    night.traffic(torch="2.12.0", transformers="5.24.0")
    assert night.run(sample=0).demotions == (), "the build of torch is none of its versions"
    night.traffic(end=(NOW + timedelta(hours=1)).isoformat(), torch="2.12.0, 2.13.0", transformers="5.24.0")
    assert night.run(sample=0).demotions == (), "some hosts still have it"
    night.traffic(end=(NOW + timedelta(hours=2)).isoformat(), torch="2.13.0", transformers="5.24.0")
    shown = night.run(sample=9, demote=False)
    assert len(shown.demotions) == 2 and night.serves == {"rms_norm", "silu_and_mul"} and night.judged == []
    done = night.run()
    assert done.demotions == shown.demotions and night.serves == set()
    assert set(night.revoked.values()) == {"re-validation: proven with torch 2.12.0+cpu, and hosts run 2.13.0"}


def test_the_engine_expires_too_and_a_proof_can_be_made_anew(night: Night) -> None:
    night.traffic(torch="2.12.0", transformers="5.25.0")
    night.run(sample=0)
    assert all("transformers 5.24.0, and hosts run 5.25.0" in why for why in night.revoked.values())
    proof = promotion.prove(FormulaBench(lambda c, w: 2.0), profile(ONE), [candidate(1)])
    artifacts, files = proving.artifacts_of([(proof, {})], night.settings, print, {"transformers": "5.25.0"})
    published = promotion.publish_artifacts(
        night.store, night.settings, "canary", artifacts, files, profile(ONE), "search def"
    )
    assert not published.declined and night.serves == {"rms_norm"}


def test_a_driver_and_hardware_that_nobody_has_seen_for_long(night: Night) -> None:
    (one, _) = serving(night.store, night.settings)
    on_gpu = replace(one.artifact, environment={"driver": "575.51"})
    same, other = (replace(profile(ONE, end=TODAY), versions={"driver": driver}) for driver in ("575.51", "580.65"))
    assert why_expired(on_gpu, same, 30.0, NOW) == ""
    assert why_expired(on_gpu, other, 30.0, NOW) == "proven with driver 575.51, and hosts run 580.65"
    late = NOW + timedelta(days=31)
    assert why_expired(on_gpu, same, 30.0, late) == f"no host with {HARDWARE} has served since {NOW.date().isoformat()}"
    assert night.run(sample=0).demotions == (), "without a profile nothing is known"


def test_an_artifact_without_its_candidate_is_told_and_left(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revalidation, "CANDIDATE_FILE", "other.json")
    assert night.run().rejudged == ()
    assert sum("cannot be judged again" in text for text in night.told) == 2 and night.serves


def test_nothing_to_do_opens_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "proof_bench", lambda *_: pytest.fail("no judge was needed"))
    chosen = settings(tmp_path / "home", tmp_path / "store")
    shutil.copytree(shared_keys(), chosen.keys_dir)
    (tmp_path / "store").mkdir()
    assert revalidate_steps(chosen, lambda function: function) == Revalidated(0, (), ())
    assert failing(chosen, (), NOW) == ()
