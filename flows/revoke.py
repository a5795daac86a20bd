"""The revoke flow: a kernel is taken from every host at its next poll, and never loaded again."""

from __future__ import annotations

from prefect import flow

from flows import parameters
from flows.steps import Step, tracked
from registry.revocation import Revoked, revoke
from tasks import mlflow_mirror, object_store
from tasks.promotion import keyring_of
from tasks.settings import Settings, from_environment


def revoke_steps(settings: Settings, step: Step, *, digest: str, reason: str) -> Revoked:
    """Revokes a manifest, an object or a candidate in all channels of all fleets; again, it changes nothing."""
    with object_store.opened(settings) as opened:
        keyring = step(keyring_of)(settings)
        return step(revoke)(opened.store, keyring, digest, reason)


@flow(name="revoke")
def revoke_kernel(digest: parameters.Digest, reason: parameters.Reason) -> str:
    """Revokes by digest, or its first 12 digits or more. Returns the whole digest."""
    settings = from_environment()
    revoked = revoke_steps(settings, tracked, digest=digest, reason=reason)
    tracked(mlflow_mirror.keep_mirror)(settings)
    return revoked.digest
