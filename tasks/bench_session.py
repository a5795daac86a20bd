"""A search as one task: bench, MLflow log and journal opened, all operators searched."""

from __future__ import annotations

from collections.abc import Sequence

from agents.caps import BudgetCaps
from kernels.profile import TrafficProfile
from kernels.roofline import cached_peaks
from tasks import bench, budgeting, compilation
from tasks.compilation import Progress, SearchResult
from tasks.mlflow_sink import SearchLog
from tasks.settings import Settings


def search_operators(
    settings: Settings,
    profile: TrafficProfile,
    budget_s: float,
    seed: int,
    only: Sequence[str],
    progress: Progress | None,
    caps: BudgetCaps | None = None,
) -> SearchResult:
    """One session on this host's device: it takes the lease candidate by candidate, with a queue of its own."""
    tags = {"fleet": profile.fleet, "model": profile.model, "hardware": profile.hardware, "seed": str(seed)}
    search_id = compilation.search_id_of(profile, seed)
    uri = settings.tracking_uri
    with (
        budgeting.open_ledger(settings) as ledger,
        bench.search_bench(settings) as judges,
        SearchLog(settings.home, search_id, tags=tags, tracking_uri=uri) as log,
    ):
        result = compilation.run_searches(
            judges,
            log,
            settings,
            profile,
            cached_peaks(settings.peaks_path),
            budget_s=budget_s,
            seed=seed,
            only=only,
            progress=progress,
            budget=ledger.budget(search_id, caps or budgeting.caps(settings)),
            parent_run=lambda: log.parent_run_id or "",
        )
        log.finish({f"{s.operator}.{s.dtype}": f"{max(s.best_ratios, default=1.0):.3f}" for s in result.operators})
    return result
