"""From a search's winners to a published generation: judge again on fresh seeds and unseen shapes, sign, publish.

A winner of a search is the best of many noisy measurements. What is published is what a second, independent judgement
says of it, on shapes that no agent has seen as well.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gristmill import records
from gristmill.kernel_table import Artifact, FileRef, KernelTable
from gristmill.records import sha256_hex
from gristmill.store import ObjectStore
from gristmill.trust import APPROVER, Channel, all_files
from gristmill.workload import Workload
from kernels import catalogue, fusion_plan
from kernels.candidate import Candidate
from kernels.inputs import held_out
from kernels.profile import TrafficProfile
from kernels.verdict import Verdict
from registry.approval import Approval, approve_by_policy
from registry.failures import failed_kernels, why_failed
from registry.keys import Keyring, load_keys
from registry.promotion import (
    DEFAULT_APPROVAL,
    DEFAULT_POLICY,
    Decision,
    Judged,
    decide_approval,
    decide_table,
    form_table,
)
from registry.publication import Published, publish
from registry.repository import Repository
from tasks import canary
from tasks.errors import NoWinnerError
from tasks.journal import JournalEntry
from tasks.search_plan import NOT_RELEASED
from tasks.search_scope import PROOF, representative
from tasks.settings import POLICY, Settings

HELD_OUT_LIMIT = 6
"""Unseen workloads per operator in a second judgement."""
CANDIDATE_FILE = "candidate.json"
"""Among an artifact's sources: the candidate as a record, so that anybody can judge it again."""
NEAR_BEST = 0.85
"""Share of the best lower bound on a workload from which a candidate will do for it."""


class ProofBench(Protocol):
    """The judge as a promotion uses it."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload], *, seed: int) -> Verdict: ...

    def object_of(self, candidate: Candidate) -> bytes:
        """The shared object that was judged."""


class Traffic(Protocol):
    """What the winners of a search are judged on again."""

    def of(self, operator: str, dtype: str) -> tuple[Workload, ...]:
        """The workloads of one operator and dtype, the most time first."""


@dataclass(frozen=True)
class Proof:
    """Re-judged winners of one operator and dtype, with every file that a host or an auditor would need."""

    operator: str
    dtype: str
    judged: tuple[Judged, ...]
    files: dict[str, bytes]


def winners(
    entries: Iterable[JournalEntry], without: Collection[str] = ()
) -> dict[tuple[str, str], tuple[Candidate, ...]]:
    """Per operator and dtype the fewest candidates that are about the best wherever any of them is faster.

    About means `NEAR_BEST` of the best lower bound: every further kernel costs a second judgement, and memory
    for its packed weights on every host. Chosen greedily by the time they would serve.

    Args:
        without: digests of candidates to pass over.
    """
    bounds: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    candidates: dict[str, Candidate] = {}
    weights: dict[str, int] = {}
    for entry in entries:
        if not entry.verdict.won or entry.candidate.digest in without:
            continue
        candidate = entry.candidate
        candidates[candidate.digest] = candidate
        by_workload = bounds.setdefault((candidate.operator, candidate.domain.dtype), {})
        for timing in entry.verdict.timings:
            if timing.ratio_low > 1:
                by_workload.setdefault(timing.workload.digest, {})[candidate.digest] = timing.ratio_low
                weights[timing.workload.digest] = max(1, timing.workload.time_ns)
    return {
        key: tuple(candidates[digest] for digest in _cover(by_workload, weights, candidates))
        for key, by_workload in bounds.items()
        if by_workload
    }


def _cover(
    bounds: Mapping[str, Mapping[str, float]], weights: Mapping[str, int], candidates: Mapping[str, Candidate]
) -> list[str]:
    """Greedy set cover: the candidate that is near the best for the most time, until every workload has one."""
    near = {
        workload: {digest for digest, low in lows.items() if low >= NEAR_BEST * max(lows.values())}
        for workload, lows in bounds.items()
    }
    chosen: list[str] = []
    while near:
        served: Counter[str] = Counter()
        for workload, digests in near.items():
            for digest in digests:
                served[digest] += weights[workload]
        best = max(served, key=lambda digest: (served[digest], not candidates[digest].needs_setup, digest))
        chosen.append(best)
        near = {workload: digests for workload, digests in near.items() if best not in digests}
    return chosen


def prove(
    bench: ProofBench,
    traffic: Traffic,
    candidates: Sequence[Candidate],
    tell: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Judges the winners of one operator again, with one fresh seed and the same unseen shapes for all of them."""
    operator, dtype = candidates[0].operator, candidates[0].domain.dtype
    seed = secrets.randbits(48)
    captured = representative(traffic.of(operator, dtype), PROOF)
    rng = random.Random(seed)
    neighbours = held_out(catalogue.operator(operator), captured, rng)
    unseen = rng.sample(neighbours, min(HELD_OUT_LIMIT, len(neighbours)))
    judged: list[Judged] = []
    files: dict[str, bytes] = {}
    for candidate in candidates:
        verdict = bench.judge(candidate, (*captured, *unseen), seed=seed)
        tell(f"{operator} {dtype}: {candidate.origin.pattern} {verdict.status.value}, {verdict.duration_s:.0f} s")
        built = file_ref("kernel.so", bench.object_of(candidate), files)
        sources = tuple(file_ref(path, text.encode(), files) for path, text in sorted(candidate.files.items()))
        whole = file_ref(CANDIDATE_FILE, records.canonical_json(candidate), files)
        judged.append(Judged(candidate, verdict, built, (*sources, whole)))
    return Proof(operator, dtype, tuple(judged), files)


