"""One bench session over the operators of a profile: budget by what could be saved, agents, judge, journal, MLflow."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agents.brief import Brief
from agents.fusion import Proposal
from agents.memory import Memory
from agents.spending import Budget
from gristmill import records
from gristmill.hardware import local_cpu
from gristmill.workload import Workload
from kernels.profile import RankedOperator, TrafficProfile
from kernels.roofline import Peaks
from tasks.agent_thread import Departure
from tasks.fleet_changes import engine_versions
from tasks.journal import Journal
from tasks.metering import metered
from tasks.recruitment import Staff, session_for
from tasks.search_plan import Skipped, plan, workloads_of
from tasks.search_scope import SEARCH, representative
from tasks.search_session import Bench, SearchSession, Trial, TrialLog
from tasks.settings import Settings
from tasks.steady_recall import SteadyRecall

AT_ROOFLINE = "every operator already runs at the roofline"


@dataclass(frozen=True)
class OperatorSearch:
    """What a session did for one operator and dtype."""

    operator: str
    dtype: str
    budget_s: float
    spent_s: float
    workloads: int
    trials: int
    statuses: dict[str, int]
    best_ratios: tuple[float, ...]
    """After each trial: the best traffic-weighted ratio so far (1 while nothing is faster)."""
    gains: dict[str, float]
    """Best proven ratio per workload label; workloads without one are left out."""
    ended: str = ""
    """Why it ended before its time; empty if it did not."""
    busy_share: float = 0.0
    """Of the session's time, how much the judge was at work (waits for the compiler are none)."""
    starved_share: float = 0.0
    """How much of it there was nothing to judge and nothing to compile."""
    unjudged: int = 0
    """Candidates that were proposed and have no verdict. Those of language models are judged first next time."""
    departures: tuple[Departure, ...] = ()
    """Agents that left before the search ended."""
    waiting: int = 0
    """Agents that waited for their provider when the search ended."""
    nothing: str = ""
    """Why it judged nothing; empty if it judged something."""

    @property
    def gain(self) -> float:
        """On the search's traffic, with the best candidate for each workload; 1 while nothing is faster."""
        return max(self.best_ratios, default=1.0)


@dataclass(frozen=True)
class SearchResult:
    """A finished (or budget-ended) session. Its candidates are in the journal beside it."""

    search_id: str
    profile_digest: str
    ranked: tuple[RankedOperator, ...]
    operators: tuple[OperatorSearch, ...]
    parent_run: str
    """MLflow run id of the search; empty while MLflow was not reached."""
    nothing: str = ""
    """Why no operator was searched at all; empty if one was."""
    fusions: tuple[Proposal, ...] = ()
    """What was to be searched as one operator of its own."""
    skipped: tuple[Skipped, ...] = ()


class Progress(Protocol):
    """Told of every trial, of every operator whose turn it is, and of agents that wait."""

    def operator(self, operator: str, dtype: str, budget_s: float, workloads: int) -> None: ...

    def trial(self, trial: Trial, best_ratio: float) -> None: ...

    def waiting(self, agents: int, why: str, *, at_the_end: bool = False) -> None:
        """So many wait for their provider now, or did when the search ended. Called often, also with none."""


class Silent:
    """The progress of a run that nobody watches."""

    def operator(self, operator: str, dtype: str, budget_s: float, workloads: int) -> None: ...

    def trial(self, trial: Trial, best_ratio: float) -> None: ...

    def waiting(self, agents: int, why: str, *, at_the_end: bool = False) -> None: ...


def search_id_of(profile: TrafficProfile, seed: int) -> str:
    """A search is named by the call patterns it is for, the engine that was to be beaten and its seed: so a killed one
    is found again, and verdicts against another version of the engine are not.
    """
    patterns = sorted(workload.digest for workload in profile.workloads)
    engine = {package: sorted(versions) for package, versions in engine_versions(profile.versions).items()}
    return records.digest([profile.hardware, patterns, seed, *([engine] if engine else [])])[:12]


def journal_path(settings: Settings, search_id: str) -> Path:
    return settings.searches_dir / search_id / "verdicts.jsonl"


