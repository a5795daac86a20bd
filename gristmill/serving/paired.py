"""The paired A/B: the same decode steps from the same state, once with the engine's own kernels and once with ours.

A pair is a block of steps in each arm, one right after the other in random order, so that both meet the same machine.
Sequences go on from what the second arm decoded. No generation is swapped during a run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gristmill.adapters.transformers import Attachment
from gristmill.errors import ServingError
from gristmill.sampler import Sampler
from gristmill.serving.batcher import Batcher, prompt_tokens
from gristmill.serving.batcher import Sequence as Served
from gristmill.serving.replay import ReplayHooks, check_requests
from gristmill.traces import Request

ENGINE, KERNELS = "engine", "kernels"
OPERATOR_PERIOD = 7
"""Every so-many-th call is timed in either arm; prime, as in `sampler`."""
BOOTSTRAP_ROUNDS = 4000


@dataclass(frozen=True)
class PairedSettings:
    """How an A/B is run."""

    concurrency: tuple[int, ...] = (4, 8)
    pairs: int = 20
    block_steps: int = 8
    seed: int = 0
    time_operators: bool = True


@dataclass(frozen=True)
class Difference:
    """Where the arms first chose different tokens for one row of a pair."""

    pair: int
    step: int
    request: int
    engine_token: int
    kernels_token: int
    top2_gap: float
    """Between the engine's two largest logits at that step: small means that rounding decided."""
    logit_scale: float
    """Standard deviation of the engine's logits there."""


@dataclass(frozen=True)
class Pair:
    """Decode speed of both arms over the same steps."""

    engine_tokens_per_s: float
    kernels_tokens_per_s: float
    first: str
    """The arm that ran first."""


@dataclass(frozen=True)
class PairedResult:
    """One concurrency. Ratios are tokens/s with our kernels over tokens/s without."""

    concurrency: int
    block_steps: int
    pairs: tuple[Pair, ...]
    ratio: float
    """Median over pairs."""
    ratio_low: float
    ratio_high: float
    """95 % bootstrap interval of the median."""
    mean_ratio: float
    """Total time of the engine's arm over total time of ours."""
    engine_tokens_per_s: float
    kernels_tokens_per_s: float
    engine_operator_ns: dict[str, float]
    kernels_operator_ns: dict[str, float]
    """Estimated time per decode step and operator."""
    hits: dict[str, int]
    """Calls served per candidate during this run."""
    compared_tokens: int
    differences: tuple[Difference, ...]
    """Empty if both arms decoded the same tokens everywhere."""


@dataclass(frozen=True)
class _Block:
    elapsed_ns: int
    tokens: list[list[int]]
    """Per step, per row."""
    logits: list[Tensor]


