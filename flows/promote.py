"""The promote flow: judge the winners again, form tables, sign, publish to a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect import flow

from flows import parameters
from flows.steps import Step, table_artifact, tracked
from gristmill import records
from gristmill.kernel_table import Artifact
from registry.approval import failing
from registry.errors import ApprovalError
from registry.publication import Published, move
from registry.repository import Repository
from tasks import canary, compilation, cycle_report, journal, mlflow_mirror, object_store, promotion, proving, results
from tasks.errors import NoWinnerError
from tasks.hardware_choice import for_each
from tasks.journal import JournalEntry
from tasks.proving import Told
from tasks.settings import Settings, from_environment

PROOF_S = 6.0
"""Seconds of measuring per workload and winner."""


@dataclass(frozen=True)
class Turn:
    """What came of a search, or why there was none."""

    compiled: bool
    generation: int | None
    """Published generation; None if nothing was."""
    reason: str


def promote_steps(
    settings: Settings,
    step: Step,
    *,
    channel: str,
    search_id: str = "",
    proof_s: float = PROOF_S,
    again: bool = False,
    tell: Told = lambda text: None,
) -> tuple[Published, tuple[Artifact, ...]]:
    """Promotes what a search found; only what the second judgement confirms is published. What failed in canary is
    left out, unless a person wants it tried `again`: the loop must not push it round and round.

    Raises:
        NoWinnerError: nothing of the search is proven faster, now or then, or all of that has failed in canary.
    """
    search = step(results.load)(settings, search_id)
    entries = journal.read(compilation.journal_path(settings, search.result.search_id))
    failed: dict[str, str] = {}
    if not again:
        with object_store.opened(settings) as opened:
            failed = step(promotion.failed_in_canary)(opened.store, settings)
    found = promotion.winners(entries, failed)
    winners = {key: candidates for key, candidates in found.items() if search.of(*key)}
    for operator, dtype in sorted(found.keys() - winners.keys()):
        tell(f"{operator} {dtype}: passed over, because search {search.result.search_id} was last run without it")
    if not winners:
        raise _no_winner(search.result.search_id, entries, failed)
    proofs = step(proving.prove_winners)(settings, search, winners, proof_s, tell)
    artifacts, files = proving.artifacts_of(proofs, settings, tell, search.profile.versions)
    with object_store.opened(settings) as opened:
        tell(f"signing and publishing {len(artifacts)} tables")
        reason = f"search {search.result.search_id}"
        published = step(promotion.publish_artifacts)(
            opened.store, settings, channel, artifacts, files, search.profile, reason, again
        )
    step(cycle_report.keep_promotion)(settings, search.result.search_id, published, artifacts)
    if step is tracked:
        table_artifact("promotion-decision", decision_table(published, artifacts), reason)
    return published, artifacts


def _no_winner(search_id: str, entries: Sequence[JournalEntry], failed: Mapping[str, str]) -> NoWinnerError:
    won = (one.candidate.digest for one in entries if one.verdict.won)
    why = next((failed[digest] for digest in won if digest in failed), None)
    if why is None:
        return NoWinnerError(f"search {search_id} proved no candidate faster; search longer, or leave it")
    return NoWinnerError(
        f"search {search_id}: what it proved faster was tried before ({why}); search longer, or try it once more: "
        "./mill promote --again"
    )


def publish_winners(
    settings: Settings, step: Step, *, channel: str, search_id: str, tell: Told = lambda text: None
) -> Turn:
    """Promotes what a search of the loop found. To have found nothing that may go out is an outcome."""
    try:
        published, artifacts = promote_steps(settings, step, channel=channel, search_id=search_id, tell=tell)
    except NoWinnerError as error:
        return Turn(True, None, str(error))
    if len(published.declined) == len(artifacts):
        return Turn(True, None, "; ".join(f"{name} stays: {why}" for name, why in published.declined.items()))
    return Turn(True, published.number, f"generation {published.number} of {channel}")


@flow(name="promote")
def promote(
    channel: parameters.Channel = "canary",
    search_id: parameters.SearchId = "",
    proof_s: parameters.ProofS = PROOF_S,
    again: parameters.Again = False,
) -> int:
    """Publishes the winners of the last search, or of one given by id; those that failed in canary only `again`.
    Returns the generation's number.
    """
    settings = from_environment()
    published, artifacts = promote_steps(
        settings, tracked, channel=channel, search_id=search_id, proof_s=proof_s, again=again
    )
    table_artifact("promoted-ranges", range_rows(artifacts), f"Generation {published.number} of {channel}")
    tracked(mlflow_mirror.keep_mirror)(settings)
    return published.number


def release_steps(
    settings: Settings, step: Step, judged: str = "", *, by_person: bool = True, despite_failure: bool = False
) -> Published:
    """Makes stable serve what canary serves, once all of it is approved; running it again changes nothing.

    Args:
        judged: only if canary still serves this state; empty: whichever it serves.
        by_person: where none looks, stable must not lose a table by it.
        despite_failure: although the watch has found it to fail.

    Raises:
        ApprovalError: the policy leaves something to a person, and none has approved it; or the watch has found it to
            fail; or stable would lose a table.
        SupersededError: canary no longer serves what was judged.
    """
    with object_store.opened(settings) as opened:
        keyring = step(promotion.keyring_of)(settings)
        source = promotion.channel_of(settings, "canary")
        watch = step(canary.remembered)(opened.store, keyring, source)
        current = Repository(opened.store, keyring).current(source)
        if watch and watch.failures and not despite_failure and current:
            raise failing(source, current, watch.failures)
        approvals = step(promotion.approve_gains)(opened.store, settings)
        waiting = next((one for one in approvals if not one.approved), None)
        if waiting is not None:
            named = f"canary:{current.index.number}" if current else "canary"
            raise ApprovalError(
                f"{waiting.table}: {waiting.reason}; look at it, then ./mill approve {named} --table {waiting.table}"
            )
        return step(move)(opened.store, keyring, source, "stable", judged, by_person)


@flow(name="release")
def release(hardware: parameters.Hardware = "") -> dict[str, int]:
    """Moves canary to stable, approving what the policy lets pass. Returns stable's numbers, by hardware key."""
    settings = from_environment()
    outcomes = for_each(settings, hardware, lambda one: release_steps(one, tracked).number)
    tracked(mlflow_mirror.keep_mirror)(settings)
    return outcomes.whole()


def decision_table(published: Published, artifacts: Sequence[Artifact]) -> list[dict[str, str]]:
    """What was decided about each table and why, for an artifact."""
    return [
        {
            "table": row.table,
            "decision": row.decision,
            "reason": row.reason,
            "ranges": str(row.ranges),
            "at least": f"{row.ratio_low:.2f}x",
        }
        for row in cycle_report.decisions_of(published, artifacts)
    ]


def range_rows(artifacts: Sequence[Artifact]) -> list[dict[str, str]]:
    """The published ranges as a table, for artifacts and terminals."""
    return [
        {
            "operator": f"{artifact.table.operator} {artifact.table.dtype}",
            "range": ", ".join(
                f"{r.name} {r.low}" + (f" to {r.high}" if r.high != r.low else "") for r in entry.domain.ranges
            ),
            "ratio": f"{float(entry.ratio):.2f}x",
            "at least": f"{float(entry.ratio_low):.2f}x",
            "candidate": records.short(entry.candidate),
        }
        for artifact in artifacts
        for entry in artifact.table.entries
    ]
