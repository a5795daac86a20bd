"""The compile flow: rank what the fleet runs, search for faster kernels within a budget, record every candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from prefect import flow

from agents.caps import BudgetCaps
from agents.errors import BudgetSpentError
from flows import parameters
from flows.promote import Turn, publish_winners
from flows.search_progress import SearchProgress
from flows.steps import Step, table_artifact, tracked
from kernels import fusion_plan
from tasks import budgeting, cycle_report, fleet_changes, mlflow_mirror, object_store, results, traffic
from tasks.bench_session import SearchOptions, search_operators
from tasks.compilation import Progress, SearchResult
from tasks.errors import SearchBusyError
from tasks.search_plan import NOT_RELEASED
from tasks.settings import Settings, from_environment


def compile_steps(
    settings: Settings,
    step: Step,
    *,
    budget_s: float,
    seed: int = 0,
    only: Sequence[str] = (),
    caps: BudgetCaps | None = None,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    then: Callable[[SearchResult], object] = lambda result: None,
) -> SearchResult:
    """Searches for the newest profile. Killed and started again, it goes on where it was.

    Args:
        caps: on what it may spend; those of the environment and the home if not given.
        options: how the search is led and by whom; with all models that are configured if not given.
        then: what belongs to the turn as well. Drift is measured against this profile only once it has returned.
    """
    with object_store.opened(settings) as opened:
        profile = step(traffic.latest_profile)(opened.store, settings)
        result = step(search_operators)(settings, profile, budget_s, seed, only, progress, caps, options)
        step(results.keep)(settings, results.KeptSearch(datetime.now(UTC).isoformat(), profile, result))
        step(cycle_report.write)(settings, result.search_id)
        then(result)
        step(traffic.mark_compiled)(opened.store, settings, profile)
    return result


@flow(name="compile")
def compile_kernels(
    budget_s: parameters.BudgetS = 1800.0,
    seed: parameters.Seed = 0,
    only: parameters.Operators = None,
    strategy: parameters.Strategy = SearchOptions.strategy,
    agents: parameters.Agents = SearchOptions.agents,
    fusions: parameters.Fusions = SearchOptions.fusions,
    publish_to: parameters.PublishTo = "",
    only_if_moved: parameters.OnlyIfMoved = False,
    daily_s: parameters.DailyS = None,
    model: parameters.Model = "",
) -> str:
    """Searches for faster kernels for the newest traffic profile, and publishes them where asked to. Returns the
    search's id and what became of it.
    """
    settings = from_environment()
    settings = replace(settings, model=model) if model else settings
    if only_if_moved and not tracked(_why)(settings):
        return "traffic and engine are what was compiled for"
    caps = budgeting.caps(settings, {} if daily_s is None else {"daily_wall_s": daily_s})
    options = SearchOptions(strategy, agents=agents, fusions=fusions)
    turns: list[Turn] = []
    bar = SearchProgress(budget_s)

    def publish(search: SearchResult) -> None:
        if publish_to:
            turns.append(publish_winners(settings, tracked, channel=publish_to, search_id=search.search_id))

    try:
        result = compile_steps(
            settings,
            tracked,
            budget_s=budget_s,
            seed=seed,
            only=only or (),
            caps=caps,
            options=options,
            progress=bar,
            then=publish,
        )
    except (SearchBusyError, BudgetSpentError) as error:
        if not only_if_moved:
            raise
        return str(error)  # started by an event: another one is at it, or the day's budget is spent
    if any(turn.generation is not None for turn in turns):
        tracked(mlflow_mirror.keep_mirror)(settings)
    description = "; ".join([f"Search {result.search_id}", *remarks(result), *(turn.reason for turn in turns)])
    bar.done(description)
    table_artifact("searched-operators", search_rows(result), description)
    return ": ".join([result.search_id, *(turn.reason for turn in turns)])


def _why(settings: Settings) -> str:
    with object_store.opened(settings) as opened:
        profile = traffic.latest_profile(opened.store, settings)
        return fleet_changes.reason_to_compile(opened.store, settings, profile)


def search_rows(result: SearchResult) -> list[dict[str, str]]:
    """The search as a table, for artifacts and terminals. The gain is that of the best candidate for each workload over
    all of the traffic: one that is faster on little of it gains little.
    """
    return [
        {
            "operator": f"{s.operator} {s.dtype}",
            "budget": f"{s.budget_s:.0f} s",
            "candidates": str(s.trials),
            "faster": str(s.statuses.get("faster", 0)),
            "faster on": f"{len(s.gains)} of {s.workloads} workloads",
            "judge busy": f"{s.busy_share:.0%}",
            "gain on its traffic": gain_text(s.gain),
        }
        for s in result.operators
    ]


def remarks(result: SearchResult) -> Iterator[str]:
    """What was not searched, and what was proven that no release will have."""
    for one in result.skipped:
        yield f"{one.operator} {one.dtype} was not searched: {one.reason}"
    for search in result.operators:
        if search.gains and fusion_plan.is_fused(search.operator):
            yield f"{search.operator} {search.dtype}: {NOT_RELEASED}"


def gain_text(gain: float) -> str:
    """`1.92x`; with more digits where two would hide that there is a gain."""
    return f"{gain:.2f}x" if gain <= 1 or gain >= 1.005 else f"{gain:.4f}x"
