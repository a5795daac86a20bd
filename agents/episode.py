"""An episode: one agent's path to its candidates, as it is logged and replayed. Holds no secret and no host path."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agents.chat import Answer, Message, Usage


class Outcome(StrEnum):
    """How an episode ended."""

    SUBMITTED = "submitted"
    """With at least one candidate."""
    NO_CODE = "no_code"
    """The answers held no program."""
    TRUNCATED = "truncated"
    REFUSED = "refused"
    EMPTY = "empty"
    MALFORMED = "malformed"
    """What it gave could not be made a candidate of: wrong entry point, too large, not text."""
    KNOWN = "known"
    """It proposed what had been proposed before."""
    FAILED = "failed"
    """The provider gave no answer."""
    GAVE_UP = "gave_up"
    """Out of turns."""
    SPENT = "spent"
    """The budget does not allow another call."""


COME_TO_NOTHING = {
    Outcome.NO_CODE: "its answers held no program",
    Outcome.TRUNCATED: "its answers were cut off",
    Outcome.REFUSED: "it refused",
    Outcome.EMPTY: "its answers were empty",
    Outcome.MALFORMED: "no candidate could be made of what it gave",
    Outcome.KNOWN: "what it proposed was known already",
    Outcome.FAILED: "the provider did not take its conversation",
    Outcome.GAVE_UP: "it ran out of turns",
}
"""Outcomes without a candidate, in words."""


@dataclass(frozen=True)
class ModelTurn:
    """What was said to a model since its last answer, and what it said."""

    started_ms: int
    """Since the epoch."""
    messages: tuple[Message, ...]
    answer: Answer | None
    error: str = ""
    """Instead of an answer."""


@dataclass(frozen=True)
class ToolTurn:
    """A tool at work."""

    started_ms: int
    name: str
    arguments: str
    result: str
    duration_s: float


@dataclass(frozen=True)
class Step:
    """One of the two."""

    model: ModelTurn | None = None
    tool: ToolTurn | None = None


@dataclass(frozen=True)
class Episode:
    """One proposal's making, from the brief to the candidates or to why there is none."""

    id: str
    agent: str
    model: str
    operator: str
    dtype: str
    pattern: str
    strategy: str
    parents: tuple[str, ...]
    """Digests."""
    steps: tuple[Step, ...]
    outcome: Outcome
    reason: str
    """One line."""
    candidates: tuple[str, ...]
    """Digests of what came out."""
    usage: Usage


class EpisodeLog(Protocol):
    """Where episodes go. Thread-safe; must neither fail nor hold an agent up."""

    def record(self, episode: Episode) -> None:
        """Returns once the episode is on disk. An id that was recorded before is not recorded again."""
        ...
