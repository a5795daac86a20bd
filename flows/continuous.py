"""The continuous flow: capture, and where the fleet has left what was compiled for, compile and promote."""

from __future__ import annotations

from prefect import flow

from flows import parameters
from flows.capture import capture_steps
from flows.compile import compile_steps
from flows.promote import Turn, publish_winners
from flows.search_progress import SearchProgress
from flows.steps import Step, tracked
from tasks import fleet_changes, mlflow_mirror, object_store
from tasks.compilation import Progress, SearchResult
from tasks.errors import SearchBusyError
from tasks.proving import Told
from tasks.settings import Settings, from_environment


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
    """One turn. It costs a capture while traffic and engine are what they were.

    Traffic counts as compiled for once its winners were published, so a turn that was cut off is done again, from the
    journal. A turn that finds another process at the same search leaves it to that one.
    """
    captured = capture_steps(settings, window_h, step)
    with object_store.opened(settings) as opened:
        why = step(fleet_changes.reason_to_compile)(opened.store, settings, captured.profile)
    if not why:
        return Turn(False, None, "traffic is what it was compiled for")
    tell(why)
    turns: list[Turn] = []

    def publish(search: SearchResult) -> None:
        turns.append(publish_winners(settings, step, channel=channel, search_id=search.search_id, tell=tell))

    try:
        compile_steps(settings, step, budget_s=budget_s, progress=progress, then=publish)
    except SearchBusyError as error:
        return Turn(False, None, str(error))
    return turns[0]


@flow(name="continuous")
def continuous(
    window_h: parameters.WindowH = 24.0,
    budget_s: parameters.BudgetS = 1800.0,
    channel: parameters.Channel = "canary",
) -> str:
    """One turn of the mill; the schedule makes it continuous. Returns what it did."""
    settings = from_environment()
    bar = SearchProgress(budget_s)
    turn = continuous_steps(settings, tracked, window_h=window_h, budget_s=budget_s, channel=channel, progress=bar)
    if turn.compiled:
        bar.done(turn.reason)
    if turn.generation is not None:
        tracked(mlflow_mirror.keep_mirror)(settings)
    return turn.reason
