"""A model that answers as recorded episodes say it once did: no provider, no cost."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from agents.chat import Answer, ChatRequest, Message, Role, Usage
from agents.episode import Episode
from agents.errors import ModelError, ModelUnavailableError, RequestRefusedError
from gristmill import records


class ReplayedModel:
    """Finds the answer by the conversation so far, less what the assistant said: that follows from the rest.

    A request that was made several times gets its answers in the order in which they were recorded, each once.
    """

    def __init__(self, episodes: Iterable[Episode], name: str = "replayed") -> None:
        self._name = name
        self._turn = threading.Lock()
        self._answers: dict[str, deque[Answer | ModelError]] = defaultdict(deque)
        for episode in episodes:
            self._take(episode)

    @property
    def name(self) -> str:
        return self._name

    def most(self, request: ChatRequest) -> Usage:
        return Usage()

    def complete(self, request: ChatRequest) -> Answer:
        """Raises RequestRefusedError for a request that was not recorded, or more often than it was."""
        with self._turn:
            recorded = self._answers.get(_key(request.messages))
            if not recorded:
                raise RequestRefusedError("no episode holds a further answer to this request")
            answer = recorded.popleft()
        if isinstance(answer, ModelError):
            raise answer
        return replace(answer, usage=Usage(), latency_s=0.0)

    def _take(self, episode: Episode) -> None:
        said: tuple[Message, ...] = ()
        for turn in [step.model for step in episode.steps if step.model is not None]:
            said += turn.messages
            self._answers[_key(said)].append(turn.answer or ModelUnavailableError(turn.error))


def _key(messages: tuple[Message, ...]) -> str:
    return records.digest([message for message in messages if message.role is not Role.ASSISTANT])
