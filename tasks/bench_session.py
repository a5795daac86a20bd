"""A search as one task: models, bench, memory, MLflow log and journal opened, all operators searched."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace

from agents.caps import BudgetCaps
from agents.chat import ChatModel
from agents.errors import ModelSettingsError
from agents.models import configuration, key_relay
from agents.models.configuration import ModelSettings
from agents.redaction import Redactor
from agents.strategies import catalogue
from kernels.profile import TrafficProfile
from kernels.roofline import cached_peaks
from tasks import bench, budgeting, compilation, search_lock, search_memory
from tasks.compilation import Progress, SearchResult
from tasks.mlflow_sink import SearchLog
from tasks.proposal_record import ProposalRecord
from tasks.recruitment import DEFAULT_AGENTS, Recruits, Staff, record_path
from tasks.settings import Settings

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchOptions:
    """How a search is led and by how many. Without a model, pattern agents search alone."""

    strategy: str = catalogue.NAMES[0]
    models: tuple[str, ...] = ()
    """Names of those to use; all that are configured if empty."""
    agents: int = DEFAULT_AGENTS
    """That ask models; 0 is none."""
    fusions: bool = False
    """Whether what could be fused is searched as well."""


def search_operators(
    settings: Settings,
    profile: TrafficProfile,
    budget_s: float,
    seed: int,
    only: Sequence[str],
    progress: Progress | None,
    caps: BudgetCaps | None = None,
    options: SearchOptions | None = None,
) -> SearchResult:
    """One session on this host's device: it takes the lease candidate by candidate, with a queue of its own.

    Provider keys leave this process's environment before anything of a candidate is built or run.

    Raises:
        SearchBusyError: another process searches for the same traffic with the same seed.
        ModelSettingsError: a model is not configured, or has no price where somebody asked for a cap on money.
    """
    options, caps = options or SearchOptions(), caps or budgeting.caps(settings)
    tags = {"fleet": profile.fleet, "model": profile.model, "hardware": profile.hardware, "seed": str(seed)}
    search_id = compilation.search_id_of(profile, seed)
    search = settings.searches_dir / search_id
    redactor = Redactor.of_this_host()
    with (
        search_lock.held(search),
        _models(options, caps) as models,
        budgeting.open_ledger(settings) as ledger,
        search_memory.opened(settings) as memory,
        bench.search_bench(settings) as judges,
        SearchLog(settings.home, search_id, tags=tags, tracking_uri=settings.tracking_uri, redactor=redactor) as log,
    ):
        budget = ledger.budget(search_id, caps)
        record = ProposalRecord(record_path(search))
        recruits = Recruits(models, options.agents, budget, log.episodes, redactor.text, record)
        result = compilation.run_searches(
            judges,
            log,
            settings,
            profile,
            cached_peaks(settings.peaks_path),
            budget_s=budget_s,
            seed=seed,
            only=only,
            fusions=options.fusions,
            progress=progress,
            budget=budget,
            staff=Staff(options.strategy, memory, recruits),
            parent_run=lambda: log.parent_run_id or "",
        )
        log.finish({f"{s.operator}.{s.dtype}": f"{s.gain:.6g}" for s in result.operators})
    return result


@contextlib.contextmanager
def _models(options: SearchOptions, caps: BudgetCaps) -> Iterator[tuple[ChatModel, ...]]:
    """The models of a search. Their keys are taken out of the environment also where none is used."""
    environ: MutableMapping[str, str] = os.environ
    key_relay.accept(environ)
    chosen = chosen_models(configuration.from_environment(environ), options.models) if options.agents else ()
    capped = bool(caps.money_asked)
    with configuration.opened(chosen, LOGGER.warning, environ, money_capped=capped) as models:
        yield models


def chosen_models(configured: Sequence[ModelSettings], names: Sequence[str]) -> tuple[ModelSettings, ...]:
    """The settings of these models, in their order; of all that are configured, where none is named.

    A model that was named falls back on no other: who asks for one wants to see what it can do. Where nothing is
    configured, a model is used as it is named.

    Raises:
        ModelSettingsError: there are configured models, and this is none of them; or it is no name.
    """
    if not names:
        return tuple(configured)
    for name in names:
        configuration.model_name(name, "the model to ask")
    by_name = {one.model: one for one in configured}
    for fallback in (name for one in configured for name in one.fallbacks):
        by_name.setdefault(fallback, ModelSettings(fallback))
    unknown = next((name for name in names if by_name and name not in by_name), None)
    if unknown is not None:
        raise ModelSettingsError(f"model {unknown!r} is not configured; expected one of {', '.join(by_name)}")
    return tuple(replace(by_name.get(name, ModelSettings(name)), fallbacks=()) for name in dict.fromkeys(names))