def form_artifact(
    proof: Proof, settings: Settings, environment: Mapping[str, str]
) -> tuple[Artifact, dict[str, bytes]]:
    """The artifact that a proof supports, and exactly the files that it names.

    Raises:
        NoWinnerError: if the second judgement left nothing above the policy's threshold.
    """
    table = form_table(proof.operator, proof.dtype, settings.hardware, proof.judged)
    if not table.entries:
        reasons = "; ".join(sorted({one.verdict.reason for one in proof.judged}))
        raise NoWinnerError(f"{proof.operator} {proof.dtype}: no gain survived the second judgement ({reasons})")
    files = dict(proof.files)
    evidence = file_ref("evidence.json", records.canonical_json([one.verdict for one in proof.judged]), files)
    artifact = Artifact(table, dict(environment), evidence, records.utc_now())
    named = {evidence.sha256} | {f.sha256 for e in table.entries for f in (e.object, *e.sources)}
    return artifact, {digest: content for digest, content in files.items() if digest in named}


def keyring_of(settings: Settings) -> Keyring:
    """This registry's keys; `./mill keys init` makes them, and nothing else but the demo does.

    Raises:
        KeyFileError: there are none, or they are damaged.
    """
    return load_keys(settings.keys_dir)


def channel_of(settings: Settings, name: str) -> Channel:
    return Channel(name, settings.fleet, settings.model, settings.hardware)


