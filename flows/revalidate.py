"""The revalidate flow: what was proven on what is gone expires, a sample is judged again, what fails is revoked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from prefect import flow

from flows import parameters
from flows.steps import Step, table_artifact, tracked
from gristmill import records
from registry.revocation import revoke
from tasks import mlflow_mirror, object_store, revalidation
from tasks.promotion import keyring_of
from tasks.proving import Told
from tasks.revalidation import Demotion, Rejudged
from tasks.settings import Settings, from_environment

SAMPLE = 4
GONE_AFTER_DAYS = 30.0
PROOF_S = 6.0


@dataclass(frozen=True)
class Revalidated:
    """What one night found, and took back."""

    served: int
    """Manifests that hosts are told to run."""
    rejudged: tuple[Rejudged, ...]
    demotions: tuple[Demotion, ...]
    """What is to go; it was revoked if that was asked for."""


def revalidate_steps(
    settings: Settings,
    step: Step,
    *,
    sample: int = SAMPLE,
    gone_after_days: float = GONE_AFTER_DAYS,
    proof_s: float = PROOF_S,
    demote: bool = True,
    tell: Told = lambda text: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Revalidated:
    """Killed anywhere it goes on from there: a judgement of this night is kept, and revoking again changes nothing."""
    with object_store.opened(settings) as opened:
        served = step(revalidation.serving)(opened.store, settings)
        gone = step(revalidation.expired)(opened.store, settings, served, gone_after_days, now())
        expired = {one.digest for one in gone}
        left = tuple(one for one in served if one.manifest not in expired)
        due = step(revalidation.due)(settings, left, sample, now())
        rejudged = step(revalidation.judge_again)(settings, opened.store, due, proof_s, tell)
        demotions = (*gone, *step(revalidation.failing)(settings, left, now()))
        for one in demotions:
            tell(f"{one.table}: {one.reason}")
            if demote:
                step(revoke)(opened.store, step(keyring_of)(settings), one.digest, one.reason)
    return Revalidated(len(served), rejudged, demotions)


@flow(name="revalidate")
def revalidate(
    sample: parameters.Sample = SAMPLE,
    gone_after_days: parameters.GoneAfterDays = GONE_AFTER_DAYS,
    proof_s: parameters.ProofS = PROOF_S,
    demote: parameters.Demote = True,
) -> str:
    """Looks at all that is served, judges some of it again, and revokes what holds no longer. Returns the outcome."""
    settings = from_environment()
    done = revalidate_steps(
        settings, tracked, sample=sample, gone_after_days=gone_after_days, proof_s=proof_s, demote=demote
    )
    table_artifact("revalidated-kernels", rejudged_rows(done), summary(done, demote))
    if done.demotions and demote:
        tracked(mlflow_mirror.keep_mirror)(settings)
    return summary(done, demote)


def summary(done: Revalidated, demote: bool) -> str:
    """The outcome in one line."""
    what = "revoked" if demote else "to be revoked"
    told = "".join(f"; {what}: {one.table}, {one.reason}" for one in done.demotions)
    return f"{done.served} tables are served, {len(done.rejudged)} kernels were judged again{told}"


def rejudged_rows(done: Revalidated) -> list[dict[str, str]]:
    """The judgements as a table, for artifacts and terminals."""
    return [
        {
            "table": one.table,
            "candidate": records.short(one.candidate),
            "standing": one.standing.value,
            "reason": one.reason,
        }
        for one in done.rejudged
    ]
