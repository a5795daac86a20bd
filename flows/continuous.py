"""The continuous flow: capture, and where traffic has left what was compiled for, compile and promote."""

from __future__ import annotations

from dataclasses import dataclass

from prefect import flow

from flows.capture import capture_steps
from flows.compile import compile_steps
from flows.promote import promote_steps
from flows.steps import Step, tracked
from tasks import mlflow_mirror
from tasks.compilation import Progress, SearchResult
from tasks.errors import NoWinnerError
from tasks.proving import Told
from tasks.settings import Settings, from_environment


@dataclass(frozen=True)
class Turn:
    """What one turn of the mill did."""

    compiled: bool
    generation: int | None
    """Published generation; None if nothing was."""
    reason: str


def continuous_steps(
    settings: Settings,
    step: Step,
    *,
    window_h: float,
    budget_s: float,
    channel: str,
    progress: Progress | None = None,
    tell: Told = lambda text: None,
) -> Turn:
    """One turn. It costs a capture while traffic is what it was.

    Traffic counts as compiled for once its winners were published, so a turn that was cut off is done again, from the
    journal.
    """
    captured = capture_steps(settings, window_h, step)
    if not captured.needs_compile:
        return Turn(False, None, "traffic is what it was compiled for")
    tell("traffic has moved" if captured.drift else "nothing was compiled for this fleet yet")
    turns: list[Turn] = []

    def publish(search: SearchResult) -> None:
        turns.append(_published(settings, step, channel, search.search_id, tell))

    compile_steps(settings, step, budget_s=budget_s, progress=progress, then=publish)
    return turns[0]


def _published(settings: Settings, step: Step, channel: str, search_id: str, tell: Told) -> Turn:
    try:
        published, artifacts = promote_steps(settings, step, channel=channel, search_id=search_id, tell=tell)
    except NoWinnerError as error:
        return Turn(True, None, str(error))
    if len(published.declined) == len(artifacts):
        return Turn(True, None, "; ".join(f"{name} stays: {why}" for name, why in published.declined.items()))
    return Turn(True, published.number, f"generation {published.number} of {channel}")


@flow(name="continuous")
def continuous(window_h: float = 24.0, budget_s: float = 1800.0, channel: str = "canary") -> str:
    """One turn of the mill; the schedule makes it continuous. Returns what it did."""
    settings = from_environment()
    turn = continuous_steps(settings, tracked, window_h=window_h, budget_s=budget_s, channel=channel)
    if turn.generation is not None:
        tracked(mlflow_mirror.keep_mirror)(settings)
    return turn.reason
