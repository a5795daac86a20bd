"""Who searches, and which candidates survive: the best for each workload, not the best on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agents import recall
from agents.agent import Agent
from agents.brief import Best, Brief
from agents.memory import Remembered
from agents.pattern_agent import PatternAgent
from agents.pattern_source import PatternSource
from agents.patterns import catalogue as patterns
from agents.sources import catalogue
from kernels import catalogue as operators
from kernels.candidate import Candidate
from kernels.verdict import Verdict


def pattern_agents(brief: Brief, seed: int, remembered: Sequence[Remembered] = ()) -> list[Agent]:
    """One agent per pattern source that can write the brief's operator, the one to start with first.

    Args:
        remembered: candidates of earlier searches, each of which its agent tries first.

    Raises:
        PatternError: no pattern can.
    """
    return [PatternAgent(source, seed + index, tuple(remembered)) for index, source in enumerate(_sources(brief))]


def _sources(brief: Brief) -> list[PatternSource]:
    """Those for a niche only where the traffic has some of it."""
    sources = catalogue.sources_for(brief.operator, brief.dtype)
    if not any(source.niche for source in sources):
        return list(sources)
    applicable = patterns.applicable(operators.operator(brief.operator), brief.workloads, brief.hardware)
    names = {pattern.name for pattern in applicable}
    return [source for source in sources if not source.niche or source.name in names]


def remembered_first(agents: Sequence[Agent], remembered: Sequence[Remembered], brief: Brief) -> list[Candidate]:
    """What a search begins with: the few remembered candidates that together promise most for its traffic. Those of
    pattern agents are written anew for its ranges, those of language models are taken as they are.
    """
    options = [(one.candidate, one.entry) for one in remembered if one.candidate.origin.model]
    options += [pair for agent in agents if isinstance(agent, PatternAgent) for pair in agent.rewritten(brief)]
    weights = [brief.weight(workload) for workload in brief.workloads]
    return recall.first(options, brief.workloads, weights, brief.hardware.key)


@dataclass(frozen=True)
class Selection:
    """The best candidate per workload so far. A candidate counts where its interval lies above 1."""

    best: dict[str, Best] = field(default_factory=dict)
    """By digest of the workload."""

    def with_verdict(self, verdict: Verdict) -> Selection:
        """Takes in one verdict. On a workload, the higher median ratio wins; the first one stays on a tie."""
        best = dict(self.best)
        for timing in verdict.timings if verdict.won else ():
            key = timing.workload.digest
            if timing.ratio_low > 1 and (key not in best or timing.ratio > best[key].ratio):
                best[key] = Best(timing.workload.label, verdict.candidate, timing.ratio)
        return replace(self, best=best)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Digests of the survivors, each once, in the order in which their workloads were first won."""
        return tuple(dict.fromkeys(entry.candidate for entry in self.best.values()))
