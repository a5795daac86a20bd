"""Events that tell Prefect what a fleet runs now; prefect.yaml says what they start."""

from __future__ import annotations

from collections.abc import Mapping

from prefect.events import emit_event

from gristmill import records
from kernels.drift import Drift
from tasks.fleet_changes import Change, Kind
from tasks.settings import Settings

DRIFTED = "gristmill.profile.drifted"
CHANGED = {kind: f"gristmill.{kind.value}.changed" for kind in Kind}
COMPILE_AGAIN = (DRIFTED, *CHANGED.values())
"""What starts a compilation."""


def resource(fleet: str, model: str, hardware: str) -> dict[str, str]:
    """What an event is about, as triggers match it: deployments that measure exist once per kind of hardware."""
    return {
        "prefect.resource.id": f"gristmill.fleet.{fleet}.{model}",
        "gristmill.model": model,
        "gristmill.hardware": hardware,
    }


def emit(settings: Settings, event: str, payload: Mapping[str, object]) -> None:
    """About what this worker works for."""
    emit_event(event=event, resource=resource(settings.fleet, settings.model, settings.hardware), payload=dict(payload))


def emit_change(settings: Settings, change: Change) -> None:
    """About whichever model and hardware of the fleet has changed."""
    emit_event(
        event=CHANGED[change.kind],
        resource=resource(settings.fleet, change.model, change.hardware),
        payload={"told": change.told},
    )


def emit_drift(settings: Settings, digest: str, drift: Drift) -> None:
    """That traffic has moved, and what of it: the furthest by itself, and all."""
    moved = [{**records.encode(move), "told": move.told} for move in drift.moved]
    emit(settings, DRIFTED, {"profile": digest, "told": moved[0]["told"], "moved": moved})
