"""How far a demo has come, on disk: an interrupted one goes on where it was."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gristmill import durable_file, records
from gristmill.errors import MalformedRecordError


@dataclass(frozen=True)
class DemoState:
    """Each field is set when its phase is done."""

    options: str
    """Digest of what the demo was asked to do: asked for something else, it begins anew."""
    started_utc: str
    seed: int
    """Of the replay and of the search: another demo searches anew."""
    captured: bool = False
    search_id: str = ""
    generation: int = 0
    """Published on canary."""


def begin(folder: Path, options: str, *, fresh: bool) -> tuple[DemoState, bool]:
    """The state of the unfinished demo with these options, and whether there was one; otherwise, or if `fresh`, a new
    one. Writes nothing: a demo that is refused leaves no state.
    """
    path = folder / "state.json"
    if path.exists() and not fresh:
        try:
            found = records.parse(DemoState, path.read_bytes(), str(path))
        except MalformedRecordError:
            found = None
        if found is not None and found.options == options:
            return found, True
    return DemoState(options, datetime.now(UTC).isoformat(), secrets.randbits(12)), False


def keep(folder: Path, state: DemoState) -> None:
    """Returns once the state is on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    durable_file.write(folder / "state.json", records.canonical_json(state))


def end(folder: Path) -> None:
    """Nothing is left to resume."""
    (folder / "state.json").unlink(missing_ok=True)
