"""The rollback flow: a channel serves what it served before. One trigger, and hosts follow at their next poll."""

from __future__ import annotations

from prefect import flow

from flows import parameters
from flows.steps import Step, tracked
from registry.publication import Published
from registry.rollback import roll_back
from tasks import mlflow_mirror, object_store
from tasks.hardware_choice import for_each
from tasks.promotion import channel_of, keyring_of
from tasks.settings import Settings, from_environment


def rollback_steps(
    settings: Settings, channel: str, to: int | None, step: Step, judged: str = "", reason: str = ""
) -> Published:
    """Publishes the earlier state as a higher version. Again, it goes one state further back, unless `to` is given;
    with `judged`, only if that state is still what is current.
    """
    with object_store.opened(settings) as opened:
        keyring = step(keyring_of)(settings)
        return step(roll_back)(opened.store, keyring, channel_of(settings, channel), to, judged, reason)


@flow(name="rollback")
def rollback(
    channel: parameters.Channel = "stable",
    to: parameters.StateNumber = None,
    hardware: parameters.Hardware = "",
) -> dict[str, int]:
    """Rolls a channel back: to the state before the current one, or to a numbered one (0: no kernels at all). Returns
    the numbers that it is at, by hardware key.
    """
    settings = from_environment()
    outcomes = for_each(settings, hardware, lambda one: rollback_steps(one, channel, to, tracked).number)
    tracked(mlflow_mirror.keep_mirror)(settings)
    return outcomes.whole()
