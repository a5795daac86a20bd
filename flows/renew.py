"""The renew flow: signs anew what would expire, so that hosts can tell a quiet registry from a frozen one."""

from __future__ import annotations

from prefect import flow

from flows.steps import Step, tracked
from registry.repository import Repository
from tasks import object_store, promotion
from tasks.settings import Settings, from_environment


def renew_steps(settings: Settings, step: Step) -> str:
    """Renews the online signatures. Content and numbers of the channels stay. Returns when the timestamp expires."""
    with object_store.opened(settings) as opened:
        repository = Repository(opened.store, promotion.keyring_of(settings))
        step(repository.renew)()
        return repository.read().timestamp.signed.expires.isoformat()


@flow(name="renew")
def renew() -> str:
    """To be scheduled several times within the life of a timestamp. Returns when that expires."""
    return renew_steps(from_environment(), tracked)
