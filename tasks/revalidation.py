"""Whether what is served still holds: proofs expire with what they were made on, and some are repeated each night.

What no longer holds is revoked: a manifest whose proof has expired (the same kernel may be proven anew), an object that
is not faster any more or does not run, a candidate that is wrong or cheats. Every judgement is kept, synced, before
anything follows from it: whoever is killed in between goes on from there, and judges nothing twice in a night.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gristmill import limits, records, revocation, store, trust, tuned_table
from gristmill.errors import GristmillError
from gristmill.kernel_table import Artifact, TableEntry
from gristmill.records import sha256_hex
from gristmill.store import ObjectStore
from gristmill.workload import Workload
from kernels.candidate import Candidate
from kernels.profile import TrafficProfile
from kernels.verdict import Status, Verdict
from registry.promotion import DEFAULT_POLICY
from registry.publication import read_manifest
from registry.repository import Repository
from tasks import bench, fleet_changes
from tasks.errors import RevalidationError
from tasks.journal import read as read_journal
from tasks.promotion import CANDIDATE_FILE, keyring_of
from tasks.proving import Told
from tasks.record_lines import RecordLines
from tasks.record_lines import read as read_lines
from tasks.settings import Settings

NIGHT_H = 20.0
"""A kernel that was judged again so short a time ago is not judged again."""
WRONG = (Status.INCORRECT, Status.CHEATED)
"""One judgement convicts; anything else that fails is judged a second time first."""


class Standing(StrEnum):
    """What a new judgement says of a kernel that is served."""

    HOLDS = "holds"
    UNSURE = "unsure"
    """The interval neither proves nor excludes a gain."""
    WRONG = "wrong"
    GONE = "gone"
    """It gains nothing any more, or does not run."""


@dataclass(frozen=True)
class Serving:
    """One manifest that hosts of this fleet and model are told to run."""

    manifest: str
    artifact: Artifact
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Due:
    """One kernel to judge again."""

    manifest: str
    table: str
    entries: tuple[TableEntry, ...]
    """Where it serves; all of one candidate."""

    @property
    def candidate(self) -> str:
        return self.entries[0].candidate


@dataclass(frozen=True)
class Rejudged:
    """One line of the record: a kernel that is served was judged again."""

    judged_utc: str
    manifest: str
    table: str
    candidate: str
    object: str
    standing: Standing
    reason: str


@dataclass(frozen=True)
class Demotion:
    """What is to be revoked, and why."""

    digest: str
    table: str
    reason: str


class Bench(Protocol):
    """The judge, as a second judgement uses it."""

    def judge(self, candidate: Candidate, workloads: Sequence[Workload]) -> Verdict: ...


def serving(object_store: ObjectStore, settings: Settings) -> tuple[Serving, ...]:
    """What the channels of this fleet and model serve, on all hardware, but for what is revoked already."""
    repository = Repository(object_store, keyring_of(settings))
    if not repository.exists():
        return ()
    revoked = repository.revoked()
    channels: dict[str, list[str]] = {}
    for channel, entry in repository.live().states.items():
        if (channel.fleet, channel.model) == (settings.fleet, settings.model):
            for manifest in revocation.not_revoked(entry.index.tables, revoked).values():
                channels.setdefault(manifest, []).append(channel.name)
    found = []
    for manifest, names in sorted(channels.items()):
        artifact = read_manifest(object_store, manifest)
        left = revocation.remainder(artifact.table, revoked)
        if left.entries:
            found.append(Serving(manifest, replace(artifact, table=left), tuple(sorted(names))))
    return tuple(found)


def expired(
    object_store: ObjectStore, settings: Settings, served: Sequence[Serving], gone_after_days: float, now: datetime
) -> tuple[Demotion, ...]:
    """The manifests whose proofs were made on what no host has any more. Without a profile nothing is known, and
    nothing expires.
    """
    newest = {
        hardware: fleet_changes.newest_profile(object_store, settings, settings.model, hardware)
        for hardware in {one.artifact.table.hardware for one in served}
    }
    found = []
    for one in served:
        profile = newest[one.artifact.table.hardware]
        why = why_expired(one.artifact, profile, gone_after_days, now) if profile else ""
        if why:
            found.append(Demotion(one.manifest, one.artifact.table.name, limits.shortened(f"re-validation: {why}")))
    return tuple(found)


def why_expired(artifact: Artifact, newest: TrafficProfile, gone_after_days: float, now: datetime) -> str:
    """What the proof rests on that hosts do not have, as the newest profile of their hardware tells; else empty."""
    seen = datetime.fromisoformat(newest.window_end_utc)
    if now - seen > timedelta(days=gone_after_days):
        return f"no host with {artifact.table.hardware} has served since {seen.date().isoformat()}"
    run = fleet_changes.engine_versions(newest.versions)
    proven = fleet_changes.engine_versions(artifact.environment)
    for package in sorted(run.keys() & proven.keys()):
        if not {_public(one) for one in proven[package]} & {_public(one) for one in run[package]}:
            was, now_runs = ", ".join(sorted(proven[package])), ", ".join(sorted(run[package]))
            return f"proven with {package} {was}, and hosts run {now_runs}"
    return ""


def due(settings: Settings, served: Sequence[Serving], sample: int, now: datetime) -> tuple[Due, ...]:
    """So many kernels for this hardware, those first that were judged longest ago, at their publication or since."""
    last = {(one.manifest, one.candidate): (one.judged_utc, place) for place, one in enumerate(record(settings))}
    waiting = []
    for one in served:
        if one.artifact.table.hardware != settings.hardware or one.artifact.table.operator == tuned_table.OPERATOR:
            continue  # an engine's own kernels are measured in the engine, not by the judge
        for kernel in _kernels(one):
            judged_utc, place = last.get((kernel.manifest, kernel.candidate), ("", -1))
            if not judged_utc or not _is_of_tonight(judged_utc, now):
                since = judged_utc or one.artifact.created_utc
                waiting.append((since, place, kernel.manifest, kernel.candidate, kernel))
    return tuple(kernel for *_, kernel in sorted(waiting, key=lambda found: found[:4])[:sample])


def judge_again(
    settings: Settings,
    object_store: ObjectStore,
    kernels: Sequence[Due],
    proof_s: float,
    tell: Told = lambda text: None,
) -> tuple[Rejudged, ...]:
    """Judges these kernels, each in the ranges that it serves, on the workloads that proved it and fresh values."""
    if not kernels:
        return ()
    with bench.proof_bench(settings, proof_s) as judges:
        return tuple(rejudge(judges, settings, object_store, kernels, tell))


def rejudge(
    judges: Bench, settings: Settings, object_store: ObjectStore, kernels: Iterable[Due], tell: Told
) -> Iterator[Rejudged]:
    """One at a time; each is on record before the next begins. One whose sources are lost is told and left."""
    lines = RecordLines(record_path(settings), Rejudged)
    for kernel in kernels:
        try:
            candidate = _candidate(settings, object_store, kernel)
            workloads = _workloads(object_store, kernel)
        except GristmillError as error:
            tell(f"{kernel.table}: {records.short(kernel.candidate)} cannot be judged again: {error}")
            continue
        verdict = judges.judge(candidate, workloads)
        standing, reason = standing_of(verdict)
        if standing is Standing.GONE:
            standing, reason = standing_of(judges.judge(candidate, workloads))
        one = Rejudged(
            records.utc_now(),
            kernel.manifest,
            kernel.table,
            kernel.candidate,
            kernel.entries[0].object.sha256,
            standing,
            reason,
        )
        lines.append(one)
        tell(f"{kernel.table}: {records.short(kernel.candidate)} {standing.value}: {reason}")
        yield one


def standing_of(verdict: Verdict, least: float = DEFAULT_POLICY.min_ratio_low) -> tuple[Standing, str]:
    """What a verdict on the ranges that a kernel serves says of it, and why.

    It has lost its gain where the upper end of an interval lies below the least gain that may be published: noise that
    widens an interval takes nothing from anybody.
    """
    if verdict.status in WRONG:
        return Standing.WRONG, f"the judge says {verdict.status.value}: {verdict.reason}"
    if verdict.status not in (Status.FASTER, Status.SLOWER) or not verdict.timings:
        return Standing.GONE, f"the judge says {verdict.status.value}: {verdict.reason}"
    worst = min(verdict.timings, key=lambda timing: timing.ratio_high)
    if worst.ratio_high < least:
        return Standing.GONE, f"{worst.ratio:.3f}x on {worst.workload.label}, {worst.ratio_high:.3f}x at the most"
    lowest = min(verdict.timings, key=lambda timing: timing.ratio_low)
    told = f"at least {lowest.ratio_low:.3f}x on {lowest.workload.label}"
    return (Standing.HOLDS if lowest.ratio_low > 1 else Standing.UNSURE), told


def failing(settings: Settings, served: Sequence[Serving], now: datetime) -> tuple[Demotion, ...]:
    """What the judgements of this night say must go and is still served, those of a life that was cut off included."""
    latest = {(one.manifest, one.candidate): one for one in record(settings)}
    found = []
    for one in served:
        for kernel in _kernels(one):
            judged = latest.get((kernel.manifest, kernel.candidate))
            if judged is None or not _is_of_tonight(judged.judged_utc, now):
                continue
            digest = {Standing.WRONG: judged.candidate, Standing.GONE: judged.object}.get(judged.standing)
            if digest:
                found.append(Demotion(digest, kernel.table, limits.shortened(f"re-validation: {judged.reason}")))
    return tuple({one.digest: one for one in found}.values())


def record_path(settings: Settings) -> Path:
    return settings.home / "revalidations.jsonl"


def record(settings: Settings) -> list[Rejudged]:
    """All that was judged again from this home, in order."""
    return read_lines(record_path(settings), Rejudged)


def _public(version: str) -> str:
    """A version without its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


