"""The week flow: what the mill did in the last days, as a page in the home and as tables beside the run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prefect import flow

from flows import parameters
from flows.steps import Step, table_artifact, tracked
from tasks import object_store
from tasks import week as weeks
from tasks.settings import Settings, from_environment
from tasks.week import Week


def week_steps(settings: Settings, step: Step, days: float) -> tuple[Week, Path]:
    """Looks back, and writes the page. Changes nothing else."""
    with object_store.opened(settings) as opened:
        found = step(weeks.look_back)(opened.store, settings, days, datetime.now(UTC))
    return found, step(weeks.keep_page)(settings, found)


@flow(name="week")
def week(days: parameters.Days = 7.0) -> str:
    """Tells of the last days. Returns the name of the page, which is in `reports` of the worker's home."""
    found, path = week_steps(from_environment(), tracked, days)
    for heading, rows in found.parts.items():
        if rows:
            key = f"week-{heading.lower().replace(' ', '-')}"
            table_artifact(key, list(rows), f"{heading}, {found.since_utc[:10]} to {found.until_utc[:10]}")
    return path.name
