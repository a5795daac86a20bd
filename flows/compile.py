"""The compile flow: rank what the fleet runs, search for faster kernels within a budget, record every candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from prefect import flow

from agents.caps import BudgetCaps
from flows.steps import Step, table_artifact, tracked
from kernels import fusion_plan
from tasks import object_store, results, traffic
from tasks.bench_session import SearchOptions, search_operators
from tasks.compilation import Progress, SearchResult
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
        then(result)
        step(traffic.mark_compiled)(opened.store, settings, profile)
    return result


@flow(name="compile")
def compile_kernels(
    budget_s: float = 1800.0,
    seed: int = 0,
    only: list[str] | None = None,
    strategy: str = SearchOptions.strategy,
    agents: int = SearchOptions.agents,
    fusions: bool = SearchOptions.fusions,
) -> str:
    """Searches for faster kernels for the newest traffic profile. Returns the search's id."""
    options = SearchOptions(strategy, agents=agents, fusions=fusions)
    result = compile_steps(from_environment(), tracked, budget_s=budget_s, seed=seed, only=only or (), options=options)
    description = "; ".join([f"Search {result.search_id}", *remarks(result)])
    table_artifact("searched-operators", search_rows(result), description)
    return result.search_id


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
