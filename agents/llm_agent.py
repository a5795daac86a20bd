"""An agent that asks a language model: for a program in one answer, or for its work with tools on the live judge."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agents import one_shot, prompt, tool_loop
from agents.answer import Reading
from agents.answer import read as read_answer
from agents.assignment import Assignment, Toolchain
from agents.brief import Brief
from agents.chat import Answer, ChatModel
from agents.conversation import ChatSettings, Conversation, Ending
from agents.episode import COME_TO_NOTHING, Episode, EpisodeLog, Outcome
from agents.errors import BudgetSpentError, ModelError, RequestRefusedError
from agents.memory import Memory
from agents.proposals import Proposals
from agents.quotation import printable
from agents.spending import Budget
from agents.tools import Toolbox
from agents.workshop import Workshop
from kernels import catalogue
from kernels.candidate import Candidate, Origin
from kernels.definition import Definition
from kernels.verdict import Verdict


@dataclass(frozen=True)
class Way:
    """How an agent works."""

    use_tools: bool = False
    """Let the model work on the live judge; needs a workshop. Else one answer is one proposal."""
    turns: int = 12
    """With tools: how often the model is asked in one episode."""
    repairs: int = 1
    """Without tools: how often it may mend what is no program, or does not build."""


@dataclass
class LlmAgent:
    """See `agents.agent.Agent`. `propose` takes as long as the model does; `learn` may be called meanwhile.

    Each episode is recorded, whatever comes of it. A program that differs from all known ones is proposed once.
    """

    name: str
    model: ChatModel
    budget: Budget
    log: EpisodeLog
    redact: Callable[[str], str]
    """Takes secrets, host paths and names out of text: `agents.redaction.Redactor.text`."""
    toolchain: Toolchain = field(default_factory=Toolchain)
    workshop: Workshop | None = None
    memory: Memory | None = None
    way: Way = field(default_factory=Way)
    settings: ChatSettings = field(default_factory=ChatSettings)
    definition_of: Callable[[str], Definition] = catalogue.operator
    fruitless: int = 0
    """Episodes in a row that gave no candidate."""
    _came_to: Counter[Outcome] = field(default_factory=Counter)
    """What those came to."""
    _proposals: Proposals = field(default_factory=Proposals)

    def propose(self, brief: Brief, count: int) -> list[Candidate]:
        """None when an episode had no candidate: another may.

        Raises:
            BudgetSpentError: the model cannot be asked any more, or not now.
            ModelError: it gave no answer. Whether and when to propose again: see `agents.outage`.
        """
        proposals = self._proposals.take(brief.operator, brief.dtype, count)
        while len(proposals) < count:
            self._proposals.add(self._episode(brief))
            taken = self._proposals.take(brief.operator, brief.dtype, count - len(proposals))
            if not taken:
                break
            proposals += taken
        return proposals

    @property
    def why_nothing(self) -> str:
        """See `agents.agent.Explaining`."""
        return ", ".join(f"{COME_TO_NOTHING[one]} ({count}x)" for one, count in self._came_to.most_common())

    def learn(self, candidate: Candidate, verdict: Verdict) -> None:
        self._proposals.learn(candidate, verdict)

    def _episode(self, brief: Brief) -> tuple[Candidate, ...]:
        """One conversation; what came of it is recorded before this returns or raises."""
        assignment = Assignment(brief, self.definition_of(brief.operator), self.toolchain)
        parents = tuple(parent.candidate.digest for parent in brief.parents)
        episode = uuid.uuid4().hex
        origin = Origin(self.name, brief.pattern, {}, parents, self.model.name, episode)
        conversation = self._conversation(assignment)
        try:
            ending = self._work(assignment, conversation, origin)
        except ModelError as error:
            told = error.saying(self.redact(str(error)))
            self._record(brief, origin, conversation, Ending(Outcome.FAILED, str(told)))
            self._note_fruitless(Outcome.FAILED)
            if isinstance(error, RequestRefusedError) and conversation.answered_by:
                return ()  # it answered before, so that it is this conversation which it does not take
            raise told from None
        except BudgetSpentError as error:
            if conversation.steps or not error.may_fit_later:
                self._record(brief, origin, conversation, Ending(Outcome.SPENT, str(error)))
            raise
        except Exception as error:
            self._record(brief, origin, conversation, Ending(Outcome.FAILED, self.redact(str(error))))
            raise
        self._record(brief, origin, conversation, ending)
        if ending.candidates:
            self.fruitless = 0
            self._came_to.clear()
        else:
            self._note_fruitless(ending.outcome)
        model = conversation.answered_by or origin.model
        return tuple(replace(made, origin=replace(made.origin, model=model)) for made in ending.candidates)

    def _note_fruitless(self, outcome: Outcome) -> None:
        self.fruitless += 1
        self._came_to[outcome] += 1

    def _conversation(self, assignment: Assignment) -> Conversation:
        way = tool_loop.WAY.format(turns=self.way.turns, calls=tool_loop.MAX_CALLS) if self._uses_tools else ""
        limit = self.settings.max_prompt_characters
        opening = prompt.render(assignment, self.redact, way=way, max_characters=limit)
        purpose = f"{self.name} on {assignment.brief.operator} {assignment.brief.dtype}"
        return Conversation(self.model, self.budget, self.settings, opening, purpose, self.redact)

    @property
    def _uses_tools(self) -> bool:
        return self.way.use_tools and self.workshop is not None

    def _work(self, assignment: Assignment, conversation: Conversation, origin: Origin) -> Ending:
        def read(answer: Answer) -> Reading:
            return read_answer(answer.text, answer.finish, assignment, origin)

        if self._uses_tools:
            assert self.workshop is not None
            toolbox = Toolbox(assignment, self.workshop, self.memory, self._proposals, self.redact, origin)
            return tool_loop.work(conversation, toolbox, read, self._proposals, self.way.turns)
        build = self.workshop.build if self.workshop is not None else None

        def verdict_text(verdict: Verdict) -> str:
            return prompt.verdict_text(verdict, self.redact)

        return one_shot.work(conversation, read, self._proposals, build, verdict_text, self.redact, self.way.repairs)

    def _record(self, brief: Brief, origin: Origin, conversation: Conversation, ending: Ending) -> None:
        self.log.record(
            Episode(
                id=origin.episode,
                agent=self.name,
                model=self.model.name,
                operator=brief.operator,
                dtype=brief.dtype,
                pattern=brief.pattern,
                strategy=brief.strategy,
                parents=origin.parents,
                steps=tuple(conversation.steps),
                outcome=ending.outcome,
                reason=" ".join(printable(ending.reason).split()),
                candidates=tuple(candidate.digest for candidate in ending.candidates),
                usage=conversation.usage,
            )
        )
