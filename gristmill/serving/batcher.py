"""Continuous batching: requests join after their prefill and leave with their last token; the batch decodes greedily.

Shapes: B rows of the batch, L tokens in the cache, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gristmill.serving.cache import BatchCache


@dataclass
class Sequence:
    """One request being served."""

    index: int
    """Position in the replayed requests."""
    prompt: Tensor
    """Token ids, one dimension."""
    wanted: int
    """How many tokens to generate."""
    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    """Of each chosen token."""

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.wanted


@dataclass(frozen=True)
class State:
    """Everything a decode step reads and changes, so that a block of steps can be repeated from it."""

    length: int
    """Tokens in the cache, padding included."""
    mask: Tensor
    """[B, L]"""
    positions: Tensor
    """[B]"""
    next_tokens: Tensor
    """[B]"""


class Batcher:
    """One running batch. `softmax` is the engine's, as offered by the adapter."""

    def __init__(self, model: Any, softmax: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._softmax = softmax
        self.sequences: list[Sequence] = []
        self._cache = BatchCache(model.config.num_hidden_layers)
        self._mask_BL = torch.empty((0, 0), dtype=torch.long)
        self._positions_B = torch.empty(0, dtype=torch.long)
        self._next_B = torch.empty(0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.sequences)

    @torch.inference_mode()
    def join(self, sequence: Sequence) -> None:
        """Prefills a request, generates its first token, and adds it to the batch unless that was the last."""
        cache = BatchCache(self._model.config.num_hidden_layers)
        length = sequence.prompt.numel()
        output = self._model(input_ids=sequence.prompt[None], cache=cache, use_cache=True, logits_to_keep=1)
        next_B = self._choose(output.logits[:, -1], [sequence])
        if sequence.done:
            return
        mask_BL = torch.ones((1, length), dtype=torch.long)
        if self.sequences:
            longest = max(length, self._cache.length)
            cache = self._cache.joined(cache)
            mask_BL = torch.cat([_left_padded(self._mask_BL, longest), _left_padded(mask_BL, longest)])
            next_B = torch.cat([self._next_B, next_B])
        self._cache, self._mask_BL, self._next_B = cache, mask_BL, next_B
        self._positions_B = torch.cat([self._positions_B, torch.tensor([length])])
        self.sequences.append(sequence)

    @torch.inference_mode()
    def step(self) -> Tensor:
        """One decode step of every row; returns the logits [B, V]."""
        logits_BV = self._forward()
        self._next_B = self._choose(logits_BV, self.sequences)
        return logits_BV

    @torch.inference_mode()
    def trial_step(self) -> tuple[Tensor, Tensor]:
        """A decode step that leaves no trace in the sequences: `(token ids [B], logits [B, V])`."""
        logits_BV = self._forward()
        self._next_B = logits_BV.argmax(dim=-1)
        self._probabilities_of(logits_BV, self._next_B)
        return self._next_B, logits_BV

    def retire(self) -> list[Sequence]:
        """Removes the rows that are done, and padding that no row needs any more."""
        gone = [sequence for sequence in self.sequences if sequence.done]
        if gone:
            self._keep([row for row, sequence in enumerate(self.sequences) if not sequence.done])
        return gone

    def state(self) -> State:
        return State(self._cache.length, self._mask_BL, self._positions_B, self._next_B)

    def restore(self, state: State) -> None:
        """Back to a state of the same rows; what the cache held then was never overwritten."""
        self._cache.cut(state.length)
        self._mask_BL, self._positions_B, self._next_B = state.mask, state.positions, state.next_tokens

    def _forward(self) -> Tensor:
        self._mask_BL = torch.nn.functional.pad(self._mask_BL, (0, 1), value=1)
        output = self._model(
            input_ids=self._next_B[:, None],
            attention_mask=self._mask_BL,
            position_ids=self._positions_B[:, None],
            cache=self._cache,
            use_cache=True,
        )
        self._positions_B = self._positions_B + 1
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    def _probabilities_of(self, logits_BV: Tensor, chosen_B: Tensor) -> list[float]:
        return self._softmax(logits_BV.contiguous()).gather(1, chosen_B[:, None])[:, 0].tolist()

    def _choose(self, logits_BV: Tensor, sequences: list[Sequence]) -> Tensor:
        next_B = logits_BV.argmax(dim=-1)
        probabilities = self._probabilities_of(logits_BV, next_B)
        for sequence, token, probability in zip(sequences, next_B.tolist(), probabilities, strict=True):
            sequence.tokens.append(token)
            sequence.probabilities.append(probability)
        return next_B

    @torch.inference_mode()
    def _keep(self, rows: list[int]) -> None:
        self.sequences = [self.sequences[row] for row in rows]
        mask_BL = self._mask_BL[rows]
        first = int(mask_BL.argmax(dim=1).min()) if rows else 0
        self._cache = self._cache.kept(rows, first)
        self._mask_BL = mask_BL[:, first:]
        self._positions_B, self._next_B = self._positions_B[rows], self._next_B[rows]


def _left_padded(mask_BL: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(mask_BL, (length - mask_BL.shape[1], 0))


def prompt_tokens(seed: int, index: int, count: int, vocabulary: int) -> Tensor:
    """Random token ids of one request; the same for the same seed and index."""
    own_seed = random.Random(f"{seed}/{index}").getrandbits(32)  # torch's generator looks at 32 bits only
    generator = torch.Generator().manual_seed(own_seed)
    return torch.randint(0, vocabulary, (count,), generator=generator)