def _is_of_tonight(judged_utc: str, now: datetime) -> bool:
    return now - datetime.fromisoformat(judged_utc) <= timedelta(hours=NIGHT_H)


def _kernels(one: Serving) -> Iterator[Due]:
    by_candidate: dict[str, list[TableEntry]] = {}
    for entry in one.artifact.table.entries:
        by_candidate.setdefault(entry.candidate, []).append(entry)
    for entries in by_candidate.values():
        yield Due(one.manifest, one.artifact.table.name, tuple(entries))


def _candidate(settings: Settings, object_store: ObjectStore, kernel: Due) -> Candidate:
    """From the artifact; from a journal of this home where the artifact is from before it held candidates."""
    for source in kernel.entries[0].sources:
        if source.path == CANDIDATE_FILE:
            return records.parse(Candidate, _blob(object_store, source.sha256), source.path)
    for path in settings.searches_dir.glob("*/verdicts.jsonl"):
        for entry in read_journal(path):
            if entry.candidate.digest == kernel.candidate:
                return entry.candidate
    raise RevalidationError(f"its artifact holds no {CANDIDATE_FILE}, and no search of this home knows it")


def _workloads(object_store: ObjectStore, kernel: Due) -> tuple[Workload, ...]:
    """Those of the evidence that its entries claim."""
    evidence = read_manifest(object_store, kernel.manifest).evidence
    content = json.loads(_blob(object_store, evidence.sha256))
    verdicts = [records.decode(Verdict, one, evidence.path) for one in content]
    found: Mapping[str, Workload] = {
        timing.workload.digest: timing.workload
        for verdict in verdicts
        if verdict.candidate == kernel.candidate
        for timing in verdict.timings
        if any(entry.domain.admits(timing.workload) for entry in kernel.entries)
    }
    if not found:
        raise RevalidationError("its evidence names no workload in the ranges that it serves")
    return tuple(found.values())


def _blob(object_store: ObjectStore, sha256: str) -> bytes:
    content = store.read(object_store, trust.blob_key(sha256), limits.MAX_BLOB_BYTES)
    if sha256_hex(content) != sha256:
        raise RevalidationError(f"blob {records.short(sha256)} was tampered with; restore the object")
    return content