class PairedRun:
    """One A/B at one concurrency. Requests are taken in turn, and again from the start if they run out."""

    def __init__(
        self,
        model: Any,
        attachment: Attachment,
        requests: Sequence[Request],
        concurrency: int,
        settings: PairedSettings,
        hooks: ReplayHooks,
    ) -> None:
        check_requests(requests, concurrency, model.config.max_position_embeddings - settings.block_steps)
        self._model = model
        self._attachment = attachment
        self._requests = requests
        self._concurrency = concurrency
        self._settings = settings
        self._hooks = hooks
        self._batcher = Batcher(model, attachment.softmax)
        self._taken = 0
        self._samplers = {arm: Sampler(OPERATOR_PERIOD) for arm in (ENGINE, KERNELS)}

    def run(self) -> PairedResult:
        """Runs all pairs; fewer if `hooks.stop` says so. The attachment's sampler and arm are put back afterwards."""
        attachment, dispatcher = self._attachment, self._attachment.dispatcher
        before, was_enabled, hits = attachment.sampler, dispatcher.enabled, dispatcher.hits()
        chooser = random.Random(self._settings.seed)
        pairs: list[Pair] = []
        differences: list[Difference] = []
        compared = 0
        try:
            for number in range(-1, self._settings.pairs):
                if self._hooks.stop():
                    break
                attachment.sampler = None
                dispatcher.enabled = was_enabled
                self._fill()
                order = [ENGINE, KERNELS]
                chooser.shuffle(order)
                blocks = self._pair(order)
                if number < 0:  # the first pair warms both arms up: buffers and lookups are made here
                    for sampler in self._samplers.values():
                        sampler.flush()
                else:
                    pairs.append(self._speeds(blocks, order[0]))
                    compared += len(self._batcher) * self._settings.block_steps
                    differences.extend(self._differences(number, blocks))
                self._advance(blocks[order[1]])
                self._hooks.progress({"concurrency": self._concurrency, "pair": number + 1, "of": self._settings.pairs})
        finally:
            attachment.sampler, dispatcher.enabled = before, was_enabled
        used = {name: count - hits.get(name, 0) for name, count in dispatcher.hits().items()}
        return self._result(pairs, differences, compared, used)

    def _fill(self) -> None:
        while len(self._batcher) < self._concurrency:
            index = self._taken % len(self._requests)
            request = self._requests[index]
            prompt = prompt_tokens(self._settings.seed, index, request.prompt_tokens, self._model.config.vocab_size)
            # the first token comes with the prefill; a request of one token would leave before it decodes
            self._batcher.join(Served(index, prompt, max(2, request.generated_tokens)))
            self._taken += 1

    def _pair(self, order: Sequence[str]) -> dict[str, _Block]:
        state = self._batcher.state()
        blocks: dict[str, _Block] = {}
        for arm in order:
            self._batcher.restore(state)
            self._attachment.dispatcher.enabled = arm == KERNELS
            self._attachment.sampler = self._samplers[arm] if self._settings.time_operators else None
            blocks[arm] = self._block()
        return blocks

    def _block(self) -> _Block:
        chosen: list[Tensor] = []
        logits: list[Tensor] = []
        start_ns = time.perf_counter_ns()
        for _ in range(self._settings.block_steps):
            tokens_B, logits_BV = self._batcher.trial_step()
            chosen.append(tokens_B)
            logits.append(logits_BV)
        elapsed_ns = time.perf_counter_ns() - start_ns
        return _Block(elapsed_ns, torch.stack(chosen).tolist(), logits)

    def _advance(self, block: _Block) -> None:
        for step in block.tokens:
            for sequence, token in zip(self._batcher.sequences, step, strict=True):
                sequence.tokens.append(token)
        self._batcher.retire()

    def _speeds(self, blocks: dict[str, _Block], first: str) -> Pair:
        tokens = len(self._batcher) * self._settings.block_steps
        engine, kernels = (tokens * 1e9 / blocks[arm].elapsed_ns for arm in (ENGINE, KERNELS))
        return Pair(engine, kernels, first)

    def _differences(self, pair: int, blocks: dict[str, _Block]) -> list[Difference]:
        engine, kernels = blocks[ENGINE], blocks[KERNELS]
        found = []
        for row, sequence in enumerate(self._batcher.sequences):
            for step, (own, ours) in enumerate(zip(engine.tokens, kernels.tokens, strict=True)):
                if own[row] != ours[row]:
                    logits_V = engine.logits[step][row].float()
                    largest = logits_V.topk(2).values.tolist()
                    gap, spread = largest[0] - largest[1], float(logits_V.std())
                    found.append(Difference(pair, step, sequence.index, own[row], ours[row], gap, spread))
                    break
        return found

    def _result(
        self, pairs: list[Pair], differences: list[Difference], compared: int, hits: dict[str, int]
    ) -> PairedResult:
        ratios = [pair.kernels_tokens_per_s / pair.engine_tokens_per_s for pair in pairs]
        middle, low, high = median_interval(ratios, self._settings.seed)
        engine_s = sum(1 / pair.engine_tokens_per_s for pair in pairs)
        kernels_s = sum(1 / pair.kernels_tokens_per_s for pair in pairs)
        steps = max(1, len(pairs) * self._settings.block_steps)
        return PairedResult(
            concurrency=self._concurrency,
            block_steps=self._settings.block_steps,
            pairs=tuple(pairs),
            ratio=middle,
            ratio_low=low,
            ratio_high=high,
            mean_ratio=engine_s / kernels_s if pairs else 0.0,
            engine_tokens_per_s=len(pairs) / engine_s if pairs else 0.0,
            kernels_tokens_per_s=len(pairs) / kernels_s if pairs else 0.0,
            engine_operator_ns=operator_ns(self._samplers[ENGINE], steps),
            kernels_operator_ns=operator_ns(self._samplers[KERNELS], steps),
            hits=hits,
            compared_tokens=compared,
            differences=tuple(differences),
        )


def run_paired(
    model: Any, attachment: Attachment, requests: Sequence[Request], settings: PairedSettings, hooks: ReplayHooks
) -> tuple[PairedResult, ...]:
    """The A/B at each concurrency in turn.

    Raises:
        ServingError: nothing to run, or requests that the model cannot serve.
    """
    if not settings.concurrency or settings.pairs < 1 or settings.block_steps < 1:
        raise ServingError(
            f"ab of {settings.pairs} pairs of {settings.block_steps} steps at concurrency {settings.concurrency}: "
            "expected at least one of each"
        )
    results = []
    for concurrency in settings.concurrency:
        hooks.boundary()
        results.append(PairedRun(model, attachment, requests, concurrency, settings, hooks).run())
    return tuple(results)


def operator_ns(sampler: Sampler, steps: int) -> dict[str, float]:
    """Estimated time per step and operator of what a sampler counted."""
    totals: dict[str, float] = {}
    for sample in sampler.flush().samples:
        totals[sample.operator] = totals.get(sample.operator, 0.0) + sample.estimated_ns / steps
    return dict(sorted(totals.items()))


def median_interval(ratios: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Median and its 95 % percentile-bootstrap interval; zeros without data."""
    if not ratios:
        return 0.0, 0.0, 0.0
    import numpy

    values = numpy.asarray(ratios)
    generator = numpy.random.default_rng(seed)
    drawn = generator.choice(values, size=(BOOTSTRAP_ROUNDS, len(values)))
    low, high = numpy.percentile(numpy.median(drawn, axis=1), (2.5, 97.5))
    return float(numpy.median(values)), float(low), float(high)
