"""Who searches an operator: pattern agents always; with models at hand, agents that ask them, and a tuner of what these
leave open. All are led by one strategy, and start from what memory holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agents import lesson, recall
from agents.agent import Agent
from agents.assignment import Toolchain
from agents.brief import Brief
from agents.chat import ChatModel
from agents.episode import EpisodeLog
from agents.errors import PatternError
from agents.llm_agent import LlmAgent, Way
from agents.memory import Memory, NoMemory, Recollection
from agents.models.abandonable import AbandonableModel
from agents.outage import Patience
from agents.patterns import catalogue as patterns
from agents.sources import catalogue as sources
from agents.spending import Budget
from agents.strategies import catalogue as strategies
from agents.strategies.guided import Guided
from agents.strategy import Strategy
from agents.swarm import pattern_agents, remembered_first
from agents.tuner import Tuner
from harness.builder import ALLOWED_FLAGS, BASE_FLAGS
from kernels import catalogue
from tasks.agent_thread import PATIENCE
from tasks.journal import Journal
from tasks.judging_queue import JudgingQueue
from tasks.live_workshop import LiveWorkshop
from tasks.proposal_record import FILE_NAME, ProposalRecord
from tasks.search_session import Bench, SearchSession, TrialLog
from tasks.swarm import Swarm

DEFAULT_AGENTS = 8
"""Agents that ask language models, where there are some."""
TOOLCHAIN = Toolchain(BASE_FLAGS, tuple(sorted(ALLOWED_FLAGS)))


@dataclass(frozen=True)
class Recruits:
    """Language models for a search, and what the agents that ask them share."""

    models: tuple[ChatModel, ...]
    count: int
    """Of agents; they take the models in turn, and every other one works with tools."""
    budget: Budget
    episodes: EpisodeLog
    redact: Callable[[str], str]
    record: ProposalRecord
    patience: Patience = PATIENCE
    """With models that give no answer."""


@dataclass(frozen=True)
class Staff:
    """All that a search is led and done by, besides its bench."""

    strategy: str = strategies.NAMES[0]
    """One of `agents.strategies.catalogue`."""
    memory: Memory = field(default_factory=NoMemory)
    recruits: Recruits | None = None

    @property
    def asks_models(self) -> bool:
        """Whether language models propose as well."""
        return self.recruits is not None and bool(self.recruits.models) and self.recruits.count > 0

    def can_write(self, operator: str, dtype: str) -> bool:
        """Whether anybody can propose candidates for it."""
        try:
            return self.asks_models or bool(sources.sources_for(operator, dtype))
        except PatternError:
            return False


def session_for(
    bench: Bench,
    brief: Brief,
    journal: Journal,
    log: TrialLog,
    staff: Staff,
    *,
    seed: int,
    first_step: int = 0,
    tick: Callable[[], None] = lambda: None,
    tell_waiting: Callable[[int, str], None] = lambda count, why: None,
) -> SearchSession:
    """A session on one operator and dtype.

    Raises:
        PatternError: no pattern can write the operator, and there is no model to ask.
        BriefError: nobody knows the strategy.
    """
    recalled = staff.memory.recall(brief.operator, brief.dtype, brief.hardware)
    brief = replace(brief, lessons=lesson.told(recalled.lessons, brief.operator, brief.hardware.key))
    leader = strategies.strategy(staff.strategy, brief, seed)
    recruits = staff.recruits
    if recruits is None or not staff.asks_models:
        fast = pattern_agents(brief, seed, recalled.candidates)
        first = remembered_first(fast, recalled.candidates, brief)
        return SearchSession(
            bench, fast, brief, journal, log, strategy=leader, first=first, first_step=first_step, tick=tick
        )
    swarm = _swarm(bench, recruits, staff.memory)
    fast = _fast_agents(brief, seed, recalled)
    return SearchSession(
        bench,
        fast,
        brief,
        journal,
        log,
        swarm=swarm,
        strategy=_guided(leader, brief, recalled, swarm.agents, seed),
        first=remembered_first(fast, recalled.candidates, brief),
        first_step=first_step,
        tick=tick,
        tell_waiting=tell_waiting,
    )


def record_path(search: Path) -> Path:
    """Of what models proposed, in a search's folder."""
    return search / FILE_NAME


def _fast_agents(brief: Brief, seed: int, recalled: Recollection) -> list[Agent]:
    """Language models may write what no pattern source can."""
    try:
        return [*pattern_agents(brief, seed, recalled.candidates), Tuner(seed)]
    except PatternError:
        return [Tuner(seed)]


def _swarm(bench: Bench, recruits: Recruits, memory: Memory) -> Swarm:
    queue = JudgingQueue()
    workshop = LiveWorkshop(bench, queue)
    models = [AbandonableModel(model) for model in recruits.models]

    def agent(number: int) -> LlmAgent:
        model = models[number % len(models)]
        return LlmAgent(
            f"llm:{model.name}:{number}",
            model,
            recruits.budget,
            recruits.episodes,
            recruits.redact,
            TOOLCHAIN,
            workshop,
            memory,
            Way(use_tools=number // len(models) % 2 == 1),
        )

    def abandon() -> None:
        for model in models:
            model.abandon()

    agents = [agent(number) for number in range(recruits.count)]
    return Swarm(agents, queue, workshop, recruits.record, abandon, recruits.patience)


def _guided(leader: Strategy, brief: Brief, recalled: Recollection, agents: Sequence[Agent], seed: int) -> Strategy:
    definition = catalogue.operator(brief.operator)
    applicable = [pattern.name for pattern in patterns.applicable(definition, brief.workloads, brief.hardware)]
    bandit = recall.bandit_for(recalled, seed, time.time_ns() // 1_000_000)
    return Guided(leader, bandit, applicable, [agent.name for agent in agents])