def publish_artifacts(
    store: ObjectStore,
    settings: Settings,
    channel_name: str,
    artifacts: Sequence[Artifact],
    files: Mapping[str, bytes],
    traffic: TrafficProfile,
    reason: str,
    again: bool = False,
) -> Published:
    """Publishes what passes the gate against what is current, for this traffic. Safe to repeat. What hosts cannot call
    is left out, and declined.

    Args:
        again: take kernels that failed in canary too, because a person says so.

    Raises:
        NoWinnerError: hosts can call none of it.
    """
    unreleased = {a.table.name: NOT_RELEASED for a in artifacts if fusion_plan.is_fused(a.table.operator)}
    released = [artifact for artifact in artifacts if artifact.table.name not in unreleased]
    if not released:
        raise NoWinnerError("; ".join(f"{name}: {reason}" for name, reason in unreleased.items()))
    named = {file.sha256 for artifact in released for file in all_files(artifact)}
    contents = {sha256: content for sha256, content in files.items() if sha256 in named}

    failed = {} if again else failed_in_canary(store, settings)

    def decide(new: Artifact, current: Artifact | None) -> Decision:
        why = why_failed(new.table, failed)
        if why is not None:
            return Decision(False, f"{why}; ./mill promote --again tries it once more")
        return decide_for(traffic, new.table, current.table if current else None)

    keyring, channel = keyring_of(settings), channel_of(settings, channel_name)
    approve = approve_alone if policy_approves(settings, keyring) else None
    published = publish(store, keyring, channel, released, contents, decide, reason, approve)
    return replace(published, declined={**published.declined, **unreleased})


def failed_in_canary(store: ObjectStore, settings: Settings) -> dict[str, str]:
    """Candidates and objects, by digest, that failed there: when and why. See `registry.failures`; what the watch has
    condemned and nobody has undone yet is among them.
    """
    keyring, channel = keyring_of(settings), channel_of(settings, "canary")
    repository = Repository(store, keyring)
    if not repository.exists():
        return {}
    watch = canary.remembered(store, keyring, channel)
    condemned = watch.condemned.items() if watch else ()
    now = {digest: f"it fails in canary, where it still is: {why}" for digest, why in condemned}
    return {**now, **failed_kernels(store, repository, channel)}


def policy_approves(settings: Settings, keyring: Keyring) -> bool:
    """Whether gains may reach stable without a person: so it is set, and the approver's key is here, and open."""
    return settings.approval == POLICY and keyring.is_unattended(APPROVER)


def approve_alone(new: Artifact, current: Artifact | None) -> Decision:
    """The approval policy, for `registry.publication.publish`."""
    return decide_approval(new.table, current.table if current else None, DEFAULT_APPROVAL)


def approve_gains(store: ObjectStore, settings: Settings, channel_name: str = "canary") -> list[Approval]:
    """Approves what a channel serves as far as a policy may; nothing where only a person does."""
    keyring = keyring_of(settings)
    if not policy_approves(settings, keyring):
        return []
    return approve_by_policy(store, keyring, channel_of(settings, channel_name), DEFAULT_APPROVAL)


def decide_for(traffic: TrafficProfile, new: KernelTable, current: KernelTable | None) -> Decision:
    """The registry's gate; but a table that gains less over all its ranges may gain more on what is called today.

    After a drift the current table's gains lie where no traffic is. The sampled times are of whatever served the calls,
    so ranges that current kernels serve weigh less than they would without them: hence the policy's margin.
    """
    decision = decide_table(new, current, DEFAULT_POLICY)
    if decision.promote or current is None or not decide_table(new, None, DEFAULT_POLICY).promote:
        return decision
    if {(e.domain, e.object.sha256) for e in new.entries} == {(e.domain, e.object.sha256) for e in current.entries}:
        return decision
    gain = _expected_ns(traffic, current) / max(1.0, _expected_ns(traffic, new))
    if not gain > DEFAULT_POLICY.min_ratio_low:
        return decision
    return Decision(True, f"today's traffic runs {gain:.3f} times as fast as with what is current")


def _expected_ns(traffic: TrafficProfile, table: KernelTable) -> float:
    """Time of the table's operator in this traffic if each call gained what is proven for its range, at the least."""
    return sum(
        w.time_ns / next((float(e.ratio_low) for e in table.entries if e.domain.admits(w)), 1.0)
        for w in traffic.of(table.operator, table.dtype)
    )


def file_ref(path: str, content: bytes, files: dict[str, bytes]) -> FileRef:
    """Adds the content to an artifact's files, by digest, and says how the artifact names it."""
    digest = sha256_hex(content)
    files[digest] = content
    return FileRef(path, digest, len(content))
