"""Replaying requests through vLLM's engine, a fixed number at a time, as its client sees them: times and tokens."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import ServingError
from gristmill.traces import Request

PROGRESS_EVERY_S = 1.0
EXPLAINED = 20
"""Best tokens whose log probabilities explain a choice."""


@dataclass(frozen=True)
class ReplayedRequest:
    """One request as its client saw it."""

    tokens: tuple[int, ...]
    ttft_s: float
    """From the moment it was sent to its first token."""
    tpot_s: float
    """Mean time per token after the first; 0 for a request of one token."""
    gaps: tuple[float, ...] = ()
    """If explained, by token: how much the best log probability stands out from the second, over what it does from the
    20th. Small means that rounding decided.
    """


@dataclass(frozen=True)
class RequestReplay:
    """A whole replay."""

    requests: tuple[ReplayedRequest, ...]
    """In trace order; those that were not finished are missing."""
    generated_tokens: int
    elapsed_s: float
    tokens_per_s: float
    """Generated tokens over the time from the first request to the last token, prefill included."""
    finished: int


@dataclass
class _Flight:
    index: int
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: tuple[int, ...] = ()
    gaps: list[float] = field(default_factory=list)

    def seen(self, output: Any, now_s: float) -> None:
        self.first_s = self.first_s or now_s
        self.last_s = now_s
        self.tokens = tuple(output.token_ids)
        if output.logprobs is not None:
            self.gaps = [standing_out(best) for best in output.logprobs]

    def done(self) -> ReplayedRequest:
        after_first = max(1, len(self.tokens) - 1)
        tpot_s = (self.last_s - self.first_s) / after_first
        return ReplayedRequest(self.tokens, self.first_s - self.sent_s, tpot_s, tuple(self.gaps))


def replay_requests(
    engine: Any,
    requests: Sequence[Request],
    concurrency: int,
    seed: int,
    vocabulary: int,
    *,
    explained: bool = False,
    progress: Callable[[dict[str, Any]], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> RequestReplay:
    """Serves all requests greedily through vLLM's `LLMEngine`: one leaves, the next is sent.

    Raises:
        ServingError: nothing to replay.
    """
    from vllm import SamplingParams

    if not requests or concurrency < 1:
        raise ServingError(
            f"replay of {len(requests)} requests, {concurrency} at a time: expected one of each at least"
        )
    waiting, flights = deque(enumerate(requests)), dict[str, _Flight]()
    done: dict[int, ReplayedRequest] = {}
    steps = 0
    began_s = told_s = time.perf_counter()
    while (waiting or flights) and not stop():
        while waiting and len(flights) < concurrency:
            index, request = waiting.popleft()
            parameters = SamplingParams(
                temperature=0.0,
                max_tokens=request.generated_tokens,
                ignore_eos=True,
                detokenize=False,
                logprobs=EXPLAINED if explained else None,
            )
            prompt = {"prompt_token_ids": prompt_ids(seed, index, request.prompt_tokens, vocabulary)}
            flights[f"r{index}"] = _Flight(index, time.perf_counter())
            engine.add_request(f"r{index}", prompt, parameters)
        outputs, now_s = engine.step(), time.perf_counter()
        steps += 1
        for output in outputs:
            flight = flights.get(output.request_id)
            if flight is None:
                continue
            flight.seen(output.outputs[0], now_s)
            if output.finished:
                done[flight.index] = flights.pop(output.request_id).done()
        if now_s - told_s > PROGRESS_EVERY_S:
            told_s = now_s
            progress({"done": len(done), "of": len(requests), "steps": steps})
    elapsed_s = time.perf_counter() - began_s
    generated = sum(len(one.tokens) for one in done.values())
    ordered = tuple(done[index] for index in sorted(done))
    return RequestReplay(ordered, generated, elapsed_s, generated / elapsed_s, len(done))


def prompt_ids(seed: int, index: int, count: int, vocabulary: int) -> list[int]:
    """Random token ids of one request; the same for the same seed and index."""
    return random.Random(f"{seed}/{index}").choices(range(vocabulary), k=count)


def standing_out(best: Any) -> float:
    """See `ReplayedRequest.gaps`; `best` maps tokens to vLLM's `Logprob`."""
    values = sorted((one.logprob for one in best.values()), reverse=True)
    spread = values[0] - values[-1]
    return (values[0] - values[1]) / spread if spread > 0 else 0.0
