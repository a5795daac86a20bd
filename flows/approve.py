"""The approve flow: a person's trigger is the approver's signature, without which no host of stable takes a table."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import flow

from flows import parameters
from flows.promote import release_steps
from flows.steps import Step, table_artifact, tracked
from gristmill import records
from gristmill.store import ObjectStore
from gristmill.trust import CHANNELS
from registry.approval import Approval, approve, superseded
from registry.entry import Entry
from registry.keys import Keyring
from registry.publication import Published
from registry.repository import Repository
from registry.states import find_state
from tasks import canary, mlflow_mirror, object_store
from tasks.hardware_choice import for_each
from tasks.promotion import channel_of, keyring_of
from tasks.settings import Settings, from_environment


@dataclass(frozen=True)
class Approved:
    """What a person has approved, and what stable serves since, if it was to be released."""

    channel: str
    number: int
    """Of the state that was approved; 0 if the channel serves nothing yet."""
    approvals: tuple[Approval, ...]
    released: Published | None = None


def approve_steps(
    settings: Settings,
    step: Step,
    *,
    state: str = "canary",
    table: str = "",
    release: bool = False,
    despite_failure: bool = False,
) -> Approved:
    """Approves one table of a state, or all that it serves; running it again changes nothing.

    Args:
        state: what was looked at, by name (`canary:12`); a channel is whatever it serves at this moment.
        release: then make stable serve it, and nothing that came after it.
        despite_failure: although the watch has found it to fail.

    Raises:
        StateNameError: there is no such state.
        SupersededError: it is not current. Nothing was signed.
        ApprovalError: it serves no such table, or that failed; or it may not be released.
    """
    with object_store.opened(settings) as opened:
        keyring = step(keyring_of)(settings)
        name, looked_at = step(current_state)(opened.store, keyring, settings, state)
        channel = channel_of(settings, name)
        watch = step(canary.remembered)(opened.store, keyring, channel) if name == "canary" else None
        failures = watch.failures if watch else {}
        approvals = step(approve)(opened.store, keyring, channel, table, looked_at, failures, despite_failure)
    if looked_at is None:
        return Approved(name, 0, ())
    released = None
    if release:
        judged = looked_at.sha256 if name == "canary" else ""
        released = release_steps(settings, step, judged, despite_failure=despite_failure)
    return Approved(name, looked_at.index.number, tuple(approvals), released)


def current_state(store: ObjectStore, keyring: Keyring, settings: Settings, name: str) -> tuple[str, Entry | None]:
    """The channel and state that a name means, which must be current; None if the channel serves nothing yet.

    Raises:
        StateNameError: there is no such state.
        SupersededError: it is not current.
    """
    repository = Repository(store, keyring)
    if name in CHANNELS:
        return name, repository.current(channel_of(settings, name))
    histories = {one: list(repository.history(channel_of(settings, one))) for one in CHANNELS}
    at = find_state(name, histories)
    states = histories[at.channel_name]
    if at.index:
        raise superseded(channel_of(settings, at.channel_name), states[at.index], states[0])
    return at.channel_name, states[0]


@flow(name="approve")
def approve_tables(
    table: parameters.Table = "",
    release: parameters.Release = False,
    generation: parameters.Generation = None,
    despite_failure: parameters.DespiteFailure = False,
    hardware: parameters.Hardware = "",
) -> list[str]:
    """Approves a table of canary, or all, of the generation that was looked at; with `release` stable serves them at
    once. Returns the approved tables.
    """
    settings = from_environment()
    state = "canary" if generation is None else f"canary:{generation}"
    outcomes = for_each(
        settings,
        hardware,
        lambda one: approve_steps(
            one, tracked, state=state, table=table, release=release, despite_failure=despite_failure
        ),
    )
    for key, done in outcomes.done.items():
        told = f"Approved for stable: generation {done.number} of {done.channel} on {key}"
        table_artifact("approvals", rows(done.approvals), told)
    tracked(mlflow_mirror.keep_mirror)(settings)
    return [one.table for done in outcomes.whole().values() for one in done.approvals]


def rows(approvals: tuple[Approval, ...]) -> list[dict[str, str]]:
    """The approvals as a table, for artifacts and terminals."""
    return [
        {"table": one.table, "manifest": records.short(one.manifest_sha256), "reason": one.reason} for one in approvals
    ]
