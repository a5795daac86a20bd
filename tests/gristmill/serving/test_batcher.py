"""Batching changes nothing: every request gets the tokens that it would get alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from gristmill.serving.batcher import Batcher, Sequence, prompt_tokens


def softmax(logits_BV: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits_BV, dim=-1)


def alone(model: Any, prompt: torch.Tensor, count: int) -> list[int]:
    ids_BS = prompt[None]
    mask_BS = torch.ones_like(ids_BS)  # else generate takes token 0 for padding
    found_BS = model.generate(ids_BS, attention_mask=mask_BS, max_new_tokens=count, do_sample=False)
    tokens: list[int] = found_BS[0, prompt.numel() :].tolist()
    return tokens


@pytest.mark.parametrize("seed", range(4))
def test_tokens_are_those_of_generate(tiny_model: Any, seed: int) -> None:
    chooser = random.Random(seed)
    waiting = [
        Sequence(i, prompt_tokens(seed, i, chooser.randint(1, 40), 128), chooser.randint(1, 90)) for i in range(7)
    ]
    sequences, batcher = list(waiting), Batcher(tiny_model, softmax)
    sizes = []
    while waiting or len(batcher):
        while waiting and len(batcher) < 3 and chooser.random() < 0.7:
            batcher.join(waiting.pop())
        if len(batcher):
            sizes.append(len(batcher))
            batcher.step()
        batcher.retire()
    assert max(sizes) == 3
    for sequence in sequences:
        assert sequence.tokens == alone(tiny_model, sequence.prompt, sequence.wanted)
        assert len(sequence.probabilities) == sequence.wanted


def test_probabilities_are_of_the_chosen_tokens(tiny_model: Any) -> None:
    sequence, batcher = Sequence(0, prompt_tokens(0, 0, 6, 128), 3), Batcher(tiny_model, softmax)
    batcher.join(sequence)
    logits_BV = batcher.step()
    chosen = float(softmax(logits_BV)[0, sequence.tokens[1]])
    assert sequence.probabilities[1] == pytest.approx(chosen)
    assert chosen == pytest.approx(float(softmax(logits_BV).max()))


def test_a_restored_state_decodes_the_same_again(tiny_model: Any) -> None:
    batcher = Batcher(tiny_model, softmax)
    for i in range(3):
        batcher.join(Sequence(i, prompt_tokens(1, i, 60 + i, 128), 500))
    state = batcher.state()
    runs = []
    for _ in range(3):
        batcher.restore(state)
        runs.append([batcher.trial_step() for _ in range(70)])  # grows the cache past its headroom
    for tokens_B, logits_BV in runs[0]:
        assert tokens_B.shape == (3,)
        assert logits_BV.shape == (3, 128)
    for other in runs[1:]:
        for (tokens, logits), (tokens_again, logits_again) in zip(runs[0], other, strict=True):
            assert torch.equal(tokens, tokens_again)
            torch.testing.assert_close(logits, logits_again)


def test_prompts_depend_on_seed_and_index_only() -> None:
    torch.manual_seed(1)
    first = prompt_tokens(4, 2, 50, 1000)
    torch.manual_seed(2)
    assert torch.equal(first, prompt_tokens(4, 2, 50, 1000))
    assert not torch.equal(first, prompt_tokens(4, 3, 50, 1000))
    assert not torch.equal(first, prompt_tokens(5, 2, 50, 1000))