def run_searches(
    bench: Bench,
    log: TrialLog,
    settings: Settings,
    profile: TrafficProfile,
    peaks: Peaks,
    *,
    budget_s: float,
    seed: int = 0,
    only: Sequence[str] = (),
    fusions: bool = False,
    progress: Progress | None = None,
    budget: Budget | None = None,
    staff: Staff | None = None,
    parent_run: Callable[[], str] = str,
) -> SearchResult:
    """Searches operator by operator, most promising first. A killed session resumes from its journal.

    Args:
        only, fusions: what to search; see `tasks.search_plan.plan`.
        budget: is charged the time, and ends the session with what was found once it is spent.
        staff: pattern agents alone, without memory, if not given.
        parent_run: asked at the end for the MLflow run id of this search.

    Raises:
        EmptyProfileError, NoProfileError: there is nothing to search for.
    """
    staff, progress = staff or Staff(), progress or Silent()
    chosen = plan(profile, peaks, budget_s, only=only, fusions=fusions, is_writable=staff.can_write)
    search_id = search_id_of(profile, seed)
    journal = Journal(journal_path(settings, search_id))
    staff = replace(staff, memory=SteadyRecall(staff.memory, settings.searches_dir / search_id))
    searched: list[OperatorSearch] = []
    step = 0
    spare_s = 0.0
    with metered(bench, budget) as (judges, tick):
        for (operator, dtype), seconds in chosen.seconds.items():
            workloads = representative(workloads_of(profile, chosen.fusions, operator, dtype), SEARCH)
            brief = _brief(operator, dtype, workloads, peaks)
            session = session_for(
                judges,
                brief,
                journal,
                log,
                staff,
                seed=seed,
                first_step=step,
                tick=tick,
                tell_waiting=progress.waiting,
            )
            result = _search(session, brief, seconds + spare_s, staff.memory, progress)
            step += result.trials
            searched.append(result)
            if session.course.spent:
                break
            # What one did not need the next may use.
            spare_s = max(0.0, result.budget_s - result.spent_s) if result.ended else 0.0
    reasons = [f"{one.operator} {one.dtype}: {one.reason}" for one in chosen.skipped] or [AT_ROOFLINE]
    return SearchResult(
        search_id,
        records.digest(profile),
        chosen.ranked,
        tuple(searched),
        parent_run(),
        "" if searched else "; ".join(reasons),
        chosen.fusions,
        chosen.skipped,
    )


def _search(
    session: SearchSession, brief: Brief, budget_s: float, memory: Memory, progress: Progress
) -> OperatorSearch:
    workloads = brief.workloads
    progress.operator(brief.operator, brief.dtype, budget_s, len(workloads))
    statuses: Counter[str] = Counter()
    gains: dict[str, float] = {}
    best_ratios: list[float] = []
    spent_s = 0.0
    with contextlib.closing(session.run(budget_s)) as trials:
        for trial in trials:
            statuses[trial.verdict.status.value] += 1
            for timing in trial.verdict.timings if trial.verdict.won else ():
                if timing.ratio_low > 1:
                    digest = timing.workload.digest
                    gains[digest] = max(gains.get(digest, 1.0), timing.ratio)
            best_ratios.append(weighted_gain(workloads, gains))
            spent_s = trial.elapsed_s
            if not trial.replayed:
                memory.record(trial.candidate, trial.verdict)
            progress.trial(trial, best_ratios[-1])
    course = session.course
    progress.waiting(course.waiting, "", at_the_end=True)
    return OperatorSearch(
        brief.operator,
        brief.dtype,
        budget_s,
        spent_s,
        len(workloads),
        len(best_ratios),
        dict(statuses),
        tuple(best_ratios),
        {w.label: gains[w.digest] for w in workloads if w.digest in gains},
        course.ended,
        course.share(course.judging_s),
        course.share(course.starved_s),
        course.unjudged,
        tuple(course.departures),
        course.waiting,
        "" if best_ratios else course.why_nothing(budget_s),
    )


def weighted_gain(workloads: Sequence[Workload], gains: dict[str, float]) -> float:
    """Time of these workloads with the engine's own kernels, over their time with the best found for each.

    A workload without a gain keeps the engine's kernel, so it counts with ratio 1. Gains are by digest, because labels
    leave out strides.
    """
    before = sum(w.time_ns for w in workloads)
    after = sum(w.time_ns / max(1.0, gains.get(w.digest, 1.0)) for w in workloads)
    return before / after if after else 1.0


def _brief(operator: str, dtype: str, workloads: tuple[Workload, ...], peaks: Peaks) -> Brief:
    return Brief(
        operator,
        dtype,
        workloads,
        hardware=local_cpu(),
        cores=peaks.cores,
        bandwidth_gb_s=peaks.memory_bandwidth_gb_s,
        gflop_s=peaks.gflops["float32"],
    )
