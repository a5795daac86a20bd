"""A swarm: the agents of a session that take their time, and what they share with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.agent import Agent
from agents.outage import Patience
from tasks.agent_thread import PATIENCE
from tasks.judging_queue import JudgingQueue
from tasks.live_workshop import LiveWorkshop
from tasks.proposal_record import ProposalRecord


@dataclass(frozen=True)
class Swarm:
    """Agents that take their time, and what they share with the session."""

    agents: Sequence[Agent]
    queue: JudgingQueue
    workshop: LiveWorkshop
    """Of the same queue."""
    record: ProposalRecord
    abandon: Callable[[], None] = lambda: None
    """Makes calls in flight fail: called when the session is over and somebody still waits for an answer."""
    patience: Patience = PATIENCE
    """With providers that give no answer."""
