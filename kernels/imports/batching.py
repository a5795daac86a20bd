"""Continuous batching, simulated: from arrivals and lengths to what each step of an engine would have held.

The rules are those of engines that fill each step up to a number of tokens: every running request decodes one token,
then prompts are read in order of arrival, in chunks if the engine cuts them, while there is room for another sequence.
The last chunk of a prompt gives the first token. Not simulated: memory that runs out, preemption, priorities.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gristmill.errors import TraceError
from kernels.imports.request_traces import TracedRequest


@dataclass(frozen=True)
class Limits:
    """Of the engine.

    Raises:
        TraceError: no engine could work within them.
    """

    max_tokens: int = 8192
    """Per step, over all requests."""
    max_sequences: int = 256
    """That run at the same time."""
    chunked: bool = True
    """Whether a prompt may be read in several steps. Otherwise one that is longer than a step has one for itself."""
    step_ns: int = 20_000_000
    """Of any step, however little it holds."""
    token_ns: int = 50_000
    """Added by each token of a step."""

    def __post_init__(self) -> None:
        if min(self.max_tokens, self.max_sequences, self.step_ns) < 1 or self.token_ns < 0:
            raise TraceError(f"limits {self}: expected at least 1 token, 1 sequence and 1 ns per step")
        if self.max_tokens < self.max_sequences:
            raise TraceError(
                f"limits: {self.max_tokens} tokens per step for {self.max_sequences} sequences, expected one each"
            )


@dataclass(frozen=True)
class Step:
    """One step of the engine."""

    start_ns: int
    length_ns: int
    decodes: int
    """Requests that decode one token."""
    context_tokens: int
    """Positions that these attend to, all together, their new tokens among them."""
    chunks: tuple[tuple[int, int], ...]
    """Per prompt that is read: tokens in this step, and how many of it were there before."""

    @property
    def tokens(self) -> int:
        return self.decodes + sum(chunk for chunk, _ in self.chunks)


class Batching:
    """One run of the engine over a trace."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[TracedRequest] = deque()
        self._read = 0
        """Tokens of the first waiting prompt that are there; 0: it was not begun."""
        self._running = 0
        """Sequences that were begun and have not ended."""
        self._decodes = 0
        self._context_tokens = 0
        """Positions of those that decode."""
        self._round = 0
        """Of decoding."""
        self._ending: Counter[int] = Counter()
        """Sequences by their last round."""
        self._ending_tokens: Counter[int] = Counter()
        """And how many positions they have by then."""
        self.longest_queue = 0
        """The most requests that were waiting to be begun."""

    def steps(self, requests: Iterable[TracedRequest]) -> Iterator[Step]:
        """The steps that serve all requests, which come in order of arrival."""
        now_ns = 0
        for request in requests:
            while now_ns < request.arrival_ns and (self._running or self._waiting):
                step = self._step(now_ns)
                yield step
                now_ns += step.length_ns
            now_ns = max(now_ns, request.arrival_ns)
            self._waiting.append(request)
            self.longest_queue = max(self.longest_queue, len(self._waiting) - (self._read > 0))
        while self._running or self._waiting:
            step = self._step(now_ns)
            yield step
            now_ns += step.length_ns

    def _step(self, now_ns: int) -> Step:
        limits = self._limits
        room = limits.max_tokens - (self._decodes if limits.chunked else 0)
        chunks, through = self._read_prompts(room)
        decodes = context_tokens = 0
        if limits.chunked or not chunks:  # prompts that are not cut have steps of their own, and go first
            decodes, context_tokens = self._decode()
        for request in through:
            self._join(request)
        tokens = decodes + sum(chunk for chunk, _ in chunks)
        return Step(now_ns, limits.step_ns + tokens * limits.token_ns, decodes, context_tokens, chunks)

    def _decode(self) -> tuple[int, int]:
        """One round: how many decode, and the positions that they attend to."""
        decodes = self._decodes
        self._context_tokens += decodes
        context_tokens = self._context_tokens
        ended = self._ending.pop(self._round, 0)
        self._decodes -= ended
        self._running -= ended
        self._context_tokens -= self._ending_tokens.pop(self._round, 0)
        self._round += 1
        return decodes, context_tokens

    def _read_prompts(self, room: int) -> tuple[tuple[tuple[int, int], ...], list[TracedRequest]]:
        """Chunks of the prompts that wait, and which are through with that."""
        limits = self._limits
        chunks: list[tuple[int, int]] = []
        through: list[TracedRequest] = []
        while self._waiting and room > 0:
            request = self._waiting[0]
            before = self._read or request.cached_tokens
            rest = request.prompt_tokens - before
            if not self._read and self._running >= limits.max_sequences:
                break
            if not limits.chunked and rest > room and chunks:
                break
            self._running += not self._read
            chunk = min(rest, room) if limits.chunked else rest
            chunks.append((chunk, before))
            room -= chunk
            if chunk < rest:
                self._read = before + chunk
                break
            self._read = 0
            through.append(self._waiting.popleft())
        return tuple(chunks), through

    def _join(self, request: TracedRequest) -> None:
        """Its prompt has given the first token; the others take a round each, from the next on."""
        rounds = request.generated_tokens - 1
        if rounds < 1:
            self._running -= 1
            return
        self._decodes += 1
        self._context_tokens += request.prompt_tokens
        last = self._round + rounds - 1
        self._ending[last] += 1
        self._ending_tokens[last] += request.prompt_tokens + rounds
