"""The check flow: is a model, a device or an engine new to the fleet, that nothing was compiled for?"""

from __future__ import annotations

from prefect import flow

from flows import fleet_events
from flows.parameters import WindowH
from flows.steps import Step, table_artifact, tracked
from tasks import fleet_changes, object_store
from tasks.fleet_changes import Change
from tasks.settings import Settings, from_environment


def check_steps(settings: Settings, step: Step, window_h: float) -> tuple[Change, ...]:
    """Looks; changes nothing."""
    with object_store.opened(settings) as opened:
        return step(fleet_changes.fleet_changes)(opened.store, settings, window_h)


@flow(name="check")
def check(window_h: WindowH = 24.0) -> list[str]:
    """Emits an event for each model, device or engine that nothing was compiled for. Returns them in words."""
    settings = from_environment()
    changes = check_steps(settings, tracked, window_h)
    for change in changes:
        fleet_events.emit_change(settings, change)
    table_artifact("fleet-changes", rows(changes), "Runs in the fleet, and nothing was compiled for it")
    return [change.told for change in changes]


def rows(changes: tuple[Change, ...]) -> list[dict[str, str]]:
    """The changes as a table, for artifacts and terminals."""
    return [
        {"changed": one.kind.value, "model": one.model, "hardware": one.hardware, "what": one.told} for one in changes
    ]
