"""The renew flow: signs anew what would expire, so that hosts can tell a quiet registry from a frozen one."""

from __future__ import annotations

from prefect import flow

from flows.steps import Step, tracked
from registry.repository import Repository
from tasks import object_store, promotion
from tasks.settings import Settings, from_environment


def renew_steps(settings: Settings, step: Step) -> None:
    """Renews the online signatures. Content and numbers of the channels stay."""
    with object_store.opened(settings) as opened:
        step(Repository(opened.store, promotion.keyring_of(settings)).renew)()


@flow(name="renew")
def renew() -> None:
    """To be scheduled several times within the life of a timestamp."""
    renew_steps(from_environment(), tracked)
