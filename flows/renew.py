"""The renew flow: signs anew what would expire, so that hosts can tell a quiet registry from a frozen one."""

from __future__ import annotations

from prefect import flow, get_run_logger

from flows.steps import Step, tracked
from registry import expiry
from registry.repository import Repository
from tasks import object_store, promotion
from tasks.settings import Settings, from_environment


def renew_steps(settings: Settings, step: Step) -> tuple[str, tuple[str, ...]]:
    """Renews the online signatures. Content and numbers of the channels stay. Returns when the timestamp expires, and
    warnings of what only a person can renew.
    """
    with object_store.opened(settings) as opened:
        repository = Repository(opened.store, promotion.keyring_of(settings))
        step(repository.renew)()
        found = expiry.expiries(repository)
        return repository.read().timestamp.signed.expires.isoformat(), expiry.warnings(found)


@flow(name="renew")
def renew() -> str:
    """To be scheduled several times within the life of a timestamp. Returns when that expires."""
    expires, warnings = renew_steps(from_environment(), tracked)
    for warning in warnings:
        get_run_logger().warning(warning)
    return expires
